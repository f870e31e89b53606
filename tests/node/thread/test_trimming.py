"""Journals that are trimmed: by request and by rule, on one node and among several."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from shoal.errors import InvalidInput, JournalTrimmed, KeyReused
from shoal.kinds.journal.handle import Journal
from shoal.kinds.journal.serving import journals
from shoal.node.transaction import ObjectRows
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener
from tests.node.writes.test_erasing import check_sound, swept
from tests.support.turns import Turns

PAYLOADS = b"G"


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


async def filled(journal: Journal, count: int) -> None:
    for number in range(count):
        await journal.append(number, key=f"event-{number}")


async def listed(journal: Journal) -> list[object]:
    return [event.event async for event in journal.read()]


def kept_payloads(storage: MemoryStorage) -> int:
    return sum(keys.split_object(key)[4].startswith(PAYLOADS) for key, _ in storage.scan(keys.OBJECT, b"P"))


async def test_the_last_events_stay_and_the_report_says_how_many_went(bench: Bench) -> None:
    journal = bench.space.thread("agent").journal
    await filled(journal, 10)
    planned = await journal.trim(keep=3, dry_run=True)
    assert len(await listed(journal)) == 10
    report = await journal.trim(keep=3)
    assert (report.events, report.bytes, report.dry_run) == (7, planned.bytes, False)
    assert await listed(journal) == [7, 8, 9]
    assert (await journal.trim(keep=3)).events == 0


async def test_trimmed_events_leave_no_rows_once_swept(bench: Bench) -> None:
    journal = bench.space.thread("agent").journal
    await filled(journal, 50)
    before = bench.storage.bytes_on_disk()
    await journal.trim(keep=1)
    check_sound(bench.storage)
    await swept(bench.storage)
    assert kept_payloads(bench.storage) == 0
    assert bench.storage.bytes_on_disk() < before
    check_sound(bench.storage)


async def test_more_events_than_one_operation_trims_go_in_several(open_bench: Opener) -> None:
    bench = open_bench(trim_events_max=3)
    journal = bench.space.thread("agent").journal
    await filled(journal, 20)
    assert (await journal.trim(keep=1)).events == 19
    assert await listed(journal) == [19]


async def test_before_an_event_or_what_a_cursor_covers(bench: Bench) -> None:
    journal = bench.space.thread("agent").journal
    await filled(journal, 10)
    found = [event async for event in journal.read()]
    assert (await journal.trim(found[3])).events == 3
    assert (await journal.trim(found[4].id)).events == 1
    assert (await journal.trim(found[5].cursor)).events == 2
    assert await listed(journal) == [6, 7, 8, 9]


async def test_an_event_goes_only_if_everything_that_is_given_lets_it_go(bench: Bench) -> None:
    journal = bench.space.thread("agent").journal
    await filled(journal, 10)
    assert (await journal.trim(keep=2, older_than=timedelta(days=1))).events == 0
    assert (await journal.trim(keep=2, older_than=timedelta(0))).events <= 8


async def test_bytes_are_those_of_the_newest_events_that_fit(bench: Bench) -> None:
    journal = bench.space.thread("agent").journal
    for _ in range(10):
        await journal.append("x" * 100)
    size = (await journal.trim(keep=0, dry_run=True)).bytes // 10
    assert (await journal.trim(keep_bytes=3 * size)).events == 7


async def test_a_trim_of_nothing_in_particular_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match="needs before"):
        await bench.space.thread("agent").journal.trim()
    with pytest.raises(InvalidInput, match="keep must"):
        await bench.space.thread("agent").journal.trim(keep=-1)
    with pytest.raises(InvalidInput, match="68 hex digits"):
        await bench.space.thread("agent").journal.trim("no event")


async def test_a_key_lives_as_long_as_its_event(bench: Bench) -> None:
    journal = bench.space.thread("agent").journal
    await filled(journal, 2)
    with pytest.raises(KeyReused):
        await journal.append("another", key="event-0")
    await journal.trim(keep=1)
    assert (await journal.append("another", key="event-0")).appended
    assert await listed(journal) == [1, "another"]
    check_sound(bench.storage)


# ── readers ───────────────────────────────────────────────────────────────────


async def test_a_consumer_that_lags_behind_a_trim_is_told_and_goes_on_if_it_says_so(bench: Bench) -> None:
    journal = bench.space.thread("agent").journal
    await filled(journal, 10)
    slow, quick = journal.consumer("slow"), journal.consumer("quick")
    found = [event async for event in slow.read(follow=False)]
    await slow.ack(found[2])
    await quick.ack(found[8])
    await journal.trim(keep=3)
    with pytest.raises(JournalTrimmed) as refused:
        [event async for event in slow.read(follow=False)]
    assert isinstance(refused.value.detail["trimmed_ms"], int)
    assert [event.event async for event in slow.read(follow=False, skip_trimmed=True)] == [7, 8, 9]
    assert [event.event async for event in quick.read(follow=False)] == [9]
    assert [event.event async for event in journal.consumer("new").read(follow=False)] == [7, 8, 9]


async def test_a_reader_that_begins_gets_all_that_is_left() -> None:
    """Also if an event that came late sorts before what was trimmed, and is the last one of its first page."""
    async with Fleet(page_items_max=1) as fleet:
        journal = fleet["a"].store().space("crew").thread("agent").journal
        await fleet.isolate("c")
        await fleet["c"].store().space("crew").thread("agent").journal.append("late")
        fleet["a"].simulated.now_ms += 1000
        await filled(journal, 10)
        await journal.trim(keep=2)
        fleet.link_all("c")
        await fleet.converged()
        for name in "abc":
            there = fleet[name].store().space("crew").thread("agent").journal
            assert await listed(there) == ["late", 8, 9]
            assert [event.event async for event in there.consumer("new").read(follow=False)] == ["late", 8, 9]


async def test_a_reader_that_has_begun_is_told_of_what_goes_meanwhile(open_bench: Opener) -> None:
    bench = open_bench(page_items_max=2)
    journal = bench.space.thread("agent").journal
    await filled(journal, 10)
    await journal.trim(keep=8)
    reading = journal.read()
    assert (await anext(reading)).event == 2
    await journal.trim(keep=2)
    with pytest.raises(JournalTrimmed):
        [event async for event in reading]


async def test_a_replay_needs_a_snapshot_that_holds_what_was_trimmed(bench: Bench) -> None:
    journal = bench.space.thread("agent").journal

    def total(value: int, event: object) -> int:
        return value + event.event  # type: ignore[attr-defined,no-any-return]

    await filled(journal, 10)
    assert await journal.replay(total, initial=0, name="total", every=1) == 45
    await filled(journal, 11)
    await journal.trim(keep=4)
    assert await journal.replay(total, initial=0, name="total") == 55
    with pytest.raises(JournalTrimmed, match="no snapshot"):
        await journal.replay(total, initial=0)
    await journal.trim(keep=0)
    with pytest.raises(JournalTrimmed):  # What came after the snapshot is gone too.
        await journal.replay(total, initial=0, name="total")


# ── by rule ───────────────────────────────────────────────────────────────────


async def test_a_journal_keeps_about_as_many_events_as_its_rule_says(bench: Bench) -> None:
    journal = bench.space.thread("agent").journal
    await filled(journal, 5)
    assert (await journal.retain(events=16)).events == 16
    for number in range(100):
        await journal.append(number)
        assert len(await listed(journal)) <= 18, "an eighth more, and no more"
    assert len(await listed(journal)) >= 16
    assert (await journal.retention()).trimmed is not None
    await swept(bench.storage)
    check_sound(bench.storage)


async def test_a_journal_keeps_about_as_many_bytes_as_its_rule_says(bench: Bench) -> None:
    journal = bench.space.thread("agent").journal
    await journal.retain(bytes=4000)
    for _ in range(100):
        await journal.append("x" * 100)
    assert 20 < len(await listed(journal)) <= 40


async def test_a_rule_without_bounds_keeps_everything(bench: Bench) -> None:
    journal = bench.space.thread("agent").journal
    await journal.retain(events=1)
    await journal.retain()
    await filled(journal, 10)
    assert len(await listed(journal)) == 10


async def test_a_rule_by_age_trims_what_is_older(bench: Bench) -> None:
    journal = bench.space.thread("agent").journal
    await filled(journal, 5)
    await journal.retain(older_than=timedelta(hours=1))
    await journal.append("young")
    assert len(await listed(journal)) == 6
    bench.simulated.now_ms += 2 * 3600 * 1000
    await journal.append("new")
    assert await listed(journal) == ["new"]


async def test_events_of_one_batch_do_not_trim_each_other(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    await thread.journal.retain(events=1)
    async with bench.space.batch() as batch:
        for number in range(10):
            batch.thread("agent").journal.append(number)
    assert len(await listed(thread.journal)) == 10
    check_sound(bench.storage)


# ── with peers ────────────────────────────────────────────────────────────────


async def test_appends_of_an_isolated_replica_stay_everywhere(fleet: Fleet) -> None:
    journal = fleet["a"].store().space("crew").thread("agent").journal
    await filled(journal, 10)
    await fleet.converged()
    await fleet.isolate("c")
    await fleet["c"].store().space("crew").thread("agent").journal.append("alone")
    await filled(journal, 12)
    await journal.trim(keep=1)
    assert kept_payloads(fleet["a"].storage) > 0
    fleet.link_all("c")
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    for name in "abc":
        found = await listed(fleet[name].store().space("crew").thread("agent").journal)
        assert sorted(map(str, found)) == ["11", "alone"]
        assert kept_payloads(fleet[name].storage) == 0
        check_sound(fleet[name].storage)
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")


async def test_a_replaced_disk_gets_what_is_left(fleet: Fleet) -> None:
    journal = fleet["a"].store().space("crew").thread("agent").journal
    await filled(journal, 10)
    await journal.trim(keep=2)
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    await fleet.crash("c")
    fleet.start("c", MemoryStorage())
    await fleet.converged()
    assert await listed(fleet["c"].store().space("crew").thread("agent").journal) == [8, 9]
    await swept(*(fleet[name].storage for name in "abc"))
    check_sound(fleet["c"].storage)
    assert fleet.rows("a") == fleet.rows("c")


async def test_others_have_turns_while_a_trim_is_planned(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "_SLICE", 4)
    journal = bench.space.thread("t").journal
    for n in range(20):
        await journal.append(n)
    rows = Turns(monkeypatch, ObjectRows, "scan", lambda *_, limit=None, **__: limit or 0)
    assert (await journal.trim(keep=18, dry_run=True)).events == 2
    assert rows.most <= 8 < 20 <= rows.all
