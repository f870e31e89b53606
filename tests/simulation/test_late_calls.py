"""A call that takes longer than its deadline is found."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.transport.link import Link
from simulation.execution import LATE, execute
from simulation.plan import Act, Pause, Plan

PLAN = Plan(
    seed=5,
    nodes=3,
    agents=2,
    duration_s=6.0,
    settings={"request_timeout_s": 0.5},
    faults=[Pause(at=1.5, node=node, for_s=2.5) for node in ("n1", "n2", "n3")],
    acts=[Act(at=at, agent=agent, kind="add", name="a") for agent in (0, 1) for at in (1.0, 2.0)],
)
"""All nodes stand still while their clients ask."""


@pytest.mark.answers("calls-keep-their-deadline")
def test_a_call_that_outlasts_its_deadline_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LATE not in execute(PLAN).broken
    call = Link.call

    async def patient(self: Link, request: Any, /, *, timeout_s: float = 0.5, **manner: Any) -> Any:
        return await call(self, request, timeout_s=4 * timeout_s, **manner)

    monkeypatch.setattr(Link, "call", patient)
    late = [violation.text for violation in execute(PLAN).violations if violation.invariant == LATE]
    assert any("has no answer to its Add after" in text for text in late)
