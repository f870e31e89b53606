"""Spaces take turns, by what their steps took on a clock that only the steps themselves move."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from itertools import pairwise
from types import coroutine
from typing import Any

import pytest

from shoal.errors import Overloaded
from shoal.node.environment import system_environment
from shoal.node.spaces.sharing import Sharing
from shoal.protocol.requests import Add
from simulation.bounds import altered
from tests.node.conftest import Bench, Opener

SLICE_S = 0.001


class Loop:
    """Requests of spaces over one clock. `taken` names the spaces of the steps that were taken, in their order."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.taken: list[str] = []
        self.gave_way = 0
        self.sharing = Sharing(lambda: self.now_s, self._give_way)

    def _give_way(self) -> None:
        self.gave_way += 1

    async def _work(self, space: str, step_s: float, steps: int) -> None:
        for step in range(steps):
            if step:
                await asyncio.sleep(0)
            self.taken.append(space)
            self.now_s += step_s

    def start(self, space: str, step_s: float, steps: int = 1) -> asyncio.Task[None]:
        @coroutine
        def taken() -> Generator[Any, Any, None]:
            return (yield from self.sharing.taken(self.sharing.lane(space), self._work(space, step_s, steps)))

        async def run() -> None:
            await taken()

        return asyncio.create_task(run())


async def test_a_quiet_space_waits_for_one_step() -> None:
    loop = Loop()
    another = loop.sharing.lane("another")
    another.stepped_at = -1.0  # It waits for something else than the disk.
    loop.sharing.entered(another)
    busy = [loop.start("busy", SLICE_S) for _ in range(50)]
    while len(loop.taken) < 10:
        await asyncio.sleep(0)
    before = len(loop.taken)
    await loop.start("quiet", SLICE_S)
    assert loop.taken.index("quiet") <= before + 1
    await asyncio.gather(*busy)


async def test_a_space_that_is_not_alone_any_more_goes_on() -> None:
    loop = Loop()
    await loop.start("busy", SLICE_S / 10)
    await asyncio.sleep(0)  # A turn of a space that is alone leaves it many slices.
    await loop.start("quiet", SLICE_S / 10)
    await asyncio.gather(*(loop.start("busy", SLICE_S) for _ in range(50)))
    assert loop.taken.count("busy") == 51


@pytest.mark.parametrize("spaces", [("busy",), ("busy", "quiet")])
async def test_other_processes_go_on_while_spaces_wait(spaces: tuple[str, ...]) -> None:
    loop = Loop()
    await asyncio.gather(*(loop.start(space, SLICE_S) for space in spaces for _ in range(50)))
    turns = 50 * (len(spaces) - 1)  # Of a space that is alone none waits for another one's.
    assert turns // 2 <= loop.gave_way <= 8 * turns


@pytest.mark.skipif(not hasattr(os, "sched_yield"), reason="of POSIX")
def test_a_node_gives_its_processor_away() -> None:
    environment = system_environment()
    assert environment.give_way is os.sched_yield
    environment.give_way()
    environment.close()


async def test_a_pause_of_a_quiet_space_leaves_no_other_alone() -> None:
    loop = Loop()
    await loop.start("quiet", SLICE_S / 10)
    await loop.start("busy", SLICE_S / 10)
    busy = [loop.start("busy", SLICE_S) for _ in range(50)]
    steps = [len(loop.taken)]
    while steps[-1] < 40:
        await asyncio.sleep(0)
        steps.append(len(loop.taken))
    assert max(after - before for before, after in pairwise(steps[8:])) <= 2  # In one turn of the loop.
    await asyncio.gather(*busy)


async def test_spaces_share_the_time_that_they_need() -> None:
    loop = Loop()
    started = [loop.start("long", 8 * SLICE_S) for _ in range(20)] + [loop.start("short", SLICE_S) for _ in range(160)]
    while loop.now_s < 80 * SLICE_S:
        await asyncio.sleep(0)
    long_s, short_s = loop.taken.count("long") * 8 * SLICE_S, loop.taken.count("short") * SLICE_S
    assert abs(long_s - short_s) <= 16 * SLICE_S
    await asyncio.gather(*started)


