"""Documents on nodes: deletions and generations, and what becomes of edits that come too late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pycrdt
import pytest

from shoal.errors import GenerationEnded, InvalidValue, NotFound, SessionBehind, TooLarge
from shoal.kinds.document.handle.document import Document
from shoal.protocol import requests
from shoal.storage.interface import MemoryStorage
from simulation.world.fleet import ADMITTED, Fleet
from tests.node.conftest import Bench, Opener
from tests.node.writes.test_erasing import check_sound, rows, swept
from tests.support.pacing import LOOK_S


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


async def put(bench: Bench, name: str = "d", **entries: Any) -> None:
    async with await bench.space.document(name) as document:
        document.map("m").update(entries)


async def shown(node: Any, name: str = "d") -> Any:
    """What a node shows of a document in space crew; None if it has none."""
    try:
        reply = await node.session().call(requests.ReadDocumentJson("crew", name))
    except NotFound:
        return None
    assert isinstance(reply, requests.DocumentJson)
    return reply.json.decode()


async def refused(document: Document) -> None:
    """Wait until a mirror has heard that it is over."""
    with pytest.raises(GenerationEnded):
        async with asyncio.timeout(30):
            while True:
                await document.flush()
                await asyncio.sleep(LOOK_S)


# ── deletion ──────────────────────────────────────────────────────────────────


async def test_a_deleted_document_is_gone_and_its_rows_are_freed(open_bench: Opener) -> None:
    bench = open_bench(document_snapshot_updates=2)
    for n in range(5):
        await put(bench, n=n)
    document = await bench.space.document("d")
    assert await document.delete()
    assert await shown(bench.node) is None
    assert [name async for name in bench.space.documents()] == []
    await swept(bench.storage)
    assert rows(bench.storage, "d") == []
    check_sound(bench.storage)


async def test_deleting_what_is_not_there_writes_nothing(bench: Bench) -> None:
    assert not await (await bench.space.document("d")).delete()
    assert list(bench.storage.scan(b"", None)) == []


async def test_a_mirror_of_what_was_deleted_is_told_and_restores_nothing(bench: Bench) -> None:
    await put(bench, old=1)
    mirror, reading = await bench.space.document("d"), await bench.space.document("d")
    changes = reading.changes()
    await (await bench.space.document("d")).delete()
    await refused(mirror)
    await refused(reading)
    with pytest.raises(GenerationEnded):
        mirror.map("m")
    with pytest.raises(GenerationEnded):
        await anext(changes)
    assert mirror.to_py() == {"m": {"old": 1}}
    assert await shown(bench.node) is None
    for each in (mirror, reading):
        await each.abandon()


async def test_opening_a_deleted_document_begins_it_anew(bench: Bench) -> None:
    await put(bench, old=1)
    await (await bench.space.document("d")).delete()
    await put(bench, new=2)
    assert await shown(bench.node) == '{"m":{"new":2}}'
    await swept(bench.storage)
    async with await bench.space.document("d") as again:
        assert again.to_py() == {"m": {"new": 2}}
    check_sound(bench.storage)


async def test_a_yjs_client_of_before_is_refused_by_its_id(bench: Bench) -> None:
    """A standard client names no generation, and brings its whole history back."""
    session = bench.node.session()
    old: pycrdt.Doc[Any] = pycrdt.Doc(client_id=77)
    old.get("m", type=pycrdt.Map)["old"] = 1
    await session.call(requests.Update("crew", "d", old.get_update(), {"m": "map"}))
    await session.call(requests.DeleteDocument("crew", "d"))
    for request in (
        requests.Update("crew", "d", old.get_update(), {"m": "map"}),
        requests.Updates("crew", "d", [old.get_update()]),
    ):
        with pytest.raises(GenerationEnded):
            await session.call(request)
    await session.call(requests.DeleteDocument("crew", "d"))
    new: pycrdt.Doc[Any] = pycrdt.Doc(client_id=78)
    new.get("m", type=pycrdt.Map)["new"] = 1
    await session.call(requests.Updates("crew", "d", [new.get_update()]))
    await session.call(requests.DeleteDocument("crew", "d"))
    with pytest.raises(GenerationEnded):  # Two generations later still.
        await session.call(requests.Updates("crew", "d", [old.get_update()]))


async def test_of_the_clients_of_ended_generations_the_latest_are_known(open_bench: Opener) -> None:
    bench = open_bench(document_dead_clients_max=2)
    session = bench.node.session()
    docs = [pycrdt.Doc[Any](client_id=client) for client in (5, 6, 7)]
    for doc in docs:
        doc.get("m", type=pycrdt.Map)[str(doc.client_id)] = 1
        await session.call(requests.Update("crew", "d", doc.get_update(), {"m": "map"}))
        await session.call(requests.DeleteDocument("crew", "d"))
    for doc in docs[1:]:
        with pytest.raises(GenerationEnded):
            await session.call(requests.Update("crew", "d", doc.get_update(), {"m": "map"}))
    await session.call(requests.Update("crew", "d", docs[0].get_update(), {"m": "map"}))


async def test_a_deletion_sent_again_with_its_key_deletes_once(bench: Bench) -> None:
    session = bench.node.session()
    await put(bench, n=1)
    for _ in range(2):
        await session.call(requests.DeleteDocument("crew", "d"), key="k")
        await put(bench, n=2)
    assert await shown(bench.node) == '{"m":{"n":2}}'


async def test_an_edit_is_written_to_the_generation_that_it_names_or_not_at_all(bench: Bench) -> None:
    session = bench.node.session()
    await put(bench, n=1)
    with pytest.raises(SessionBehind):
        await session.call(requests.Update("crew", "d", b"\x00\x00", {}, {}, 1))
    await session.call(requests.DeleteDocument("crew", "d"))
    with pytest.raises(GenerationEnded):
        await session.call(requests.Update("crew", "d", b"\x00\x00", {}, {}, 0))
    await session.call(requests.Update("crew", "d", b"\x00\x00", {}, {}, 1))


# ── among nodes ───────────────────────────────────────────────────────────────


async def test_a_cut_off_nodes_writes_die_with_the_document(fleet: Fleet) -> None:
    async with await fleet["a"].store().space("crew").document("d") as document:
        document.map("m")["n"] = 0
    await fleet.converged()
    await fleet.isolate("c")
    late = await fleet["c"].store().space("crew").document("d")
    late.map("m")["late"] = 1
    await late.flush()
    await (await fleet["a"].store().space("crew").document("d")).delete()
    async with await fleet["b"].store().space("crew").document("other") as other:
        other.map("m")["x"] = 1
    fleet.link_all("c")
    await fleet.converged()
    await refused(late)
    await late.abandon()
    await swept(*(fleet[name].storage for name in "abc"))
    for name in "abc":
        assert await shown(fleet[name].node) is None
        check_sound(fleet[name].storage)
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")


async def test_a_mirror_at_a_node_that_gets_what_was_erased_is_told_of_the_deletion(fleet: Fleet) -> None:
    async with await fleet["a"].store().space("crew").document("d") as document:
        document.map("m")["n"] = 0
    await (await fleet["a"].store().space("crew").document("d")).delete()
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    await fleet.crash("c")
    fresh = fleet.start("c", MemoryStorage(ADMITTED))
    late = await fresh.store().space("crew").document("d")  # Before it is sent anything.
    await fleet.converged()
    await refused(late)
    await late.abandon()


async def test_begun_anew_on_one_node_while_deleted_on_another(fleet: Fleet) -> None:
    async with await fleet["a"].store().space("crew").document("d") as document:
        document.map("m")["n"] = 0
    await fleet.converged()
    await fleet.isolate("c")
    for name in "ac":
        await (await fleet[name].store().space("crew").document("d")).delete()
        async with await fleet[name].store().space("crew").document("d") as anew:
            anew.map("m")[name] = 1
    fleet.link_all("c")
    await fleet.converged()
    for name in "abc":
        assert await shown(fleet[name].node) == '{"m":{"a":1,"c":1}}'
    await swept(*(fleet[name].storage for name in "abc"))
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")


# ── memory ────────────────────────────────────────────────────────────────────


async def test_idle_documents_leave_memory_and_are_there_when_they_are_wanted(open_bench: Opener) -> None:
    bench = open_bench(document_cache_bytes=4000)
    documents = bench.node._database.documents
    for n in range(20):
        await put(bench, f"d{n}", text="x" * 900)
    assert len(documents._open) <= 5
    assert documents._bytes == sum(opened.live.size for opened in documents._open.values()) <= 5000
    for n in range(20):
        assert await shown(bench.node, f"d{n}") == '{"m":{"text":"' + "x" * 900 + '"}}'
    assert len(documents._open) <= 5


async def test_a_document_that_is_larger_than_the_cache_is_served_all_the_same(open_bench: Opener) -> None:
    bench = open_bench(document_cache_bytes=100)
    await put(bench, text="x" * 1000)
    await put(bench, more=1)
    assert len(bench.node._database.documents._open) == 1
    assert '"more":1' in str(await shown(bench.node))


async def test_growing_memory_is_counted(open_bench: Opener) -> None:
    bench = open_bench(document_cache_bytes=5000)
    for n in range(8):
        await put(bench, "growing", **{f"k{n}": "x" * 500})
        await put(bench, f"other{n}", n=n)
    documents = bench.node._database.documents
    assert documents._bytes <= 5000
    await put(bench, "growing", more="x" * 3000)
    await shown(bench.node, "other1")
    assert len(documents._open) == 1


# ── beginnings ────────────────────────────────────────────────────────────────


async def begun(fleet: Fleet, name: str, content: dict[str, Any], **options: Any) -> Document:
    return await fleet[name].store().space("crew").document("d", initial=content, **options)


async def test_a_document_that_is_there_is_left_as_it_is(bench: Bench) -> None:
    await put(bench, n=1)
    async with await bench.space.document("d", initial={"m": {"n": 0, "x": 1}}) as document:
        assert document.to_py() == {"m": {"n": 1}}


@pytest.mark.answers("both-sides-initialise-one-document")
async def test_two_that_begin_it_alike_begin_it_once(fleet: Fleet) -> None:
    await fleet.isolate("c")
    content = {"t": "größe", "l": [{"id": 1}, [2]], "m": {"b": {"x": None}, "a": 1.5}}
    for name in "ac":
        async with await begun(fleet, name, dict(reversed(content.items()) if name == "c" else content)) as document:
            assert document.to_py() == content
            document.array("l").append(name)
    fleet.link_all("c")
    await fleet.converged()
    for name in "abc":
        async with await fleet[name].store().space("crew").document("d") as document:
            merged = document.to_py()
            assert merged == {**content, "l": [*content["l"], *merged["l"][2:]]}
            assert sorted(merged["l"][2:]) == ["a", "c"]
            assert await document.conflicts() == []
        check_sound(fleet[name].storage)


@pytest.mark.answers("both-sides-initialise-one-document")
@pytest.mark.parametrize("swapped", [False, True])
async def test_of_two_beginnings_the_same_one_counts_everywhere_and_the_other_is_told(swapped: bool) -> None:
    contents: list[dict[str, Any]] = [
        {"t": "one", "l": [1], "m": {"k": 1, "mine": 1}},
        {"t": "other", "l": [2], "m": {"k": 2, "theirs": 2}},
    ]
    async with Fleet(document_snapshot_updates=2) as fleet:
        await fleet.isolate("c")
        mirrors = {name: await begun(fleet, name, contents[(name == "c") ^ swapped], author=name) for name in "ac"}
        for name, mirror in mirrors.items():
            mirror.text("t").insert(0, f"{name}:")
            mirror.map("m")[name] = True
            await mirror.flush()
        fleet.link_all("c")
        await fleet.converged()
        shown_at = [await shown(fleet[name].node) for name in "abc"]
        assert len(set(shown_at)) == 1
        for name, mirror in mirrors.items():
            async with asyncio.timeout(30), await fleet["b"].store().space("crew").document("d") as there:
                while mirror.to_py() != there.to_py():
                    await asyncio.sleep(LOOK_S)
                assert len(lost := await there.conflicts()) == 1
            check_sound(fleet[name].storage)
        content = mirrors["a"].to_py()
        [counts] = [each for each in contents if each["l"] == content["l"]]
        [other] = [each for each in contents if each["l"] != content["l"]]
        assert content["m"] == {**counts["m"], "a": True, "c": True}
        assert content["t"].replace("a:", "").replace("c:", "") == counts["t"]
        assert (lost[0].path, lost[0].lost) == ((), other)
        assert lost[0].lost_by == ("a" if other is contents[swapped] else "c")
        assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
        for mirror in mirrors.values():
            await mirror.close()


async def test_begun_again_after_a_deletion_it_is_another(bench: Bench) -> None:
    content = {"m": {"k": 1}}
    document = await bench.space.document("d", initial=content)
    await document.delete()
    async with await bench.space.document("d", initial=content) as again:
        assert again.to_py() == content


async def test_replacing_what_is_not_there_begins_it(fleet: Fleet) -> None:
    await fleet.isolate("c")
    for name in "ac":
        await fleet[name].node.session().call(requests.Replace("crew", "d", b'{"l": [1, 2]}'))
    fleet.link_all("c")
    await fleet.converged()
    assert await shown(fleet["b"].node) == '{"l":[1,2]}'


# ── the past ──────────────────────────────────────────────────────────────────


async def test_a_snapshot_shows_what_was_there_whatever_came_since(fleet: Fleet) -> None:
    document = await fleet["a"].store().space("crew").document("d")
    taken = []
    for n in range(5):
        document.map("m")[f"k{n % 2}"] = {"n": n}
        document.text("t" if n % 2 else "u").insert(0, str(n))
        taken.append((await document.snapshot(), document.to_py()))
    await fleet.converged()
    async with await fleet["c"].store().space("crew").document("d") as elsewhere:
        for snapshot, content in taken:
            assert await elsewhere.at(snapshot) == await document.at(snapshot) == content
    await document.close()


async def test_a_moment_that_cannot_be_shown_is_refused(open_bench: Opener) -> None:
    bench = open_bench(document_history_updates_max=2)
    document = await bench.space.document("d")
    for n in range(3):
        document.map("m")["n"] = n
        snapshot = await document.snapshot()
    with pytest.raises(TooLarge, match="too many to build the document from"):
        await document.at(snapshot)
    for bad in ("", "é", "AAAA", "AAAAAAAA", snapshot[:-4]):
        with pytest.raises(InvalidValue):
            await document.at(bad)
    other = await bench.space.document("d")
    await other.delete()
    async with await bench.space.document("d") as anew:
        with pytest.raises(GenerationEnded):
            await anew.at(snapshot)
    await document.abandon()
