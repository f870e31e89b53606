"""Shrinking: what is left fails, is small and plain, and was found with a bounded number of runs."""

from __future__ import annotations

import pytest

from simulation.drawing import draw
from simulation.execution import in_order
from simulation.plan import Act, Crash, Cut, Fault, Pause, Plan, Weather
from simulation.shrinking import RUNS_MAX, shrink

LARGE = Plan(
    seed=3,
    nodes=5,
    agents=6,
    duration_s=27.123,
    settings={"sync_interval_s": 0.1, "push_bytes_max": 256},
    faults=[
        Weather(at=1.234, loss=0.3, for_s=3.3),
        Crash(at=5.617, node="n2", keep=None, down_s=2.345),
        Pause(at=4.0, node="n5"),
        Cut(at=5.0, sources=["n4"], targets=["n1", "n2"], for_s=3.0),
        Crash(at=6.789, node="n1", down_s=4.2),
    ],
    acts=[Act(at=number / 10, agent=number % 5, kind="save", name="abcd"[number % 4], repeat=True) for number in range(5, 95)],
)


def crashed_after_a_save(plan: Plan) -> bool:
    """Stands for a bug: n2 crashes after agent 2 has saved b twice."""
    crashes = [fault.at for fault in plan.faults if isinstance(fault, Crash) and fault.node == "n2"]
    saves = [act.at for act in plan.acts if act.name == "b" and act.agent == 2]
    return any(sum(save < crash for save in saves) >= 2 for crash in crashes)


def test_the_events_that_matter_are_left_and_no_other() -> None:
    smallest = shrink(LARGE, crashed_after_a_save)
    assert crashed_after_a_save(smallest)
    assert [type(event) for event in in_order(smallest)] == [Act, Act, Crash]


def test_irrelevant_parts_become_plain() -> None:
    smallest = shrink(LARGE, crashed_after_a_save)
    assert (smallest.nodes, smallest.agents, smallest.settings) == (2, 3, {})
    assert smallest.duration_s == 6.0
    assert smallest.faults == [Crash(at=6.0, node="n2")]
    assert not any(act.repeat for act in smallest.acts)


def test_a_plan_of_which_everything_matters_stays() -> None:
    small = Plan(
        seed=1, nodes=1, agents=1, duration_s=2.0, acts=[Act(at=1.0, agent=0, kind="save"), Act(at=2.0, agent=0, kind="load")]
    )
    assert shrink(small, lambda plan: len(plan.acts) == 2 and plan.acts[1].kind == "load") == small


def test_a_plan_that_fails_with_nothing_in_it_becomes_empty() -> None:
    smallest = shrink(LARGE, lambda plan: True)
    assert (in_order(smallest), smallest.nodes, smallest.agents) == ([], 1, 0)


@pytest.mark.parametrize("runs_max", [1, 10, 50])
def test_the_number_of_runs_is_bounded_and_the_smallest_so_far_comes_back(runs_max: int) -> None:
    asked: list[Plan] = []

    def fails(plan: Plan) -> bool:
        asked.append(plan)
        return crashed_after_a_save(plan)

    smallest = shrink(LARGE, fails, runs_max=runs_max)
    assert len(asked) <= runs_max
    assert crashed_after_a_save(smallest)
    assert smallest in [LARGE, *asked]


@pytest.mark.parametrize("seed", range(20))
def test_shrinking_gives_the_same_plan_each_time_and_a_plan_that_fails(seed: int) -> None:
    def fails(plan: Plan) -> bool:
        return sum(act.kind in ("save", "add", "edit", "append") for act in plan.acts) >= 3

    plan = draw(seed, profile="storm")
    if fails(plan):
        smallest = shrink(plan, fails)
        assert smallest == shrink(plan, fails)
        assert fails(smallest)
        assert len(in_order(smallest)) == 3


def test_events_that_change_places_when_their_times_are_rounded_do_not_matter() -> None:
    faults: list[Fault] = [Pause(at=1.4, node="n1"), Crash(at=1.6, node="n2")]
    plan = Plan(seed=1, faults=faults, acts=[Act(at=1.3, agent=0, kind="add"), Act(at=1.7, agent=1, kind="count")])
    smallest = shrink(plan, lambda plan: len(in_order(plan)) == 4)
    assert {event.at for event in in_order(smallest)} == {1.0, 2.0}


def test_no_plan_is_tried_twice() -> None:
    asked: list[Plan] = []

    def fails(plan: Plan) -> bool:
        asked.append(plan)
        return crashed_after_a_save(plan)

    shrink(LARGE, fails)
    passing = [plan for plan in asked if not crashed_after_a_save(plan)]
    assert all(passing.count(plan) == 1 for plan in passing)
    assert len(asked) < RUNS_MAX
