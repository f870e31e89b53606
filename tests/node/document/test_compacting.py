"""Documents that are compacted: by request and by age, on one node and among several, and what of their past is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pycrdt
import pytest

from shoal.client.store import Store
from shoal.crdt.rows import Rows
from shoal.errors import CatchingUp, HistoryCompacted, InvalidInput, NotFound, TooLarge
from shoal.kinds.document.state import compaction, document
from shoal.kinds.document.state.compaction import Coverage
from shoal.node.collection.entries import rows_of
from shoal.node.handler import Target
from shoal.node.transaction import ObjectRows, Transaction
from shoal.protocol import requests
from shoal.protocol.requests import Compact, Compacted
from shoal.storage.interface import MemoryStorage
from shoal.storage.keys import Kind
from simulation.world.fleet import ADMITTED, Fleet, Member
from tests.node.conftest import Bench, Opener
from tests.node.writes.test_erasing import check_sound, garbage, swept

PLAN = Target(Kind.DOCUMENT, "crew", "plan")
DAY_S = 24 * 3600


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


def rows(storage: MemoryStorage) -> ObjectRows:
    return rows_of(Transaction(storage), PLAN, 0)


def updates(storage: MemoryStorage) -> int:
    return len(list(document.updates(rows(storage))))


def merged(storage: MemoryStorage) -> int:
    return len(compaction.standing(rows(storage)))


async def typed(store: Store, texts: Sequence[str]) -> None:
    async with await store.space("crew").document("plan") as doc:
        for each in texts:
            doc.text("t").insert(len(str(doc.text("t"))), each)
            await doc.flush()


async def compacted(member: Bench | Member, **bounds: int) -> Compacted:
    reply = await member.node.session().call(Compact("crew", "plan", **bounds))
    assert isinstance(reply, Compacted)
    return reply


async def shown(member: Bench | Member) -> str:
    reply = await member.node.session().call(requests.ReadDocumentJson("crew", "plan"))
    assert isinstance(reply, requests.DocumentJson)
    return reply.json.decode()


# ── on one node ───────────────────────────────────────────────────────────────


async def test_a_compacted_document_is_one_update_and_unchanged(bench: Bench) -> None:
    await typed(bench.store, "abcdef")
    made = await compacted(bench)
    assert (made.updates, made.more) == (6, False)
    check_sound(bench.storage)
    await swept(bench.storage)
    assert (updates(bench.storage), merged(bench.storage)) == (0, 1)
    assert await shown(bench) == '{"t":"abcdef"}'
    await typed(bench.store, "gh")
    assert await shown(bench) == '{"t":"abcdefgh"}'
    check_sound(bench.storage)
    again = bench.crashed(None)
    assert await shown(again) == '{"t":"abcdefgh"}'
    await again.node.stop()


async def test_a_mirror_has_it_compacted_however_many_requests_that_takes(open_bench: Opener) -> None:
    bench = open_bench(document_compact_updates_max=2)
    await typed(bench.store, "abc")
    async with await bench.space.document("plan") as doc:
        doc.text("t").insert(3, "de")
        done = await doc.compact()
        assert done.updates == 4
        assert done.bytes == len(compaction.standing(rows(bench.storage))[-1].merged)
        assert (await doc.compact(older_than=timedelta(days=1))).updates == 0


async def test_the_next_compaction_takes_the_place_of_the_first(bench: Bench) -> None:
    await typed(bench.store, "abc")
    await compacted(bench)
    await typed(bench.store, "de")
    assert (await compacted(bench)).updates == 2
    await swept(bench.storage)
    assert (updates(bench.storage), merged(bench.storage)) == (0, 1)
    assert (await compacted(bench)).updates == 0
    assert await shown(bench) == '{"t":"abcde"}'
    check_sound(bench.storage)


async def test_one_request_takes_a_bounded_number_and_says_that_there_is_more(open_bench: Opener) -> None:
    bench = open_bench(document_compact_updates_max=4)
    await typed(bench.store, "abcdef")
    assert (await compacted(bench)).more
    assert (await compacted(bench)).updates == 2
    await swept(bench.storage)
    assert (updates(bench.storage), merged(bench.storage)) == (0, 1)


async def test_only_what_is_older_is_compacted(bench: Bench) -> None:
    await typed(bench.store, "abc")
    bench.simulated.now_ms += DAY_S * 1000
    await typed(bench.store, "de")
    assert (await compacted(bench, older_than_ms=DAY_S * 500)).updates == 3
    await swept(bench.storage)
    assert updates(bench.storage) == 2
    assert (await compacted(bench, at_least=3)).updates == 0


async def test_a_missing_document_cannot_be_compacted(bench: Bench) -> None:
    with pytest.raises(NotFound):
        await compacted(bench)
    with pytest.raises(InvalidInput, match="older_than"):
        await compacted(bench, older_than_ms=-1)


async def test_a_document_that_no_request_could_hold_is_not_compacted(open_bench: Opener) -> None:
    bench = open_bench(request_bytes_max=1000)
    await typed(bench.store, ["x" * 600, "y" * 600])
    with pytest.raises(TooLarge):
        await compacted(bench)
    assert updates(bench.storage) == 2


async def test_the_same_request_sent_again_compacts_once(bench: Bench) -> None:
    await typed(bench.store, "abc")
    session = bench.node.session()
    first = await session.call(Compact("crew", "plan"), key="k")
    await typed(bench.store, "de")
    assert await session.call(Compact("crew", "plan"), key="k") == first
    assert merged(bench.storage) == 1


async def test_old_updates_are_compacted_automatically(open_bench: Opener) -> None:
    bench = open_bench(document_snapshot_updates=4, document_compact_updates=3, document_history_s=60.0)
    await typed(bench.store, "abcde")
    assert merged(bench.storage) == 0
    bench.simulated.now_ms += 120_000
    await typed(bench.store, "fghijk")
    await swept(bench.storage)
    assert merged(bench.storage) == 1
    assert updates(bench.storage) < 11
    assert await shown(bench) == '{"t":"abcdefghijk"}'
    check_sound(bench.storage)


async def test_a_large_document_is_not_written_anew_for_a_few_edits(open_bench: Opener) -> None:
    for bytes_per_update, updates in ((100, 0), (1000, 3)):
        bench = open_bench(document_bytes_per_update=bytes_per_update)
        await typed(bench.store, ["x" * 1000])
        await compacted(bench)
        await typed(bench.store, "abc")
        assert (await compacted(bench, at_least=2)).updates == updates


async def test_a_crash_before_the_sweep_leaves_it_to_the_next_opening(open_bench: Opener) -> None:
    bench = open_bench()
    await typed(bench.store, "abc")
    await compacted(bench)
    left = bench.storage.left_by_crash(0)
    assert garbage(left) == 1
    again = open_bench(left, seed=2)
    await swept(again.storage)
    assert (updates(left), merged(left)) == (0, 1)
    assert await shown(again) == '{"t":"abc"}'


async def test_a_snapshot_that_lacks_what_went_goes_first() -> None:
    async with Fleet("ab", document_snapshot_updates=3) as fleet:
        await typed(fleet["a"].store(), "abcd")
        await fleet.converged()
        await typed(fleet["b"].store(), "efgh")
        await fleet.converged()
        assert fleet["a"].storage.get(PLAN.snapshot_key) is not None
        await compacted(fleet["b"])
        await typed(fleet["b"].store(), "ijk")
        await everywhere(fleet)
        for name in "ab":
            left = fleet[name].storage.left_by_crash(None)
            check_sound(left)
            assert left.get(PLAN.snapshot_key) is None or name == "b"


async def test_one_that_lacks_what_it_covers_is_reported_and_erases_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = compaction.content

    def content(rows: Callable[[], Rows], coverage: Coverage, *, pace: document.Pace) -> Iterator[list[bytes]]:
        return iter([[update for some in sound(rows, coverage, pace=pace) for update in some][:2]])

    monkeypatch.setattr(compaction, "content", content)
    await typed(bench.store, "abc")
    await compacted(bench)
    async with asyncio.timeout(30):
        while not (status := await bench.node.session().call(requests.Status())).garbage_waits_for:
            await asyncio.sleep(0.002)
    assert status.garbage_waits_for == ["a repair of document 'plan'"]
    assert updates(bench.storage) == 3
    assert await shown(bench) == '{"t":"abc"}'


async def test_a_deleted_document_leaves_nothing_of_its_compactions(bench: Bench) -> None:
    await typed(bench.store, "abc")
    await compacted(bench)
    await bench.node.session().call(requests.DeleteDocument("crew", "plan"))
    await swept(bench.storage)
    assert list(rows(bench.storage).scan(b"")) == list(rows(bench.storage).scan(b"\x00"))
    await typed(bench.store, "new")
    await compacted(bench)
    await swept(bench.storage)
    assert await shown(bench) == '{"t":"new"}'
    check_sound(bench.storage)


# ── what is left of the past ──────────────────────────────────────────────────


async def test_a_moment_after_the_compaction_is_told_and_one_before_it_is_refused(bench: Bench) -> None:
    async with await bench.space.document("plan") as doc:
        doc.text("t").insert(0, "one")
        early = await doc.snapshot()
        doc.text("t").insert(3, " two")
        at = await doc.snapshot()
        await compacted(bench)
        doc.text("t").insert(7, " three")
        late = await doc.snapshot()
        for _ in range(2):
            assert await doc.at(at) == {"t": "one two"}
            assert await doc.at(late) == {"t": "one two three"}
            with pytest.raises(HistoryCompacted):
                await doc.at(early)
            await swept(bench.storage)


async def test_a_loss_after_the_compaction_is_told_and_one_within_it_no_more(bench: Bench) -> None:
    async with await bench.space.document("plan", author="ada") as ada, await bench.space.document("plan", author="bob") as bob:

        async def both(key: str) -> None:
            ada.map("m")[key], bob.map("m")[key] = "ada", "bob"
            await asyncio.gather(ada.flush(), bob.flush())

        await both("early")
        await compacted(bench)
        await both("late")
        for _ in range(2):
            [lost] = await ada.conflicts()
            assert lost.path == ("m", "late")
            assert lost.time.year > 2000
            await swept(bench.storage)


async def test_edits_on_deleted_content_are_no_conflict(bench: Bench) -> None:
    async with await bench.space.document("plan") as doc:
        with doc.transaction():
            for number in range(5):
                doc.map("m")["k"] = number
        doc.map("m")["in"] = pycrdt.Map({"a": pycrdt.Array([1])})
        await doc.flush()
        del doc.map("m")["in"]
        await doc.flush()
        await compacted(bench)
        await swept(bench.storage)
        doc.map("m")["k"] = "last"
        doc.map("m")["in"] = 1
        await doc.flush()
        assert await doc.conflicts() == []


async def test_a_beginning_that_does_not_count_is_told_though_it_was_compacted() -> None:
    async with Fleet("ab") as fleet:
        await fleet.cut("a", "b")
        await fleet.cut("b", "a")
        contents = [{"m": {"who": name}} for name in "ab"]
        for name, content in zip("ab", contents, strict=True):
            async with await fleet[name].store().space("crew").document("plan", initial=content):
                await compacted(fleet[name])
        fleet.link_all("a")
        await fleet.converged()
        await swept(fleet["a"].storage, fleet["b"].storage)
        await compacted(fleet["a"])
        await fleet.converged()
        await swept(fleet["a"].storage, fleet["b"].storage)
        for name in "ab":
            async with await fleet[name].store().space("crew").document("plan") as doc:
                [lost] = await doc.conflicts()
                assert sorted([lost.lost, doc.to_py()], key=str) == contents
        assert fleet.rows("a") == fleet.rows("b")


# ── among several ─────────────────────────────────────────────────────────────


async def everywhere(fleet: Fleet) -> None:
    await fleet.converged()
    await swept(*(member.storage for member in fleet.members.values()))


async def test_nodes_that_compact_at_once_end_with_the_same_rows(fleet: Fleet) -> None:
    for name in "abc":
        await typed(fleet[name].store(), name * 3)
    await fleet.converged()
    await fleet.isolate("a")
    await typed(fleet["a"].store(), "x")
    await typed(fleet["b"].store(), "y")
    assert (await compacted(fleet["a"])).updates == (await compacted(fleet["b"])).updates == 10
    fleet.link_all("a")
    await everywhere(fleet)
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
    assert merged(fleet["a"].storage) == 2
    await compacted(fleet["c"])
    await everywhere(fleet)
    assert merged(fleet["a"].storage) == 1
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
    assert await shown(fleet["a"]) == await shown(fleet["b"]) == await shown(fleet["c"])
    check_sound(fleet["c"].storage)


async def test_nothing_goes_while_an_owner_is_away(fleet: Fleet) -> None:
    await typed(fleet["a"].store(), "abc")
    await fleet.converged()
    await fleet.isolate("c")
    await compacted(fleet["a"])
    async with asyncio.timeout(30):
        while not (await fleet["a"].node.session().call(requests.Status())).garbage_waits_for:
            await asyncio.sleep(0.002)
    assert updates(fleet["a"].storage) == 3
    fleet.link_all("c")
    await everywhere(fleet)
    assert updates(fleet["a"].storage) == updates(fleet["c"].storage) == 0


async def test_a_late_edit_on_top_of_what_went_is_merged(fleet: Fleet) -> None:
    await typed(fleet["a"].store(), "abc")
    await fleet.converged()
    await fleet.isolate("c")
    await typed(fleet["c"].store(), "C")
    await compacted(fleet["a"])
    await typed(fleet["a"].store(), "d")
    fleet.link_all("c")
    await everywhere(fleet)
    assert await shown(fleet["a"]) == await shown(fleet["c"])
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")


async def test_a_disk_that_is_replaced_gets_the_document_of_its_compactions(fleet: Fleet) -> None:
    await typed(fleet["a"].store(), "abc")
    await compacted(fleet["a"])
    await typed(fleet["a"].store(), "de")
    await everywhere(fleet)
    await compacted(fleet["b"])
    await typed(fleet["b"].store(), "f")
    await everywhere(fleet)
    await fleet.crash("c")
    fleet.start("c", MemoryStorage())
    await everywhere(fleet)
    assert await shown(fleet["c"]) == await shown(fleet["a"]) == '{"t":"abcdef"}'
    assert fleet.rows("c") == fleet.rows("a")
    check_sound(fleet["c"].storage)


@pytest.mark.answers("snapshot-drops-updates-that-wait")
async def test_a_document_with_a_gap_is_neither_shown_nor_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is replaced, and what comes first are updates that went: what covers them is held back."""
    async with Fleet("ab", supply_bytes_max=1) as fleet:
        await typed(fleet["a"].store(), "abc")
        await compacted(fleet["a"])
        await typed(fleet["a"].store(), "d")
        await everywhere(fleet)
        await fleet.crash("b")
        fresh = fleet.start("b", MemoryStorage(ADMITTED))
        first = await fresh.store().space("crew").document("plan")
        told: list[str] = []
        incoming = fresh.node.service._database.exchange.incoming
        applied = incoming.apply

        def one_at_a_time(arrivals: Any) -> Any:
            received = applied(arrivals[:1])
            if compaction.has_gap(rows(fresh.storage)):
                with pytest.raises(CatchingUp):
                    fresh.node.service._database.show(requests.ReadDocumentJson("crew", "plan"), PLAN)
                with pytest.raises(CatchingUp):
                    fresh.node.service._database.issue(Compact("crew", "plan"), None)
                told.append(str(first.text("t")))
            return received

        monkeypatch.setattr(incoming, "apply", one_at_a_time)
        await fleet.converged()
        assert told
        assert set(told) == {""}
        assert await shown(fresh) == '{"t":"abcd"}'
        async with asyncio.timeout(30):
            while str(first.text("t")) != "abcd":
                await asyncio.sleep(0.002)
        await first.close()
