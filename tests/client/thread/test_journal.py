"""A journal's handles over an embedded node: waiting, consumers, replay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.client.store import Space, Store
from shoal.errors import ConsumerReset, InvalidInput, InvalidValue, NotFound, TooLarge
from shoal.kinds.journal import flows as replay
from shoal.kinds.journal.flows import Event
from shoal.kinds.journal.handle import Consumer, Journal
from simulation.bounds import altered
from tests.client.test_store import subscribers


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    with altered(consumers_max=2, reducers_max=1):
        async with shoal.open(tmp_path / "state") as opened:
            yield opened


@pytest.fixture
def space(store: Store) -> Space:
    return store.space("crew")


@pytest.fixture
def journal(space: Space) -> Journal:
    return space.thread("t").journal


async def filled(journal: Journal, count: int) -> list[Event]:
    for number in range(count):
        await journal.append(number)
    return [event async for event in journal.read()]


async def taken(consumer: Consumer, *, acknowledge: int) -> list[Any]:
    got = []
    async for event in consumer.read(follow=False):
        got.append(event.event)
        if len(got) <= acknowledge:
            await consumer.ack(event)
    return got


# ── waiting ───────────────────────────────────────────────────────────────────


async def test_wait_returns_what_is_there(journal: Journal) -> None:
    first, second = await filled(journal, 2)
    assert await journal.wait() == first
    assert await journal.wait(after=first.cursor) == second


async def test_wait_returns_what_comes(store: Store, journal: Journal) -> None:
    (first,) = await filled(journal, 1)
    waiting = asyncio.ensure_future(journal.wait(after=first.cursor))
    await subscribers(store, 1)
    assert not waiting.done()
    await journal.append("next")
    found = await waiting
    assert found is not None
    assert found.event == "next"
    await subscribers(store, 0)


async def test_wait_ends_with_nothing_when_its_time_is_over(store: Store, journal: Journal) -> None:
    (first,) = await filled(journal, 1)
    assert await journal.wait(after=first.cursor, timeout=0.01) is None
    await subscribers(store, 0)


# ── consumers ─────────────────────────────────────────────────────────────────


async def test_a_consumer_goes_on_after_what_it_acknowledged(space: Space, journal: Journal) -> None:
    await filled(journal, 5)
    assert await taken(journal.consumer("billing"), acknowledge=2) == [0, 1, 2, 3, 4]
    again = space.thread("t").journal.consumer("billing")
    assert await taken(again, acknowledge=5) == [2, 3, 4]
    assert await taken(again, acknowledge=0) == []


async def test_consumers_do_not_share_a_cursor(journal: Journal) -> None:
    await filled(journal, 2)
    assert await taken(journal.consumer("a"), acknowledge=2) == [0, 1]
    assert await taken(journal.consumer("b"), acknowledge=1) == [0, 1]


async def test_a_consumer_follows(store: Store, journal: Journal) -> None:
    await filled(journal, 1)
    consumer = journal.consumer("c")
    async with aclosing(consumer.read()) as events:
        await consumer.ack(await anext(events))
        coming = asyncio.ensure_future(anext(events))
        await subscribers(store, 1)
        await journal.append("next")
        assert (await coming).event == "next"


async def test_a_cursor_outlives_the_store(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "kept") as store:
        journal = store.space("crew").thread("t").journal
        await filled(journal, 3)
        await taken(journal.consumer("c"), acknowledge=1)
    async with shoal.open(tmp_path / "kept") as store:
        assert await taken(store.space("crew").thread("t").journal.consumer("c"), acknowledge=0) == [1, 2]


async def test_consumers_are_listed_with_how_far_they_are_behind(journal: Journal) -> None:
    await filled(journal, 4)
    await taken(journal.consumer("slow"), acknowledge=1)
    await taken(journal.consumer("quick"), acknowledge=4)
    listed = [info async for info in journal.consumers()]
    assert [(info.name, info.behind, info.counted) for info in listed] == [("quick", 0, True), ("slow", 3, True)]
    assert all(info.acked is not None for info in listed)
    assert (await journal.consumer("new").info()).behind == 4


async def test_a_reset_begins_again_and_stops_readers_of_before(space: Space, journal: Journal) -> None:
    first, _, third = await filled(journal, 3)
    reader = journal.consumer("c")
    assert await taken(reader, acknowledge=3) == [0, 1, 2]
    await space.thread("t").journal.consumer("c").reset(first)
    with pytest.raises(ConsumerReset):
        await reader.ack(third)
    assert await taken(reader, acknowledge=0) == [1, 2]
    await reader.reset()
    assert await taken(reader, acknowledge=0) == [0, 1, 2]


async def test_an_earlier_acknowledgement_does_not_take_a_later_one_back(journal: Journal) -> None:
    first, _, third = await filled(journal, 3)
    consumer = journal.consumer("c")
    await consumer.ack(third)
    await consumer.ack(first)
    assert await taken(consumer, acknowledge=0) == []


async def test_an_acknowledgement_and_its_effect_are_one(space: Space, journal: Journal) -> None:
    await filled(journal, 2)
    consumer = journal.consumer("c")
    with pytest.raises(ZeroDivisionError):
        async for event in consumer.read(follow=False):
            async with space.batch() as batch:
                batch.thread("t").ack(consumer, event)
                batch.thread("t").save({"sum": 10 / event.event})
    async for event in consumer.read(follow=False):
        assert event.event == 0
        break
    async for event in consumer.read(follow=False):
        async with space.batch() as batch:
            batch.thread("t").ack(consumer, event)
            batch.thread("t").update({"seen": event.event})
    assert await taken(consumer, acknowledge=0) == []
    assert (await space.thread("t").load()).state == {"seen": 1}


async def test_a_journal_has_so_many_consumers_and_no_more(journal: Journal) -> None:
    (event,) = await filled(journal, 1)
    for name in ("a", "b", "a"):
        await journal.consumer(name).ack(event)
    with pytest.raises(TooLarge, match="2 consumers"):
        await journal.consumer("c").ack(event)


async def test_bytes_that_are_no_cursor_are_not_acknowledged(journal: Journal) -> None:
    (event,) = await filled(journal, 1)
    forged = Event(event.id, None, event.time, False, b"nonsense", event.packed)
    with pytest.raises(InvalidValue, match="cursor"):
        await journal.consumer("c").ack(forged)


# ── replay ────────────────────────────────────────────────────────────────────


class Listing:
    """A reducer that keeps what it was given, and counts how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, value: list[Any], event: Event) -> list[Any]:
        self.calls += 1
        value.append(event.event)
        return value