async def test_each_step_of_a_request_takes_a_turn() -> None:
    loop = Loop()
    long = loop.start("long", SLICE_S, steps=50)
    while len(loop.taken) < 3:
        await asyncio.sleep(0)
    await asyncio.gather(*(loop.start("short", SLICE_S) for _ in range(10)))
    assert loop.taken.count("long") <= 20
    await long


async def test_after_a_long_step_one_is_let_in_at_a_time() -> None:
    loop = Loop()
    another = loop.sharing.lane("another")
    another.stepped_at = -1.0  # It waits for something else than the disk.
    loop.sharing.entered(another)
    for _ in range(20):
        await loop.start("busy", SLICE_S / 100)
    await loop.start("busy", 4 * SLICE_S)
    busy = [loop.start("busy", 4 * SLICE_S) for _ in range(10)]
    turns = []
    while not all(task.done() for task in busy):
        before = len(loop.taken)
        await asyncio.sleep(0)
        turns.append(len(loop.taken) - before)
    assert max(turns) == 1


async def test_steps_that_take_no_time_count_as_some() -> None:
    loop = Loop()
    another = loop.sharing.lane("another")
    another.stepped_at = -1.0  # It waits for something else than the disk.
    loop.sharing.entered(another)
    busy = [loop.start("busy", 0.0) for _ in range(1000)]
    turns = []
    while not all(task.done() for task in busy):
        before = len(loop.taken)
        await asyncio.sleep(0)
        turns.append(len(loop.taken) - before)
    assert max(turns) <= 101


async def test_an_idle_space_saves_nothing_up() -> None:
    loop = Loop()
    await loop.start("idle", SLICE_S)
    for _ in range(100):
        await loop.start("busy", SLICE_S)
    loop.taken.clear()
    await asyncio.gather(*(loop.start(space, SLICE_S) for _ in range(20) for space in ("idle", "busy")))
    assert loop.taken[:20].count("busy") >= 8


async def test_requests_of_a_space_keep_their_order() -> None:
    loop = Loop()
    done: list[int] = []
    tasks = [loop.start("one", SLICE_S) for _ in range(30)]
    for nth, task in enumerate(tasks):
        task.add_done_callback(lambda _, nth=nth: done.append(nth))  # type: ignore[misc]
    await asyncio.gather(*tasks)
    assert done == sorted(done)


async def test_a_request_of_many_steps_is_done_before_the_next_begins() -> None:
    loop = Loop()
    another = loop.sharing.lane("another")
    another.stepped_at = -1.0  # It waits for something else than the disk.
    loop.sharing.entered(another)  # So the space is not alone, and has one slice in each turn.
    await loop.start("busy", SLICE_S, steps=40)  # From now on it is known what a step of this space takes.
    loop.taken.clear()
    done: list[int] = []
    requests = [loop.start("busy", SLICE_S, steps=5) for _ in range(20)]
    for request in requests:
        request.add_done_callback(lambda _: done.append(len(loop.taken)))
    await asyncio.gather(*requests)
    assert len(loop.taken) == 100
    assert done[9] <= 55  # Not at the end, with all others.


async def test_a_caller_that_gives_up_never_begins() -> None:
    loop = Loop()
    busy = [loop.start("busy", SLICE_S) for _ in range(20)]
    late = loop.start("busy", SLICE_S)
    await asyncio.sleep(0)
    late.cancel()
    await asyncio.gather(late, *busy, return_exceptions=True)
    assert len(loop.taken) == 20
    assert loop.sharing.waiting == 0


async def test_a_turn_that_is_given_up_is_not_charged() -> None:
    loop = Loop()
    lane = loop.sharing.lane("busy")
    busy = [loop.start("busy", 100 * SLICE_S) for _ in range(2)]
    late = loop.start("busy", SLICE_S)
    await asyncio.sleep(0)
    while loop.sharing.waiting:
        await asyncio.sleep(0)
    late.cancel()  # Its turn has come, and it has not begun.
    await asyncio.gather(late, *busy, return_exceptions=True)
    assert len(loop.taken) == 2
    assert lane.used_s < 201 * SLICE_S


