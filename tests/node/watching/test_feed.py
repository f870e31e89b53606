"""Many watchers of one change: the writer is answered first, and each of them is told all, in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import pytest

from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.crdt.rows import Stamp
from shoal.errors import ShuttingDown
from shoal.kinds.presence.handler import PresenceFollower
from shoal.kinds.presence.state import ClientState
from shoal.node.watching.feed import TOLD_PER_TURN, Feed, Staged, Subscriber
from shoal.protocol import requests
from shoal.protocol.requests import Change, Push
from tests.node.conftest import Bench, Opener

SPACE = "crew"


class Crowd:
    """Watchers of one node; `told`: of each of the first ones what it was told."""

    def __init__(self, bench: Bench, stack: AsyncExitStack) -> None:
        self._bench = bench
        self._stack = stack
        self.told: list[list[str]] = []

    async def join(self, *, prefix: str = "", space: str = SPACE) -> list[str]:
        """One more watcher; returns the names of what it is told from now on."""
        pushes = await self._stack.enter_async_context(
            self._bench.node.session().subscribe(requests.Watch(space, prefix=prefix))
        )
        names: list[str] = []
        task = asyncio.ensure_future(_noted(pushes, names))
        self._stack.callback(task.cancel)
        return names


async def _noted(pushes: AsyncIterator[Push], names: list[str]) -> None:
    async for push in pushes:
        assert isinstance(push, Change)
        names.append(push.name)


@asynccontextmanager
async def crowd(bench: Bench, count: int) -> AsyncIterator[Crowd]:
    async with AsyncExitStack() as stack:
        made = Crowd(bench, stack)
        for _ in range(count):
            made.told.append(await made.join())
        yield made


@contextmanager
def tells(patch: pytest.MonkeyPatch) -> Iterator[list[Staged]]:
    """What subscribers are told, in the order of the calls."""
    made: list[Staged] = []
    sound = Subscriber.tell

    def tell(self: Subscriber, staged: Staged, seen: VersionVector, *, ends: bool) -> None:
        made.append(staged)
        sound(self, staged, seen, ends=ends)

    with patch.context() as inner:
        inner.setattr(Subscriber, "tell", tell)
        yield made


async def add(bench: Bench, name: str, *, space: str = SPACE) -> None:
    await bench.node.session().call(requests.Add(space, name, 1))


async def settled(told: list[list[str]], expected: list[str]) -> None:
    for _ in range(10_000):
        if all(names == expected for names in told):
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{sum(names != expected for names in told)} watchers were told otherwise")


@pytest.mark.answers("thousands-of-watchers-delay-a-writer")
async def test_a_writer_waits_for_as_few_watchers_among_many_as_among_few(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_answer: list[int] = []
    for count in (200, 400):
        async with crowd(bench, count) as watchers:
            with tells(monkeypatch) as made:
                await add(bench, "a")
                before_answer.append(len(made))
                await settled(watchers.told, ["a"])
                assert len(made) == count
    assert before_answer[0] == before_answer[1] <= 3 * TOLD_PER_TURN


@pytest.mark.answers("thousands-of-watchers-delay-a-writer")
async def test_many_watchers_are_told_all_changes_in_their_order(bench: Bench) -> None:
    async with crowd(bench, 5 * TOLD_PER_TURN) as watchers:
        for n in range(20):
            await add(bench, f"n{n}")
        await settled(watchers.told, [f"n{n}" for n in range(20)])


async def test_a_watcher_is_told_what_was_written_after_it_came(bench: Bench) -> None:
    async with crowd(bench, 10 * TOLD_PER_TURN) as watchers:
        await add(bench, "before")
        assert any(not names for names in watchers.told)  # Some are still to be told.
        late = await watchers.join()
        await add(bench, "after")
        await settled(watchers.told, ["before", "after"])
        await settled([late], ["after"])


async def test_watchers_of_other_names_cost_a_change_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async with crowd(bench, 0) as watchers:
        for n in range(100):
            watchers.told.append(await watchers.join(prefix=f"n{n:03}"))
        with tells(monkeypatch) as made:
            await add(bench, "n007/x")
            await add(bench, "other")
        assert len(made) == 1
        assert watchers.told[7] == ["n007/x"]


@pytest.mark.instant_syncs("it counts turns of the loop")
async def test_the_watcher_of_a_small_space_does_not_wait_for_those_of_a_large_one(bench: Bench) -> None:
    async with crowd(bench, 20 * TOLD_PER_TURN) as watchers:
        alone = await watchers.join(space="other")
        await add(bench, "a")
        await add(bench, "b", space="other")
        await asyncio.sleep(0)
        assert alone == ["b"]
        assert any(not names for names in watchers.told)
        await settled(watchers.told, ["a"])


@pytest.mark.answers("thousands-of-watchers-delay-a-writer")
async def test_tells_that_wait_are_bounded_and_none_is_lost(open_bench: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = open_bench(watch_tells_max=100)
    waiting: list[int] = []
    sound = Feed.publish

    def publish(self: Feed, durable: int) -> None:
        sound(self, durable)
        waiting.append(self._tells)

    monkeypatch.setattr(Feed, "publish", publish)
    async with crowd(bench, 60) as watchers:
        await asyncio.gather(*(add(bench, f"{{t}}{n}") for n in range(10)))
        assert 0 < max(waiting) <= 100
        await settled(watchers.told, [f"{{t}}{n}" for n in range(10)])


async def test_a_node_that_stops_ends_the_watches_that_were_still_to_be_told(bench: Bench) -> None:
    async with AsyncExitStack() as stack:
        session = bench.node.session()
        watches = [await stack.enter_async_context(session.subscribe(requests.Watch(SPACE))) for _ in range(10 * TOLD_PER_TURN)]
        await add(bench, "a")
        await bench.node.stop()
        for pushes in watches:
            with pytest.raises(ShuttingDown):
                while True:
                    await anext(pushes)


def test_a_change_is_published_once_its_write_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(Feed, "_spread", lambda _, staged, __, *, ends: told.append(staged.change.name))
    feed = Feed(subscribers_max=1, bytes_max=1, tells_max=1)
    stamp = Stamp(Dot(Origin(b"1" * 16), 1), 1, 1, VersionVector())
    for number in (4, 5):
        change = Change(SPACE, "counter", f"of {number}", "add", "", 1, 1)
        feed.stage(number, [Staged(3, change, stamp)], {3: VersionVector()})
    feed.publish(4)
    assert told == ["of 4"]
    feed.publish(5)
    assert told == ["of 4", "of 5"]


async def test_a_slow_follower_gets_the_newest_entry_of_each_client() -> None:
    follower = PresenceFollower([ClientState(1, 1, b"a")])
    follower.tell(ClientState(1, 2, b"b"))
    follower.tell(ClientState(2, 1, b"c"))
    follower.tell(ClientState(1, 3, b"d"))
    presence = await anext(follower)
    assert [(each.client, each.clock) for each in presence.entries] == [(1, 3), (2, 1)]
