"""Members change while clients write and faults happen: the sound program keeps every promise, and planted bugs are found."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from shoal.cluster.consensus.ballots import Electorate
from shoal.cluster.membership.epochs import Record
from shoal.crdt.dot import Origin
from shoal.errors import ChangeUnderWay
from shoal.node.collection.retiring import Ripening
from shoal.node.incarnation import Incarnation
from shoal.node.membership.changes import Changes
from shoal.node.membership.roster import Roster
from shoal.node.partitions import Partition
from shoal.node.peers.admission import Admission
from shoal.node.peers.members import Members
from shoal.node.peers.quorum import Quorum
from shoal.node.replicas import Replicas
from simulation.memberships import drawn, hunt, run_plan

SEEDS = range(200)
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nodes warn of every fault that they meet."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.answers("removed-members-stay-in-vectors")
@pytest.mark.answers("members-change-safely", note="real nodes under drawn faults")
@pytest.mark.parametrize("seed", [1, 2, 12, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (0, *range(3, 12)))])
def test_every_promise_is_kept_while_members_change(seed: int) -> None:
    assert run_plan(seed) == []


def test_a_plan_is_drawn_from_its_seed() -> None:
    assert drawn(7) == drawn(7) != drawn(8)


# ── planted bugs ──────────────────────────────────────────────────────────────


def the_new_list_alone_decides_while_a_change_is_joint(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Record,
        "electorate",
        property(lambda self: Electorate((frozenset(self.target if self.change and self.change.is_joint else self.members),))),
    )


def a_joining_node_counts_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Record, "electorate", property(lambda self: Electorate((frozenset(self.target),))))


def a_node_joins_with_data_of_its_own(patch: pytest.MonkeyPatch) -> None:
    sound = Roster.__init__

    def init(self: Roster, *given: Any, **named: Any) -> None:
        sound(self, *given, **(named | {"is_empty": lambda: True}))

    patch.setattr(Roster, "__init__", init)


def a_removed_node_is_taken_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Members, "check", lambda self, peer, *, own: None)
    patch.setattr(Incarnation, "bar", lambda self, why, *, outside=False: None)


def a_change_is_done_before_the_new_list_holds_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "is_caught_up", property(lambda self: self._protocol.learning is None))


def only_the_node_that_was_asked_goes_on(patch: pytest.MonkeyPatch) -> None:
    sound = Changes.change

    async def change(self: Changes, *given: Any, **named: Any) -> Record:
        self.was_asked = True  # type: ignore[attr-defined]
        return await sound(self, *given, **named)

    patch.setattr(Changes, "change", change)
    patch.setattr(Changes, "_is_turn", lambda self, now: hasattr(self, "was_asked"))


def two_changes_at_once_are_both_taken(patch: pytest.MonkeyPatch) -> None:
    sound = Changes._set

    async def set_(self: Changes, record: Record, newer: Record) -> Record:
        try:
            return await sound(self, record, newer)
        except ChangeUnderWay:
            return newer

    patch.setattr(Changes, "_set", set_)


def a_copy_of_a_removed_directory_is_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Roster, "removal_of", lambda self, directory, originals=(): self.record.removal_of(directory))


def origins_are_retired_before_every_owner_holds_them(patch: pytest.MonkeyPatch) -> None:
    def ripe(self: Ripening, partition: Partition, found: Iterable[Origin], replicas: Replicas) -> set[Origin]:
        return set(found)

    patch.setattr(Ripening, "ripe", ripe)
    sound = Quorum.estate.fget  # type: ignore[attr-defined]
    patch.setattr(Quorum, "estate", property(lambda self: sound(self)._replace(is_open=True)))


BUGS: tuple[tuple[Plant, tuple[str, ...], tuple[int, ...]], ...] = (
    (the_new_list_alone_decides_while_a_change_is_joint, ("3", "8"), (50, 1)),
    (a_joining_node_counts_at_once, ("3", "8"), (26, 1)),
    (a_change_is_done_before_the_new_list_holds_everything, ("3",), (266, 41)),
    (only_the_node_that_was_asked_goes_on, ("9",), (73,)),
    (two_changes_at_once_are_both_taken, ("8",), (120, 148, 99)),
    (a_node_joins_with_data_of_its_own, ("16",), (4,)),
    (a_removed_node_is_taken_back, ("16",), (4,)),
    (a_copy_of_a_removed_directory_is_taken, ("16",), (74,)),
    (origins_are_retired_before_every_owner_holds_them, ("3", "4"), (41, 53)),
)
"""With the invariants that each breaks, and the seeds of plans that have found it. Others are tried after them: name one that
finds it once these do not, or the hunt takes minutes."""

LATE = (
    a_change_is_done_before_the_new_list_holds_everything,
    only_the_node_that_was_asked_goes_on,
    two_changes_at_once_are_both_taken,
    a_removed_node_is_taken_back,
    origins_are_retired_before_every_owner_holds_them,
)
"""These take over a second to be found."""


@pytest.mark.parametrize(
    ("plant", "invariants", "seeds"),
    [pytest.param(*bug, marks=pytest.mark.thorough if bug[0] in LATE else ()) for bug in BUGS],
    ids=[plant.__name__ for plant, _, _ in BUGS],
)
def test_a_planted_bug_is_found_by_a_drawn_plan(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, invariants: tuple[str, ...], seeds: tuple[int, ...]
) -> None:
    plant(monkeypatch)
    assert hunt((*seeds, *SEEDS), invariants) is not None
