"""A directory that was set back as a whole, and counts too soon, is found."""

from __future__ import annotations

import pytest

from shoal.cluster.marks import Mark
from shoal.testing.simulation.execution import execute
from shoal.testing.simulation.plan import Act, Fault, Plan, Restore, Wipe

SET_BACK = Restore(at=3.0, node="n3", copied_at=0.5, down_s=0.2, whole=True)


def plan(*faults: Fault) -> Plan:
    return Plan(seed=5, duration_s=5.0, faults=list(faults), acts=[Act(at=1.0, agent=0, kind="add")])


@pytest.fixture
def without_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mark, "note", lambda self, partition, vector: None)


@pytest.mark.usefixtures("without_marks")
def test_a_disk_that_was_set_back_and_counts_too_soon_is_found() -> None:
    outcome = execute(plan(SET_BACK))
    assert outcome.broken == {"19"}
    assert "n3 was set back, and n" in outcome.violations[0].text


def test_one_that_counts_once_it_has_caught_up_is_not_blamed() -> None:
    assert not execute(plan(SET_BACK)).broken


@pytest.mark.usefixtures("without_marks")
def test_one_that_the_file_system_tells_from_its_original_is_another_node() -> None:
    assert not execute(plan(Restore(at=3.0, node="n3", copied_at=0.5, down_s=0.2))).broken


@pytest.mark.usefixtures("without_marks")
def test_what_a_lost_disk_alone_could_give_back_is_not_asked_for() -> None:
    assert not execute(plan(SET_BACK, Wipe(at=3.1, node="n1", down_s=0.0))).broken
