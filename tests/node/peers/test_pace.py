"""A node looks for due work often while something happens, and seldom while nothing does, always on one grid."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from shoal.config import Config
from shoal.node.peers.replica import Pace
from shoal.testing.machines import run
from simulation.bounds import altered

CONFIG = Config(tick_s=0.05)
FAR_S = 100.0


@pytest.fixture(autouse=True)
def bounds() -> Iterator[None]:
    with altered(tick_idle_s=0.25, tick_quiet_s=1.0):
        yield


async def looks(pace: Pace, until: float, *, due_s: float = FAR_S) -> AsyncIterator[tuple[float, int]]:
    loop = asyncio.get_running_loop()
    while loop.time() < until:
        ticks = await pace.next(due_s=due_s)
        yield loop.time(), ticks


async def quiet(pace: Pace) -> None:
    """Let pass what follows a start."""
    async for _, ticks in looks(pace, 5.0):
        if ticks > 1:
            return


def test_a_node_to_which_something_happens_looks_at_every_tick() -> None:
    async def main() -> None:
        pace = Pace(CONFIG)
        async for _, ticks in looks(pace, 3.0):
            assert ticks == 1
            pace.stir()

    run(main())


def test_once_all_is_quiet_it_looks_seldom_and_says_how_many_ticks_passed() -> None:
    async def main() -> None:
        found = [entry async for entry in looks(Pace(CONFIG), 3.0)]
        assert [ticks for at, ticks in found if at <= 1.0] == [1] * 19
        assert {ticks for at, ticks in found if at > 1.3} == {5}
        assert sum(ticks for _, ticks in found) == pytest.approx(found[-1][0] / CONFIG.tick_s)

    run(main())


def test_work_that_is_due_is_not_late() -> None:
    async def main() -> None:
        pace = Pace(CONFIG)
        await quiet(pace)
        assert [await pace.next(due_s=due_s) for due_s in (0.12, 0.1, 0.01, -1.0)] == [3, 2, 1, 1]

    run(main())


@pytest.mark.parametrize(("after_s", "ticks"), [(0.01, 1), (0.05, 1), (0.06, 2), (0.24, 5)])
def test_an_event_in_a_long_pause_ends_it(after_s: float, ticks: int) -> None:
    async def main() -> None:
        pace = Pace(CONFIG)
        await quiet(pace)
        loop = asyncio.get_running_loop()
        began = loop.time()
        loop.call_later(after_s, pace.stir)
        assert await pace.next(due_s=FAR_S) == ticks
        assert loop.time() - began == pytest.approx(ticks * CONFIG.tick_s)
        assert await pace.next(due_s=FAR_S) == 1

    run(main())