async def test_too_many_waiting_requests_are_rejected() -> None:
    with altered(turn_waiting_max=5):
        loop = Loop()
    outcomes = await asyncio.gather(*(loop.start("busy", SLICE_S) for _ in range(20)), return_exceptions=True)
    rejected = [each for each in outcomes if isinstance(each, Overloaded)]
    assert len(rejected) == 20 - len(loop.taken) > 0
    assert all(each.detail["retry_after_s"] for each in rejected)


async def test_a_request_that_has_begun_is_never_rejected() -> None:
    with altered(turn_waiting_max=1):
        loop = Loop()
    synced = asyncio.get_running_loop().create_future()

    async def work() -> str:
        await synced  # As a write does that is in the log, and whose answer waits for the disk.
        return "written"

    @coroutine
    def taken() -> Generator[Any, Any, str]:
        return (yield from loop.sharing.taken(loop.sharing.lane("busy"), work()))

    async def run() -> str:
        return await taken()

    begun = asyncio.create_task(run())
    await asyncio.sleep(0)
    others = [loop.start("busy", 100 * SLICE_S) for _ in range(20)]
    synced.set_result(None)  # It is told once they fill the queue.
    assert await begun == "written"
    await asyncio.gather(*others, return_exceptions=True)


async def test_nothing_waits_at_an_idle_node() -> None:
    loop = Loop()
    assert loop.sharing.is_free(loop.sharing.lane("any"))
    await loop.start("any", SLICE_S / 2)
    assert loop.sharing.is_free(loop.sharing.lane("another"))


async def test_forgotten_spaces_keep_the_bound() -> None:
    with altered(turn_spaces_max=3):
        loop = Loop()
    for nth in range(10):
        await loop.start(f"space-{nth}", SLICE_S)
    assert len(loop.sharing._lanes) <= 3


async def test_a_busy_space_pauses_for_a_quieter_one() -> None:
    loop = Loop()
    busy = [loop.start("busy", SLICE_S) for _ in range(50)]
    while len(loop.taken) < 5:
        await asyncio.sleep(0)
    quiet = loop.sharing.lane("quiet")
    loop.sharing.entered(quiet)  # A write that waits for the disk.
    loop.sharing.charge(quiet, loop.now_s)
    await asyncio.sleep(0)
    before = len(loop.taken)
    for _ in range(20):
        await asyncio.sleep(0)
    during = len(loop.taken)
    loop.sharing.left(quiet)
    await asyncio.gather(*busy)
    assert during - before <= 2


@pytest.mark.parametrize("durability", ["memory", "local"])
async def test_a_crowd_does_not_hold_up_another_space(bench: Bench, durability: Any) -> None:
    session, answered = bench.node.session(), list[str]()

    async def add(space: str, nth: int) -> None:
        await session.call(Add(space, f"c{nth}", 1), durability=durability)
        answered.append(space)

    await add("quiet", 0)
    crowd = [asyncio.create_task(add("busy", nth)) for nth in range(2000)]
    quiet = asyncio.create_task(add("quiet", 0))
    await asyncio.gather(quiet, *crowd)
    assert answered[1:].index("quiet") < 1000


async def test_nothing_that_is_refused_was_written(open_bench: Opener) -> None:
    bench = open_bench(turn_waiting_max=1, turn_slice_s=1e-6)  # A step takes more than a slice.
    calls: list[asyncio.Future[Any]] = []
    for _ in range(100):
        calls += [asyncio.ensure_future(bench.node.session().call(Add("crew", "n", 1))) for _ in range(5)]
        await asyncio.sleep(0)
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refused = [each for each in outcomes if isinstance(each, Overloaded)]
    assert refused
    assert await bench.space.counter("n").value() == len(outcomes) - len(refused)
