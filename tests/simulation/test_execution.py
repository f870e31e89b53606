"""A run hangs on its plan alone, and whatever goes wrong in it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from shoal.logs import events
from shoal.logs.event import Event
from shoal.logs.lines import log
from shoal.node.database import Database
from shoal.storage.commit import GroupCommit, Waiter
from simulation import execution
from simulation.batch import digest_elsewhere
from simulation.drawing import draw
from simulation.execution import BUG, STALLED, TOO_LONG, Patch, execute, in_order
from simulation.plan import Act, ClockJump, Crash, Pause, Plan
from simulation.world.cluster import SimulatedCluster

SMALL = Plan(
    seed=5,
    duration_s=4.0,
    faults=[Crash(at=1.5, node="n1")],
    acts=[Act(at=1.0 + number / 10, agent=number % 3, kind="add") for number in range(10)],
)


def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Patch:
    """Puts `make(original)` in the place of an attribute."""

    @contextmanager
    def patch() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patching:
            patching.setattr(owner, name, make(getattr(owner, name)))
            yield

    return patch


def test_a_plan_is_carried_out_and_breaks_nothing() -> None:
    outcome = execute(SMALL)
    assert outcome.violations == []
    assert outcome.fired["crash"] == 1
    assert round(outcome.virtual_s, 3) >= SMALL.duration_s
    assert any("n1" in line for line in outcome.timeline)


def test_two_runs_of_a_plan_leave_one_trace() -> None:
    assert execute(SMALL).digest == execute(SMALL).digest
    assert execute(SMALL).digest != execute(Plan(seed=6, duration_s=4.0, faults=SMALL.faults, acts=SMALL.acts)).digest


def test_earlier_tests_do_not_matter() -> None:
    alone = execute(SMALL).digest
    execute(draw(8))
    assert execute(SMALL).digest == alone


def test_the_trace_is_the_same_in_another_process_with_other_hashes() -> None:
    """Of one seed; `make sim` looks at the first of each hundred."""
    plan = draw(8)
    assert digest_elsewhere(plan) == execute(plan).digest


def test_events_come_in_order_of_time_and_a_fault_before_an_act() -> None:
    plan = Plan(
        seed=1,
        faults=[Crash(at=2.0, node="n1"), Pause(at=3.0, node="n2")],
        acts=[Act(at=1.0, agent=0, kind="add"), Act(at=2.0, agent=0, kind="count")],
    )
    assert in_order(plan) == [plan.acts[0], plan.faults[0], plan.acts[1], plan.faults[1]]


def test_an_exception_that_nobody_expected_is_a_bug() -> None:
    def broken(original: Any) -> Any:
        def status(self: SimulatedCluster, fault: object) -> None:
            raise RuntimeError("the floor is wet")

        return status

    outcome = execute(SMALL, patches=[replaced(SimulatedCluster, "carry_out", broken)])
    assert BUG in outcome.broken
    assert "the floor is wet" in outcome.violations[0].text


def test_a_task_that_fails_unseen_is_a_bug() -> None:
    async def fail() -> None:
        raise RuntimeError("nobody waits for me")

    def begins_one(original: Any) -> Any:
        async def heal(self: SimulatedCluster) -> None:
            asyncio.get_running_loop().create_task(fail())
            await original(self)

        return heal

    outcome = execute(SMALL, patches=[replaced(SimulatedCluster, "heal", begins_one)])
    assert outcome.broken == {BUG}
    assert "nobody waits for me" in outcome.violations[0].text


@pytest.mark.parametrize("event", [events.BUG, events.TASK_ENDED], ids=lambda event: event.name)
def test_an_error_in_a_nodes_log_is_a_bug(event: Event) -> None:
    def logs(original: Any) -> Any:
        async def heal(self: SimulatedCluster) -> None:
            log(event, where="add", bug=RuntimeError("oh no"))
            await original(self)

        return heal

    outcome = execute(SMALL, patches=[replaced(SimulatedCluster, "heal", logs)])
    assert outcome.broken == {BUG}
    assert "oh no" in outcome.violations[0].text


def test_a_run_that_waits_for_what_cannot_come_is_told_of() -> None:
    def waits(original: Any) -> Any:
        async def enter(self: SimulatedCluster) -> SimulatedCluster:
            await asyncio.Event().wait()
            return self

        return enter

    assert execute(SMALL, patches=[replaced(SimulatedCluster, "__aenter__", waits)]).broken == {STALLED}


def test_a_run_that_does_not_end_is_told_of() -> None:
    def turns(original: Any) -> Any:
        async def heal(self: SimulatedCluster) -> None:
            while True:
                await asyncio.sleep(0)

        return heal

    bounded = replaced(execution, "run", lambda original: partial(original, steps_max=50_000))
    assert execute(SMALL, patches=[replaced(SimulatedCluster, "heal", turns), bounded]).broken == {TOO_LONG}


def test_a_patch_is_there_during_the_run_and_gone_afterwards() -> None:
    original = Database.__init__
    seen = []

    def notes(init: Any) -> Any:
        def noting(self: Database, *args: Any, **named: Any) -> None:
            seen.append(1)
            init(self, *args, **named)

        return noting

    execute(SMALL, patches=[replaced(Database, "__init__", notes)])
    assert len(seen) >= SMALL.nodes
    assert Database.__init__ is original


def test_a_planted_bug_is_found() -> None:
    """An acknowledgement before the fsync: a power cut then takes what was acknowledged."""

    def at_once(original: Any) -> Any:
        def when_durable(self: GroupCommit, number: int, waiter: Waiter, lane: str = "", /) -> None:
            waiter(None)

        return when_durable

    acts = [Act(at=1.0 + number / 50, agent=number % 3, kind="append") for number in range(100)]
    plan = Plan(seed=1, duration_s=6.0, faults=[Crash(at=1.5, node="n1"), Crash(at=2.0, node="n2")], acts=acts)
    assert execute(plan).violations == []
    assert execute(plan, patches=[replaced(GroupCommit, "when_durable", at_once)]).broken & {"2", "3"}


def test_a_node_whose_clock_is_past_its_window_may_find_a_key_too_old() -> None:
    jump = ClockJump(at=1.0, node="n1", by_ms=60_000)
    assert execute(Plan(seed=1, duration_s=2.0, settings={"key_window_s": 20}, faults=[jump])).violations == []
