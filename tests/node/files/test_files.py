"""Files through the whole node: kept, found again, shared, referred to, and gone once nothing needs them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from typing import Any

import pytest

from shoal import values
from shoal.client.store import Space
from shoal.config import Config
from shoal.errors import FileIncomplete, InvalidInput, InvalidName, NotFound, TooLarge, Unsupported
from shoal.kinds import Kind
from shoal.kinds.file import flows, proven
from shoal.kinds.file import state as files
from shoal.kinds.file.flows import Chunker
from shoal.kinds.file.serving import files as serving
from shoal.kinds.file.serving import keeping
from shoal.kinds.thread.handle.thread import Thread
from shoal.node import database, turns
from shoal.node.collection import garbage
from shoal.node.handler import Target
from shoal.node.verification.verify import verify
from shoal.protocol import requests
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.values.registry import FileRef
from simulation.bounds import altered
from simulation.world.environment import SimulatedEnvironment
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener

SMALL = {
    "file_chunk_bytes_min": 256,
    "file_chunk_bytes_usual": 512,
    "file_chunk_bytes_max": 2048,
    "file_batch_bytes": 4096,
    "piece_bytes": 1024,
}


@pytest.fixture(autouse=True)
def _small_chunks() -> Iterator[None]:
    with altered(**SMALL):
        yield


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def chunks_of(data: bytes) -> list[bytes]:
    chunker = Chunker()
    return [*chunker.feed(data), *chunker.finish()]


def stored(storage: MemoryStorage, table: bytes) -> list[bytes]:
    """The rows of files of this table, of all threads."""
    found = [keys.split_object(key) for key, _ in storage.scan(keys.OBJECT, b"P")]
    return [row for *_, row in found if row.startswith(table)]


async def read(of: Space | Thread, file: str | FileRef) -> bytes:
    async with of.open_file(file) as stream:
        return await stream.read()


async def test_a_file_is_read_back_whole_and_in_parts(bench: Bench) -> None:
    thread, data = bench.space.thread("t"), content(50_000)
    ref = await thread.put_file("page.png", data)
    assert ref == FileRef(sha256(data).hexdigest(), len(data), "page.png", "image/png")
    assert await thread.file("page.png") == ref
    async with thread.open_file("page.png") as stream:
        assert (stream.ref, stream.size) == (ref, len(data))
        assert b"".join([piece async for piece in stream]) == data
        for start, size in ((0, 1), (49_999, 9), (12_345, 20_000), (50_000, 1), (60_000, 5), (7, 0)):
            assert await stream.seek(start) == start
            assert await stream.read(size) == data[start : start + size]
        assert await stream.seek(-5, 2) == 49_995
        assert await stream.read() == data[-5:]
        with pytest.raises(InvalidInput):
            await stream.seek(-1)


async def test_a_chunk_that_comes_is_hashed_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    def counting(data: bytes) -> Any:
        hashed.append(len(data))
        return sha256(data)

    monkeypatch.setattr(proven, "sha256", counting)
    await bench.node.session().call(requests.KeepChunks("crew", "t", [content(900), content(901, 2)]))
    assert hashed == [900, 901]


@pytest.mark.parametrize("size", [0, 1, 255, 256, 2048, 4096, 4097, 9999])
async def test_files_of_any_size_come_back(bench: Bench, size: int) -> None:
    data = content(size)
    ref = await bench.space.put_file("a", data)
    assert (await read(bench.space, "a"), await read(bench.space, ref)) == (data, data)
    assert await bench.space.delete_file("a")
    assert not await bench.space.delete_file("a")


async def test_streams_of_all_kinds_are_sources(bench: Bench, tmp_path: object) -> None:
    data = content(10_000)

    async def source() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 777):
            yield data[start : start + 777]

    thread = bench.space.thread("t")
    refs = [
        await thread.put_file("a", source()),
        await thread.put_file("b", [data[:1], data[1:]]),
        await thread.put_file("c", data, type="text/plain"),
    ]
    async with thread.open_file("a") as stream:  # It has `read`, too, which is to be awaited.
        refs.append(await bench.space.put_file("e", stream))
    assert {ref.sha256 for ref in refs} == {sha256(data).hexdigest()}
    for wrong in (17, ["text"], None):
        with pytest.raises(InvalidInput):
            await thread.put_file("d", wrong)  # type: ignore[arg-type]
    assert [file.name for file in await thread.files()] == ["a", "b", "c"]


async def test_files_are_listed_page_by_page(open_bench: Opener) -> None:
    small = open_bench(page_items_max=3)
    names = [f"{number:02}" for number in range(10)]
    for name in names:
        await small.space.put_file(name, name.encode())
    assert [file.name for file in await small.space.files()] == names
    assert [file.size for file in await small.space.files()] == [2] * 10


async def test_a_chunk_is_kept_once(bench: Bench) -> None:
    thread, data = bench.space.thread("t"), content(20_000)
    await thread.put_file("a", data)
    await thread.put_file("b", data)
    await thread.put_file("c", b"more" + data)
    held = stored(bench.storage, files.CHUNK)
    assert len(held) < len(set(chunks_of(data))) + 4


async def test_a_shared_chunk_outlives_its_first_file(bench: Bench) -> None:
    thread, data = bench.space.thread("t"), content(20_000)
    await thread.put_file("a", data)
    await thread.put_file("c", data + b"more")
    await thread.delete_file("a")
    await settled()
    assert len(stored(bench.storage, files.MANIFEST)) == 1
    assert await read(thread, "c") == data + b"more"


async def test_a_checkpoint_keeps_its_file(bench: Bench) -> None:
    thread, data = bench.space.thread("t"), content(5000)
    ref = await thread.put_file("a", data)
    await thread.save({"pages": [{"shot": ref}], "n": 1})
    await thread.put_file("a", b"another")
    await thread.delete_file("a")
    await thread.update({"n": 2})
    await settled()
    assert (await thread.load()).state["pages"][0]["shot"] == ref
    assert await read(thread, ref) == data
    await thread.save({"n": 3, "again": ref})
    for number in range(3):
        await thread.save({"n": number})
    await thread.prune(keep_last=1)
    await settled(4000.0)
    with pytest.raises(NotFound):
        await read(thread, ref)
    assert stored(bench.storage, files.CHUNK) == []


async def test_a_prune_frees_files_that_nothing_shows(bench: Bench) -> None:
    thread, data = bench.space.thread("t"), content(5000)
    ref = await thread.put_file("a", data)
    await thread.save({"page": ref})
    await thread.put_file("a", b"another")
    await settled(4000.0)  # The content has no name, is old, and stays: from now on nothing is due.
    assert await read(thread, ref) == data
    await thread.save({"page": None})
    await thread.prune(keep_last=1)
    await settled(4000.0)
    with pytest.raises(NotFound):
        await read(thread, ref)


async def test_an_inherited_reference_keeps_its_file(bench: Bench) -> None:
    thread, ref = bench.space.thread("t"), await bench.space.thread("t").put_file("a", content(5000))
    await thread.save({"page": ref, "n": 0})
    for number in range(5):
        await thread.update({"n": number})
    await thread.delete_file("a")
    await thread.prune(keep_last=1)
    await settled()
    assert await read(thread, ref) == content(5000)


async def test_events_and_steps_keep_their_files(bench: Bench) -> None:
    thread = bench.space.thread("t")
    first, second = await thread.put_file("a", content(3000)), await thread.put_file("b", content(3000, 2))
    await thread.journal.append({"saw": first})
    assert await thread.step("shoot", call=lambda: second) == second
    assert await thread.delete_file("a")
    assert await thread.delete_file("b")
    await settled()
    assert [await read(thread, ref) for ref in (first, second)] == [content(3000), content(3000, 2)]


async def test_notes_messages_items_and_snapshots_keep_their_files(bench: Bench) -> None:
    """A pending write of a graph is a note, and its file has no name."""
    thread = bench.space.thread("t")
    refs = [await thread.put_file(str(nth), content(3000, nth)) for nth in range(5)]
    note = requests.Note(b"n", values.encode([refs[0]]))
    await bench.space._connection.write(requests.Annotate("crew", "t", "later", [note]), key=None, durability=None)
    await thread.inbox.send({"see": refs[1]})
    await thread.worklist("w").add({"one": refs[2]})
    event = await thread.journal.append("done")
    [last] = [each async for each in thread.journal.read()]
    assert last.id == event.id
    await thread.journal.snapshot({"sum": refs[3]}, at=last, name="sum")
    for nth in range(5):
        await thread.delete_file(str(nth))
    await settled(4000.0)
    assert [await read(thread, ref) for ref in refs[:4]] == [content(3000, nth) for nth in range(4)]
    with pytest.raises(NotFound):
        await read(thread, refs[4])


async def test_a_value_may_not_refer_to_an_unknown_file(bench: Bench) -> None:
    thread = bench.space.thread("t")
    ref = await bench.space.thread("other").put_file("a", b"text")
    with pytest.raises(NotFound, match="put_file"):
        await thread.save({"page": ref})
    with pytest.raises(NotFound):
        await thread.journal.append([ref])
    await thread.put_file("a", b"text")
    await thread.save({"page": ref})


async def dropped_and_referred(fleet: Fleet, *, in_event: bool = False) -> FileRef:
    """On two nodes, a file that was deleted on one while the other one saved its reference. Its drop is swept nowhere yet."""
    here, there = (fleet[name].store().space("crew").thread("t") for name in "ab")
    for number in range(40):
        await here.journal.append({"n": number})
    ref = await here.put_file("x", content(9000))
    await fleet.converged()
    await fleet.isolate("a")
    await here.delete_file("x")
    await (there.journal.append({"saw": ref}) if in_event else there.save({"page": ref}))
    await fleet.dial()
    await fleet.converged()
    return ref


async def test_a_dropped_file_is_looked_for_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "READ_STEP_ROWS_MAX", 2)
    async with Fleet("ab", seed=4) as fleet:
        ref = await dropped_and_referred(fleet, in_event=True)
        member = fleet["a"]
        turns_of_others: list[int] = []

        async def counted(steps: Any, pause: Callable[[], Awaitable[None]]) -> Any:
            async def counting() -> None:
                turns_of_others.append(1)
                await pause()

            return await turns.in_turns(steps, counting)

        monkeypatch.setattr(database, "in_turns", counted)
        thread = member.store().space("crew").thread("u")
        with pytest.raises(NotFound):
            await thread.save({"page": ref})
        assert not turns_of_others
        thread = member.store().space("crew").thread("t")
        await thread.save({"again": ref})
        assert len(turns_of_others) > 10
        await thread.journal.append({"saw": [ref]})
        with pytest.raises(NotFound):
            await thread.journal.append({"saw": FileRef("00" * 32, 1, "x")})


async def test_a_row_that_refers_no_more_is_looked_for_again() -> None:
    async with Fleet("ab", seed=4) as fleet:
        ref = await dropped_and_referred(fleet)
        held = fleet["a"].node.service._database
        target = Target(Kind.THREAD, "crew", "t")
        rows, hash = held.document(target).rows, bytes.fromhex(ref.sha256)
        write = requests.Append("crew", "t", values.encode(ref))
        unsure = pytest.raises(serving.Unsure)
        with unsure as caught:
            serving.check_references(rows, target, write, {})
        found = await held.referring(caught.value)
        serving.check_references(rows, target, write, found)
        with unsure:
            serving.check_references(rows, target, write, {(target, hash): b"Cgone"})
        thread = fleet["a"].store().space("crew").thread("t")
        await thread.load()
        await thread.save({"page": None})
        await thread.prune(keep_last=1)
        with unsure:
            serving.check_references(held.document(target).rows, target, write, found)
        with pytest.raises(NotFound):
            serving.check_references(rows, target, write, {(target, hash): b""})


async def test_a_write_refers_to_a_bounded_number_of_files(bench: Bench) -> None:
    refs = [FileRef(sha256(number.to_bytes(4, "big")).hexdigest(), 4, "n") for number in range(serving.REFERENCES_MAX + 1)]
    with pytest.raises(TooLarge, match="refers to at most"):
        await bench.space.thread("t").save({"pages": refs})
    with pytest.raises(NotFound):
        await bench.space.thread("t").save({"pages": refs[1:]})


async def test_a_deleted_file_is_not_built_upon(bench: Bench) -> None:
    thread = bench.space.thread("t")
    ref = await thread.put_file("a", content(3000))
    await thread.delete_file("a")
    with pytest.raises(NotFound):
        await thread.save({"page": ref})
    assert await thread.put_file("b", content(3000)) == FileRef(ref.sha256, 3000, "b")
    await settled()
    await thread.save({"page": ref})
    assert await read(thread, ref) == content(3000)


async def test_a_replaced_file_waits_for_its_checkpoint(bench: Bench) -> None:
    thread = bench.space.thread("t")
    with altered(nameless_kept_s=100.0):
        first = await thread.put_file("a", content(3000))
        await thread.put_file("a", b"another agent's")
        await settled(50.0)
        await thread.save({"page": first})
        await settled(200.0)
        assert await read(thread, first) == content(3000)
        second = await thread.put_file("a", content(3000, 2))
        await thread.put_file("a", b"another agent's")
        await settled(200.0)
        with pytest.raises(NotFound):
            await read(thread, second)


async def test_contents_that_stay_hide_no_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_CONTENTS_MAX", 2)
    thread = bench.space.thread("t")
    data = sorted((content(600, number) for number in range(9)), key=lambda each: sha256(each).digest())
    for number, each in enumerate(data):
        ref = await thread.put_file("page", each)
        if number < 5:
            await thread.save({"page": ref})
    await thread.put_file("page", content(700, 99))
    await asyncio.sleep(3700)
    await settled()
    assert [row[2:34] for row in stored(bench.storage, b"Vz")] == [sha256(each).digest() for each in data[:5]]


async def test_more_contents_than_a_round_are_dropped_in_turn(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "NAMELESS_KEPT_S", 100.0)
    monkeypatch.setattr(keeping, "ROUND_MAX", 3)
    monkeypatch.setattr(keeping, "ROUNDS_CONTENTS_MAX", 4)
    monkeypatch.setattr(keeping, "_CONTENTS_MAX", 2)
    threads = [bench.space.thread(name) for name in "ab"]
    data = sorted((content(600, number) for number in range(10)), key=lambda each: sha256(each).digest())
    kept = {}
    for thread in threads:
        for number, each in enumerate(data):
            ref = await thread.put_file("page", each)
            if number < 4:  # More than a round, and they come first.
                await thread.journal.append(ref)
                kept[thread.name, number] = ref
    await settled(12 * 110.0)
    assert len(stored(bench.storage, b"Vz")) == len(kept) == 8
    for thread in threads:
        for number in range(4):
            assert await read(thread, kept[thread.name, number]) == data[number]
    await threads[0].journal.append("more")
    keeper = bench.node.service._database.files
    await settled(12 * 110.0)
    before = dict(keeper._due)
    await settled(12 * 110.0)
    assert set(keeper._due.values()) == {float("inf")}
    assert (keeper._due, keeper._rounds, keeper._waiting) == (before, {}, 0)


async def test_a_content_that_is_put_while_it_waits_waits_anew(bench: Bench) -> None:
    thread = bench.space.thread("t")
    with altered(nameless_kept_s=100.0):
        ref = await thread.put_file("a", content(3000))
        await thread.put_file("a", b"another")
        await settled(90.0)
        await thread.put_file("a", content(3000))
        await thread.put_file("a", b"another")
        await settled(90.0)
        assert await read(thread, ref) == content(3000)
        await settled(200.0)
        with pytest.raises(NotFound):
            await read(thread, ref)


async def test_a_content_that_is_referred_to_is_not_dropped(bench: Bench) -> None:
    thread, data = bench.space.thread("t"), content(3000)
    await thread.save({"page": await thread.put_file("page", data)})
    [row] = stored(bench.storage, b"Vs")
    await thread.delete_file("page")
    session = bench.node.session()
    assert await session.call(requests.DropFiles("crew", "t", [row[2:]])) == requests.FilesDropped(0, 0)


async def test_an_upload_goes_on_where_it_was_cut(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    thread, data = bench.space.thread("t"), content(60_000)
    sent: list[int] = []
    call = bench.store.connection.session.call

    async def counted(request: object, /, **given: object) -> object:
        if isinstance(request, requests.KeepChunks | requests.PutFile):
            sent.append(sum(map(len, request.chunks)))
        return await call(request, **given)  # type: ignore[arg-type]

    async def cut() -> AsyncIterator[bytes]:
        yield data[:40_000]
        raise ConnectionError

    monkeypatch.setattr(type(bench.store.connection.session), "call", lambda _self, request, **given: counted(request, **given))
    with suppress(ConnectionError):
        await thread.put_file("a", cut())
    assert await thread.files() == []
    before = sum(sent)
    assert 0 < before <= 40_000
    await thread.put_file("a", data)
    assert sum(sent) <= len(data) + 3 * 4096
    assert await read(thread, "a") == data


@pytest.mark.parametrize("seed", range(12))
async def test_an_upload_that_is_cut_anywhere_goes_on(bench: Bench, seed: int) -> None:
    drawn = random.Random(seed)
    thread, data = bench.space.thread("t"), content(drawn.randrange(20_000, 60_000), seed)
    session = bench.store.connection.session
    whole, sent = type(session).call, list[int]()

    def cut_after(requests_max: int) -> Any:
        left = [requests_max]

        async def call(self: Any, request: Any, /, **given: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and drawn.random() < 0.5:
                raise ConnectionError  # It did not arrive,
            answer = await whole(self, request, **given)
            if isinstance(request, requests.KeepChunks | requests.PutFile):
                sent.append(sum(map(len, request.chunks)))
            if left[0] <= 0:
                raise ConnectionError  # or its answer was lost.
            return answer

        return call

    with pytest.MonkeyPatch.context() as patch:
        for _ in range(drawn.randrange(1, 4)):
            patch.setattr(type(session), "call", cut_after(drawn.randrange(1, 25)))
            with suppress(ConnectionError):
                await thread.put_file("a", data)
        patch.setattr(type(session), "call", cut_after(10**6))
        assert (await thread.put_file("a", data)).sha256 == sha256(data).hexdigest()
    assert await read(thread, "a") == data
    # Again goes what was under way at each of at most three cuts, and the last few chunks, which come with the name.
    assert sum(sent) <= len(data) + 3 * (flows.SENDING_MAX + 1) * 4096 + 4 * 4096


async def test_a_put_looks_at_some_uploads_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "HELD_MAX", 8)
    thread, data = bench.space.thread("t"), content(3000)
    chunks = chunks_of(data)
    with altered(upload_kept_s=100.0):
        for _ in range(20):
            await bench.node.session().call(requests.KeepChunks("crew", "t", chunks))
        await thread.put_file("page", data)
        left = len(stored(bench.storage, b"Vh"))
        assert 10 < left < 20
        assert await read(thread, "page") == data
        bench.simulated.now_ms += 101_000
        await settled(200.0)
    assert stored(bench.storage, b"Vh") == []
    assert await read(thread, "page") == data


async def test_an_upload_that_never_ends_is_dropped(bench: Bench) -> None:
    request = requests.KeepChunks("crew", "t", [content(900), content(900, 2)])
    with altered(upload_kept_s=100.0):
        await bench.node.session().call(request)
        await settled(200.0)
        assert len(stored(bench.storage, files.CHUNK)) == 2
        bench.simulated.now_ms += 101_000
        await settled(200.0)
        assert stored(bench.storage, files.FILES) == [files.FILES]


def none_is_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files, "chunk", lambda *_: pytest.fail("a chunk is read again"))


async def test_chunks_that_come_in_order_are_not_read_again(bench: Bench) -> None:
    data, session = content(30_000), bench.node.session()
    *first, last = chunks_of(data)
    for chunk in first:
        await session.call(requests.KeepChunks("crew", "t", [chunk]))
    with pytest.MonkeyPatch.context() as patch:
        none_is_read(patch)
        await session.call(put(data, chunks=[last]))
    assert await read(bench.space.thread("t"), "a") == data


@pytest.mark.parametrize("is_claim_right", [True, False])
async def test_chunks_in_another_order_are_read_for_the_put(bench: Bench, is_claim_right: bool) -> None:
    data, session = content(30_000), bench.node.session()
    *first, last = chunks_of(data)
    for chunk in reversed(first):
        await session.call(requests.KeepChunks("crew", "t", [chunk]))
    backwards = sha256(b"".join([*reversed(first), last])).hexdigest()
    if is_claim_right:
        await session.call(put(data, chunks=[last]))
        assert await read(bench.space.thread("t"), "a") == data
    else:
        with pytest.raises(InvalidInput, match="was claimed"):
            await session.call(put(data, chunks=[last], sha256=backwards))


async def test_a_file_that_was_sent_whole_is_hashed_once(bench: Bench) -> None:
    data, thread = content(60_000), bench.space.thread("t")
    with pytest.MonkeyPatch.context() as patch:
        none_is_read(patch)
        patch.setattr(serving, "sha256", lambda data=b"": sha256(data) if len(data) < 256 else pytest.fail("hashed twice"))
        patch.setattr(serving._Course, "add", lambda *_: pytest.fail("hashed twice"))
        await thread.put_file("a", data)
    assert await read(thread, "a") == data


def put(data: bytes, **changes: object) -> requests.PutFile:
    chunks = chunks_of(data)
    manifest = files.pack_manifest(files.Chunk(sha256(chunk).digest(), len(chunk)) for chunk in chunks)
    given = {"sha256": sha256(data).hexdigest(), "size": len(data), "manifest": manifest, "chunks": chunks, **changes}
    return requests.PutFile("crew", "t", str(given.get("name", "a")), str(given["sha256"]), given["size"],  # type: ignore[arg-type]
                            str(given.get("media_type", "text/plain")), given["manifest"], given["chunks"])  # type: ignore[arg-type]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"sha256": "00" * 32}, InvalidInput),
        ({"sha256": "no"}, InvalidInput),
        ({"size": 2999}, InvalidInput),
        ({"size": 1 << 60}, InvalidInput),
        ({"manifest": b"\0" * 35}, InvalidInput),
        ({"manifest": b""}, InvalidInput),
        ({"manifest": (b"\1" * 32 + (3000).to_bytes(4, "big"))}, FileIncomplete),
        ({"manifest": b"\1" * 36 * 65_537}, TooLarge),
        ({"chunks": []}, FileIncomplete),
        ({"chunks": [b"lies"]}, FileIncomplete),
        ({"chunks": [b""]}, TooLarge),
        ({"chunks": [b"x"] * 1025}, TooLarge),
        ({"chunks": [bytes(3 << 20)] * 3}, TooLarge),
        ({"media_type": "text/plain\r\nSet-Cookie: a=b"}, InvalidInput),
        ({"media_type": "text"}, InvalidInput),
        ({"name": "\x00"}, InvalidName),
        ({"name": ".."}, InvalidName),
    ],
)
async def test_a_put_that_lies_is_refused(bench: Bench, changes: dict[str, object], error: type[Exception]) -> None:
    session = bench.node.session()
    with pytest.raises(error):
        await session.call(put(content(3000), **changes))
    assert await bench.space.thread("t").files() == []
    await session.call(put(content(3000)))
    assert await read(bench.space.thread("t"), "a") == content(3000)


OUTSIDE = ["../x", "a/../../x", "/etc/passwd", "..\\x", "\\\\host\\x", "C:\\x", "c:/x", "./x", "a/.", ".."]


@pytest.mark.parametrize("name", OUTSIDE)
async def test_a_path_outside_is_refused_before_it_is_read(bench: Bench, name: str) -> None:
    """Whoever fetches files into a directory would write elsewhere."""
    with pytest.raises(InvalidName, match="Nothing was written"):
        await bench.node.session().call(put(content(3000), name=name))

    async def unread() -> AsyncIterator[bytes]:
        pytest.fail("it was read")
        yield b""

    with pytest.raises(InvalidName, match="Nothing was written"):
        await bench.space.thread("t").put_file(name, unread())
    assert await bench.space.thread("t").files() == []
    for inside in ("a/b.png", "..a/b", "a..", ".hidden", "a:b", "C:x"):
        await bench.space.thread("t").put_file(inside, b"x")


async def test_a_put_repeats_a_bounded_number_of_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "REPEATED_BYTES_MAX", 10_000)
    session, chunk = bench.node.session(), bytes(1000)

    def repeated(times: int) -> requests.PutFile:
        manifest = files.pack_manifest([files.Chunk(sha256(chunk).digest(), 1000)] * times)
        data = chunk * times
        return put(b"", sha256=sha256(data).hexdigest(), size=len(data), manifest=manifest, chunks=[chunk])

    with pytest.raises(TooLarge, match="Compress it"):
        await session.call(repeated(65_536))
    with pytest.raises(TooLarge):
        await session.call(repeated(12))
    await session.call(repeated(11))
    assert await read(bench.space.thread("t"), "a") == chunk * 11


async def test_a_content_is_named_only_once_it_is_proved(bench: Bench) -> None:
    lies = put(content(3000), sha256="00" * 32)
    naming = requests.NameFile(*[getattr(lies, name) for name in lies.__struct_fields__])
    with pytest.raises(Unsupported):
        await bench.node.session().call(naming)


async def test_swept_files_are_no_damage(bench: Bench) -> None:
    thread = bench.space.thread("t")
    for number in range(3):
        await thread.put_file(f"{number}", content(5000, number) + content(3000))
    ref = await thread.file("0")
    await thread.save({"page": ref})
    for number in range(3):
        await thread.delete_file(f"{number}")
    await settled()
    assert await read(thread, ref) == content(5000, 0) + content(3000)
    assert verify(bench.storage, config=Config()).problems == []
    await thread.delete()
    await settled()
    assert verify(bench.storage, config=Config()).problems == []


async def test_a_deleted_thread_keeps_no_chunk(bench: Bench) -> None:
    await bench.space.put_file("a", content(9000))
    await bench.space.thread(".files").delete()
    await settled()
    assert stored(bench.storage, b"V") == []


@pytest.mark.parametrize("keep", [0, 1, 2, 3, 5, 8, 13, None])
async def test_a_crash_leaves_whole_files(open_bench: Opener, keep: int | None) -> None:
    bench = open_bench()
    thread, data = bench.space.thread("t"), content(40_000)
    await thread.put_file("a", content(9000, 2))
    await thread.put_file("b", data)
    await thread.delete_file("a")
    after = bench.crashed(keep)
    found = {file.name for file in await after.space.thread("t").files()}
    assert "b" in found
    for name in found:
        await read(after.space.thread("t"), name)
    assert verify(after.storage, config=Config()).problems == []
    await after.node.stop()


@pytest.mark.parametrize("laid", [True, False])
async def test_a_power_cut_after_a_put_leaves_all_of_it(open_bench: Opener, laid: bool) -> None:
    data = content(60_000)
    with altered(large_bytes_min=100 if laid else 1 << 20):
        bench = open_bench()
        await bench.space.thread("t").put_file("a", data)
        after = bench.crashed(0)
        assert await read(after.space.thread("t"), "a") == data


async def test_which_chunks_are_here_is_told_before_they_are_durable(bench: Bench) -> None:
    session, chunk = bench.node.session(), content(900)
    await session.call(requests.KeepChunks("crew", "t", [chunk]))
    bench.simulated.gate.clear()
    asking = requests.FindChunks("crew", "t", [sha256(chunk).digest(), sha256(b"other").digest()])
    other = content(900, 2)
    await session.call(requests.KeepChunks("crew", "t", [other]), durability="memory")
    assert (await session.call(asking)).missing == [1]
    bench.simulated.gate.set()


async def test_a_value_that_is_too_large_names_put_file(open_bench: Opener) -> None:
    small = open_bench(request_bytes_max=10_000)
    with pytest.raises(TooLarge, match="put_file"):
        await small.space.thread("t").save({"page": content(20_000)})


# ── several nodes ─────────────────────────────────────────────────────────────


async def test_a_file_is_on_a_quorum_with_its_chunks() -> None:
    async with Fleet("abc", seed=3) as fleet:
        data = content(30_000)
        await fleet["a"].store().space("crew").put_file("x", data, durability="quorum")
        await fleet.converged()
        for name in "abc":
            assert await read(fleet[name].store().space("crew"), "x") == data
        assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")


async def test_a_save_elsewhere_keeps_what_is_being_deleted() -> None:
    async with Fleet("ab", seed=4) as fleet:
        here, there = (fleet[name].store().space("crew").thread("t") for name in "ab")
        ref = await here.put_file("x", content(9000))
        await fleet.converged()
        await fleet.isolate("a")
        await here.delete_file("x")
        await there.save({"page": ref})
        await fleet.dial()
        await fleet.converged()
        await fleet.until(lambda: not stored(fleet["a"].storage, b"Vo"))
        for name in "ab":
            assert await read(fleet[name].store().space("crew").thread("t"), ref) == content(9000)
        assert fleet.rows("a") == fleet.rows("b")


@pytest.mark.parametrize("name", ["t", "{t}other"])
async def test_a_look_begins_anew_only_if_its_thread_changes(bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(turns, "READ_STEP_ROWS_MAX", 2)
    looks: list[int] = []
    look = serving.referred

    def counted(*given: Any) -> Any:
        looks.append(1)
        return look(*given)

    async def rested(self: object) -> None:  # A look goes on while an fsync does, on a slow disk, too.
        await asyncio.sleep(SimulatedEnvironment.sync_s / 10)

    monkeypatch.setattr(garbage, "referred", counted)
    monkeypatch.setattr(turns.Resting, "rest", rested)
    thread = bench.space.thread("{t}")
    other = bench.space.thread("{t}other" if name == "{t}other" else "{t}")
    for number in range(50):
        await thread.journal.append(number)
    await thread.put_file("a", content(3000))
    await thread.delete_file("a")
    for number in range(200):
        await other.journal.append(number)
        if stored(bench.storage, files.MANIFEST) == []:
            break
    await settled()
    assert stored(bench.storage, files.CHUNK) == []
    assert (len(looks) > 1) == (name == "t")


async def test_a_deleted_file_goes_on_every_node() -> None:
    async with Fleet("abc", seed=5) as fleet:
        crew = fleet["a"].store().space("crew")
        await crew.put_file("x", content(9000))
        await crew.put_file("y", content(9000) + b"more")
        await fleet.converged()
        await fleet["b"].store().space("crew").delete_file("x")
        await fleet.until(lambda: all(len(stored(fleet[name].storage, files.MANIFEST)) == 1 for name in "abc"))
        for name in "abc":
            assert await read(fleet[name].store().space("crew"), "y") == content(9000) + b"more"
            assert len(stored(fleet[name].storage, files.CHUNK)) == len(set(chunks_of(content(9000) + b"more")))


async def settled(seconds: float = 30.0) -> None:
    """Let what is due be dropped and swept."""
    await asyncio.sleep(seconds)


def test_a_reference_survives_a_round_trip() -> None:
    ref = FileRef("ab" * 32, 17, "page.png", "image/png")
    packed = values.encode({"deep": [(ref,)]})
    assert values.decode(packed) == {"deep": [(ref,)]}


async def test_an_upload_of_an_earlier_opening_is_dropped(open_bench: Opener) -> None:
    bench = open_bench()
    await bench.node.session().call(requests.KeepChunks("crew", "t", [content(900)]))
    after = bench.crashed(None)
    with altered(upload_kept_s=100.0):
        after.simulated.now_ms = bench.simulated.now_ms + 101_000
        await settled(200.0)
        assert stored(after.storage, files.CHUNK) == []
    await after.node.stop()


async def test_the_later_of_two_puts_is_shown() -> None:
    async with Fleet("ab", seed=7) as fleet:
        await fleet.isolate("b")
        first, second = (fleet[name].store().space("crew") for name in "ab")
        await first.put_file("x", content(9000))
        fleet["b"].simulated.now_ms += 1000
        await second.put_file("x", content(9000, 2))
        await fleet.dial()
        await fleet.converged()
        for name in "ab":
            assert await read(fleet[name].store().space("crew"), "x") == content(9000, 2)
        assert fleet.rows("a") == fleet.rows("b")
        await first.delete_file("x")
        await fleet.until(lambda: all(not stored(fleet[name].storage, files.CHUNK) for name in "ab"))


async def test_a_chunk_that_is_about_to_go_is_sent_again() -> None:
    async with Fleet("ab", seed=8) as fleet:
        crew = fleet["a"].store().space("crew")
        await crew.put_file("x", content(60_000))
        await fleet.converged()
        with fleet["a"].node._database.garbage.held(Target(Kind.THREAD, "crew", ".files")):
            await crew.delete_file("x")
            await fleet.until(lambda: not stored(fleet["b"].storage, files.CHUNK))
            await crew.put_file("y", content(60_000) + b"more")
            await fleet.converged()
        for name in "ab":
            assert await read(fleet[name].store().space("crew"), "y") == content(60_000) + b"more"
