"""A directory that was set back as a whole, and counts too soon, is found."""

from __future__ import annotations

import pytest

from shoal.cluster.peer_state import Mark
from simulation.execution import execute
from simulation.plan import Act, Cut, Fault, Plan, Restore, Wipe

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


@pytest.mark.parametrize("seed", [1, 5])
def test_one_that_was_heard_by_nobody_meanwhile_is_not_blamed(seed: int) -> None:
    """With seed 5 a node hears that its own operations are there again before it counts them as copies."""
    faults: list[Fault] = [
        Cut(at=8.95, sources=["n3"], targets=["n1", "n2"], for_s=2.0),
        Restore(at=9.0, node="n3", copied_at=3.0, down_s=0.05, whole=True),
    ]
    times = [*(0.6 + 0.15 * nth for nth in range(12)), *(4.0 + 0.15 * nth for nth in range(14))]
    acts = [Act(at=at, agent=0, kind="save-erasably", durability="quorum") for at in times]
    acts += [Act(at=at, agent=0, kind="prune", durability="quorum") for at in (6.3, 6.6)]
    acts += [Act(at=9.6 + 0.2 * nth, agent=2, kind="save-erasably") for nth in range(4)]
    assert not execute(Plan(seed=seed, duration_s=12.0, faults=faults, acts=acts)).broken


@pytest.mark.usefixtures("without_marks")
def test_one_that_the_file_system_tells_from_its_original_is_another_node() -> None:
    assert not execute(plan(Restore(at=3.0, node="n3", copied_at=0.5, down_s=0.2))).broken


@pytest.mark.usefixtures("without_marks")
def test_data_of_a_lost_disk_is_not_expected() -> None:
    assert not execute(plan(SET_BACK, Wipe(at=3.1, node="n1", down_s=0.0))).broken
