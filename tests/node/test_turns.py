"""Work beside its caller leaves others their turn, and ends with the part of the node that began it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from shoal.node.environment import Environment, system_environment
from shoal.node.turns import REST, Background, Resting


async def test_a_part_that_is_closed_ends_its_work_and_waits_for_that() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("whole")

    part = Background()
    part.start(work())
    await asyncio.sleep(0)
    await part.close()
    assert ended == ["whole"]


def clocked(times: list[float]) -> Environment:
    """An environment whose clock reads these times, one after the other."""
    real = system_environment()
    real.close()
    return replace(real, monotonic=lambda: times.pop(0), pause=lambda: asyncio.sleep(0))


async def test_a_step_is_followed_by_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    rested: list[float] = []

    async def slept(seconds: float) -> None:
        rested.append(seconds)

    # The task begins, a step of 4 ms ends, the next begins after the rest and ends 500 ms later: others had the processor.
    resting = Resting(clocked([0.0, 0.004, 1.0, 1.5, 2.0]))
    monkeypatch.setattr(asyncio, "sleep", slept)
    await resting.rest()
    await resting.rest()
    assert [seconds for seconds in rested if seconds] == [pytest.approx(0.004 * REST), pytest.approx(0.05)]