async def test_a_replay_folds_all_events_in_order(journal: Journal) -> None:
    await filled(journal, 4)
    initial: list[Any] = []
    assert await journal.replay(Listing(), initial=initial) == [0, 1, 2, 3]
    assert initial == []


async def test_a_replay_folds_nothing_that_came_since(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_PAGE", 2)
    await filled(journal, 5)
    sound = replay.events

    async def events(*where: Any, **how: Any) -> AsyncIterator[Event]:
        async for event in sound(*where, **how):
            yield event
            if event.event == 0:
                await journal.append("late")

    monkeypatch.setattr(replay, "events", events)
    assert await journal.replay(Listing(), initial=[]) == [0, 1, 2, 3, 4]


async def test_a_replay_stops_at_an_event(journal: Journal) -> None:
    events = await filled(journal, 4)
    assert await journal.replay(Listing(), initial=[], until=events[1].id) == [0, 1]
    with pytest.raises(NotFound, match="no event"):
        await journal.replay(Listing(), initial=[], until="f" * 68)


async def test_a_replay_stops_at_a_time(journal: Journal) -> None:
    events = await filled(journal, 2)
    assert await journal.replay(Listing(), initial=[], until=events[0].time - timedelta(seconds=1)) == []
    assert await journal.replay(Listing(), initial=[], until=events[-1].time) == [0, 1]


async def test_a_replay_begins_at_the_latest_snapshot_before_its_end(journal: Journal) -> None:
    events = await filled(journal, 6)
    await journal.snapshot(["a"], at=events[1], name="listing")
    await journal.snapshot(["b"], at=events[3], name="listing")
    assert await journal.replay(Listing(), initial=[], name="listing") == ["b", 4, 5]
    assert await journal.replay(Listing(), initial=[], name="listing", until=events[3].id) == ["b"]
    assert await journal.replay(Listing(), initial=[], name="listing", until=events[2].id) == ["a", 2]
    assert await journal.replay(Listing(), initial=[], name="listing", version=1) == [0, 1, 2, 3, 4, 5]
    assert await journal.replay(Listing(), initial=[]) == [0, 1, 2, 3, 4, 5]


async def test_a_replay_keeps_a_snapshot_when_it_has_folded_so_many(journal: Journal) -> None:
    await filled(journal, 5)
    calls = []
    for more in (0, 0, 2, 0):
        for _ in range(more):
            await journal.append("more")
        reducer = Listing()
        value: list[object] = await journal.replay(reducer, initial=[], name="listing", every=3)
        calls.append(reducer.calls)
    assert value == [0, 1, 2, 3, 4, "more", "more"]
    assert calls == [5, 0, 2, 2]


async def test_a_snapshot_of_an_event_that_came_late_is_refused(journal: Journal) -> None:
    (event,) = await filled(journal, 1)
    cursor = event.cursor[:-1] + b"\x01"  # The sweep's position is not the greatest that was delivered.
    late = Event(event.id, None, event.time, True, cursor, event.packed)
    with pytest.raises(InvalidInput):
        await journal.snapshot([], at=late, name="listing")


async def test_so_many_reducers_keep_snapshots_and_no_more(journal: Journal) -> None:
    (event,) = await filled(journal, 1)
    await journal.snapshot([], at=event, name="a")
    await journal.snapshot([], at=event, name="a")
    with pytest.raises(TooLarge, match="1 reducers"):
        await journal.snapshot([], at=event, name="b")


async def test_snapshots_every_so_often_need_a_name(journal: Journal) -> None:
    with pytest.raises(InvalidInput, match="name"):
        await journal.replay(Listing(), every=3)


async def test_a_consumer_gets_what_came_again_once(store: Store) -> None:
    class Source:
        space, thread = "crew", "t"

        async def read(self, **_: Any) -> AsyncIterator[Event]:
            for event in [*found, found[0]]:
                yield event

    journal = store.space("crew").thread("t").journal
    await journal.append({"n": 1}, key="k")
    await journal.append({"n": 2})
    found = [event async for event in journal.read()]
    source: Any = Source()
    assert [event.event async for event in Consumer(store.connection, source, "billing").read()] == [{"n": 1}, {"n": 2}]
