"""Work beside its caller leaves others their turn, and ends with the part of the node that began it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from shoal.errors import StorageFull
from shoal.logs import events
from shoal.logs.lines import captured
from shoal.node.environment import Environment, system_environment
from shoal.node.turns import REST, WAITED_MAX, Background, Resting, Upkeep, lasting


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


@pytest.mark.parametrize(("waiting", "rests"), [([], 0), ([5, 3, 0], 2), ([1] * 1000, WAITED_MAX)])
async def test_a_rest_lasts_while_requests_wait(monkeypatch: pytest.MonkeyPatch, waiting: list[int], rests: int) -> None:
    rested: list[float] = []

    async def slept(seconds: float) -> None:
        rested.append(seconds)

    resting = Resting(clocked([0.0, 0.004, 1.0]), lambda: waiting.pop(0) if waiting else 0)
    monkeypatch.setattr(asyncio, "sleep", slept)
    await resting.rest()
    assert [seconds for seconds in rested if seconds] == [pytest.approx(0.004 * REST)] * (1 + rests)


async def test_without_a_step_that_took_time_nothing_waits_for_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """So simulated runs do not depend on it."""
    rested: list[float] = []

    async def slept(seconds: float) -> None:
        rested.append(seconds)

    resting = Resting(clocked([1.0, 1.0, 1.0]), lambda: 1)
    monkeypatch.setattr(asyncio, "sleep", slept)
    await resting.rest()
    assert [seconds for seconds in rested if seconds] == []


class ProcessEnds(BaseException):
    """As `KeyboardInterrupt`, which would end this run of the tests."""


@pytest.mark.parametrize(
    ("error", "is_told"),
    [(KeyError("x"), True), (StorageFull("the disk is full."), False), (ProcessEnds(), False), (None, False)],
)
async def test_a_lasting_task_that_ends_by_a_bug_is_told_at_once(error: BaseException | None, is_told: bool) -> None:
    async def work() -> None:
        if error is not None:
            raise error

    with captured() as lines:
        task = lasting(work(), "tiering")
        await asyncio.wait([task])
        await asyncio.sleep(0)
    assert [(line.event, line.fields, line.bug) for line in lines] == [
        (events.TASK_ENDED, {"where": "tiering"}, error)
    ] * is_told


@pytest.mark.parametrize(
    ("error", "has_ended"), [(KeyError("x"), True), (StorageFull("the disk is full."), False), (None, False)]
)
async def test_a_part_that_a_bug_ended_is_known(error: Exception | None, has_ended: bool) -> None:
    async def work() -> None:
        if error is not None:
            raise error

    upkeep = Upkeep()
    with captured():
        await asyncio.wait([upkeep.begin(work(), "tiering")])
        await asyncio.sleep(0)
    assert list(upkeep.ended) == ["tiering"] * has_ended


async def test_a_lasting_task_that_is_cancelled_is_not_told() -> None:
    with captured() as lines:
        task = lasting(asyncio.sleep(3600), "tiering")
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)
    assert lines == []
