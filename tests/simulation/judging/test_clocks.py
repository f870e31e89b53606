"""A node that issues the time of a clock that it could know to be wrong is found."""

from __future__ import annotations

import pytest

from shoal.node.peers.replica import ClockComparison
from simulation.execution import execute
from simulation.plan import Act, ClockJump, Crash, Cut, Fault, Leave, Plan

JUMP = ClockJump(at=15.0, node="n1", by_ms=3_600_000)


def plan(*faults: Fault, at: float = 16.0) -> Plan:
    return Plan(seed=5, duration_s=20.0, faults=list(faults), acts=[Act(at=at, agent=0, kind="add")])


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClockComparison, "check", lambda self, now_ms: None)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("by_ms", [3_600_000, -3_600_000])
def test_a_time_that_is_known_to_be_wrong_is_found(by_ms: int) -> None:
    outcome = execute(plan(ClockJump(at=15.0, node="n1", by_ms=by_ms)))
    assert outcome.broken == {"21"}
    assert "which n2, n3 told it" in outcome.violations[0].text


@pytest.mark.usefixtures("unchecked")
def test_words_told_count_after_links_are_cut() -> None:
    assert execute(plan(JUMP, Cut(at=14.9, sources=["n1"], targets=["n2", "n3"], both=True, for_s=5.0))).broken == {"21"}


def test_a_node_that_refuses_is_not_blamed() -> None:
    assert not execute(plan(JUMP)).broken


@pytest.mark.usefixtures("unchecked")
def test_nor_is_one_that_was_never_told() -> None:
    apart = Cut(at=0.0, sources=["n1"], targets=["n2", "n3"], both=True, for_s=19.0)
    assert not execute(plan(apart, JUMP)).broken


@pytest.mark.usefixtures("unchecked")
def test_nor_is_one_that_most_clocks_mislead() -> None:
    misled = [ClockJump(at=1.0, node=name, by_ms=3_600_000) for name in ("n2", "n3")]
    assert not execute(plan(*misled, JUMP)).broken


@pytest.mark.answers("seed-330008")
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("away_s", "broken"), [(9.0, set()), (0.1, {"21"})])
def test_those_that_are_no_members_any_more_prove_nothing(away_s: float, broken: set[str]) -> None:
    leave = Leave(at=12.0, node="n3", away_s=away_s)
    settings: dict[str, int | float | str] = {"quorum_register_found_s": 0.2, "members_tell_s": 0.2, "clock_interval_s": 1.0}
    acts = [Act(at=19.0, agent=0, kind="add"), Act(at=19.1, agent=1, kind="add")]
    jump = ClockJump(at=18.0, node="n1", by_ms=3_600_000)
    found = execute(Plan(seed=5, duration_s=20.0, settings=settings, faults=[leave, jump], acts=acts))
    assert found.broken == broken


@pytest.mark.answers("seed-362774")
@pytest.mark.usefixtures("unchecked")
def test_news_of_an_earlier_life_is_not_told() -> None:
    """However short the time between two lives is."""
    crashes = [Crash(at=14.92, node=name, down_s=0.01) for name in ("n2", "n3")]
    assert not execute(plan(*crashes, JUMP)).broken
