"""What is owed after losses: every promise to the letter, and nothing more."""

from __future__ import annotations

import pytest

from shoal.protocol.requests import Durability
from simulation.judging.history import Acknowledged, Event, History, Invoked, Shown
from simulation.judging.obligations import Losses, owed
from simulation.plan import CorruptBlock, Crash, CrashAt, Fault, FullDisk, Pause, Plan, Restore, Stop, Wipe

WIPE = Wipe(at=5.0, node="n1")


def is_owed(durability: Durability, *faults: Fault, at_s: float = 1.0, nodes: int = 3) -> bool:
    """Whether a write that n1 acknowledged `at_s` is owed after these faults."""
    plan = Plan(seed=1, nodes=nodes, faults=list(faults))
    events: list[Event] = [Invoked(1, "add", "a", durability=durability), Acknowledged(1, node="n1", at_s=at_s)]
    return bool(owed(History(events), Losses(plan)).acknowledged)


@pytest.mark.parametrize(
    "fault", [Crash(at=5.0, node="n1"), CrashAt(at=0.5, node="n1", point="synced"), FullDisk(at=5.0, node="n1")]
)
def test_a_crash_takes_nothing_but_memory(fault: Fault) -> None:
    assert not is_owed("memory", fault)
    assert all(is_owed(durability, fault) for durability in ("local", "quorum", "all"))


@pytest.mark.parametrize("fault", [Stop(at=5.0, node="n1"), Pause(at=5.0, node="n1"), Crash(at=5.0, node="n2")])
def test_memory_is_owed_while_its_node_is_not_struck(fault: Fault) -> None:
    assert is_owed("memory", fault)


@pytest.mark.parametrize(
    "fault", [WIPE, Restore(at=5.0, node="n1", copied_at=2.0), CorruptBlock(at=5.0, node="n1")], ids=["wiped", "old", "corrupt"]
)
def test_a_lost_disk_takes_what_only_it_was_known_to_hold(fault: Fault) -> None:
    assert not is_owed("local", fault)
    assert is_owed("local", fault, at_s=40.0), "its new disk is its own again"
    assert is_owed("quorum", fault)
    assert is_owed("all", fault)


def test_a_disk_that_was_set_back_keeps_what_is_written_to_it_since() -> None:
    fault = Restore(at=5.0, node="n1", copied_at=2.0, whole=True)
    assert not is_owed("local", fault, at_s=7.0), "it may have been on its way since before the fault"
    assert is_owed("local", fault, at_s=9.0)


def test_a_quorum_is_owed_after_the_loss_of_a_minority_and_no_more() -> None:
    other = Wipe(at=6.0, node="n2")
    assert is_owed("quorum", WIPE, other, nodes=5)
    assert not is_owed("quorum", WIPE, other, nodes=3)


def test_all_is_owed_while_one_disk_is_left() -> None:
    wiped = [Wipe(at=5.0, node=node) for node in ("n1", "n2", "n3")]
    assert is_owed("all", *wiped[:2])
    assert not is_owed("all", *wiped)


def test_a_write_acknowledged_by_another_node_is_owed_too() -> None:
    events: list[Event] = [
        Invoked(1, "add", "a"),
        Acknowledged(1, node="n1", at_s=1.0),
        Acknowledged(1, node="n2", at_s=1.0, again=True),
    ]
    assert owed(History(events), Losses(Plan(seed=1, faults=[WIPE]))).acknowledged[1].node == "n2"


def test_data_shown_by_a_lost_disk_is_not_owed() -> None:
    shown = [Shown("s", "append", "a", numbers=[number], node=node, at_s=1.0) for number, node in ((1, "n1"), (2, "n2"))]
    left = owed(History([Invoked(1, "append", "a"), Invoked(2, "append", "a"), *shown]), Losses(Plan(seed=1, faults=[WIPE])))
    assert list(left.seen_numbers.values()) == [{2}]
