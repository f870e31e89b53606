"""The courses of budgets: what was left of each over time, noted by the node in bounds."""

from __future__ import annotations

import asyncio

import pytest

from shoal.errors import ReadOnly
from shoal.kinds.budget import course
from shoal.kinds.budget.course import COURSE_EACH_S, thinned
from shoal.protocol.requests import BudgetPoint
from shoal.storage import keys
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener

_ROWS = (keys.meta("course/"), keys.meta("course0"))


async def told(bench: Bench, name: str = "tokens") -> list[tuple[int, int]]:
    return [(point.granted, point.spent) for point in await bench.space.budget(name).course()]


async def noted() -> None:
    await asyncio.sleep(COURSE_EACH_S + 0.1)


async def test_a_budget_gets_a_point_a_minute_after_it_changed(bench: Bench) -> None:
    budget = bench.space.budget("tokens")
    assert await told(bench) == [(0, 0)]
    await budget.grant(100)
    await budget.spend(10)
    assert await told(bench) == [(100, 10)]
    await noted()
    await budget.spend(5)
    assert await told(bench) == [(100, 10), (100, 15)]
    await noted()
    await noted()  # Nothing changed: no point.
    assert await told(bench) == [(100, 10), (100, 15), (100, 15)]
    points = await budget.course()
    assert points[1].at_ms <= points[-1].at_ms == bench.simulated.now_ms


async def test_a_course_outlives_a_restart_and_names_nothing(open_bench: Opener) -> None:
    bench = open_bench()
    await bench.space.budget("tokens").grant(100)
    await noted()
    rows = list(bench.storage.scan(*_ROWS))
    assert len(rows) == 1
    assert not any(b"tokens" in part for row in rows for part in row)
    await bench.node.stop()
    again = open_bench(bench.storage.left_by_crash(0))
    assert await told(again) == [(100, 0), (100, 0)]


async def test_a_course_goes_with_its_budget(bench: Bench) -> None:
    budget = bench.space.budget("tokens")
    await budget.grant(100)
    await noted()
    await budget.grant(1)
    await budget.delete()
    assert list(bench.storage.scan(*_ROWS)) == []
    await noted()
    assert list(bench.storage.scan(*_ROWS)) == []
    await budget.grant(7)
    assert await told(bench) == [(7, 0)]


async def test_another_node_sees_the_course_too() -> None:
    async with Fleet() as fleet:
        await fleet.converged()
        await fleet["a"].store().space("crew").budget("tokens").grant(100, durability="all")
        await noted()
        for node in "abc":
            points = await fleet[node].store().space("crew").budget("tokens").course()
            assert [(point.granted, point.spent) for point in points] == [(100, 0)] * 2


async def test_a_step_notes_so_many_budgets_and_the_next_one_the_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "COURSE_STEP", 2)
    for nth in range(3):
        await bench.space.budget(f"b-{nth}").grant(1)
    await noted()
    assert len(list(bench.storage.scan(*_ROWS))) == 2
    await noted()
    assert len(list(bench.storage.scan(*_ROWS))) == 3


async def test_a_course_that_cannot_be_read_counts_as_none(bench: Bench) -> None:
    budget = bench.space.budget("tokens")
    await budget.grant(100)
    await noted()
    [(row, _)] = bench.storage.scan(*_ROWS)
    bench.node._commit.write({row: b"\xff"})
    assert await told(bench) == [(100, 0)]
    await budget.spend(1)
    await noted()
    assert await told(bench) == [(100, 1), (100, 1)]


async def test_a_point_that_cannot_be_written_is_dropped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.space.budget("tokens").grant(100)

    def refuses(_rows: object) -> int:
        raise ReadOnly("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(bench.node._commit, "write", refuses)
        await noted()
    assert await told(bench) == [(100, 0)]
    await bench.space.budget("tokens").spend(1)
    await noted()
    assert await told(bench) == [(100, 1), (100, 1)]


def test_a_long_course_thins_where_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "COURSE_POINTS_MAX", 8)
    points: list[BudgetPoint] = []
    for nth in range(100):
        points = thinned([*points, BudgetPoint(nth, 100, nth)])
        assert len(points) <= 8
        assert (points[0].at_ms, points[-1].at_ms) == (0, nth)
        assert points == sorted(points, key=lambda point: point.at_ms)
