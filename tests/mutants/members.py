"""Bugs in changes of the members, and in what follows when a directory is removed."""

from __future__ import annotations

from typing import NamedTuple, cast

import pytest
from msgspec.structs import replace

from shoal.cluster.knowledge import Knowledge
from shoal.cluster.membership.epochs import Record
from shoal.cluster.peering import Identity
from shoal.cluster.truncation import Holding
from shoal.node.collection import retiring as orphans
from shoal.node.collection.retiring import Orphans
from shoal.node.incarnation import Incarnation
from shoal.node.membership.roster import Roster
from shoal.node.partitions import Partition
from shoal.node.peers.admission import Admission
from shoal.node.peers.memberships import Memberships
from shoal.node.peers.quorum import Quorum
from shoal.node.replicas import Estate, Replicas
from tests.mutants.mutant import Mutant

REMOVED = frozenset({"left", "replaced"})
BEGINS = frozenset({"born_apart", "wiped", "left"})
FORGOTTEN = frozenset({"left", "replaced", "disowned"})


def an_empty_directory_takes_what_it_hears(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Roster, "takes", lambda self, epoch: True)


def a_drained_node_hands_nothing_over(patch: pytest.MonkeyPatch) -> None:
    """The others are done with it once they hold what a majority of the old list does."""
    sound = Admission.is_caught_up.fget  # type: ignore[attr-defined]

    def is_caught_up(self: Admission) -> bool:
        record = self._members.roster.record
        if record.change is None or not record.change.hands_over:
            return bool(sound(self))
        alone = replace(record.change, hands_over=False)
        self._members.roster.record = replace(record, change=alone)
        try:
            return bool(sound(self))
        finally:
            self._members.roster.record = record

    patch.setattr(Admission, "is_caught_up", property(is_caught_up))


def a_leaving_node_goes_on_writing(patch: pytest.MonkeyPatch) -> None:
    sound = Roster._barred

    def barred(self: Roster, record: Record) -> str:
        return "" if self._state(record) == "leaving" else sound(self, record)

    patch.setattr(Roster, "_barred", barred)


def a_change_is_done_before_the_others_hold_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "is_caught_up", property(lambda self: self._protocol.learning is None))


def members_that_are_away_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """When origins of removed directories are retired."""
    sound = Quorum.estate.fget  # type: ignore[attr-defined]

    def estate(self: Quorum) -> Estate:
        found: Estate = sound(self)
        return found._replace(is_open=bool(found.directories))

    patch.setattr(Quorum, "estate", property(estate))
    look = Orphans._look

    class Linked(NamedTuple):
        replicas: Replicas

        @property
        def estate(self) -> Estate:
            return self.replicas.estate

        def holdings(self, number: int) -> dict[str, Holding]:
            return {address: holding for address, holding in self.replicas.holdings(number).items() if holding.is_linked}

    async def look_at(self: Orphans, partition: Partition, replicas: Replicas, estate: Estate) -> bool:
        return await look(self, partition, cast(Replicas, Linked(replicas)), estate)

    patch.setattr(Orphans, "_look", look_at)


def an_heir_takes_all_origins_for_those_of_the_removed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(orphans, "belongs", lambda origin, directory: True)


def what_was_said_before_an_epoch_counts_in_it(patch: pytest.MonkeyPatch) -> None:
    """When origins of removed directories are retired."""
    patch.setattr(Knowledge, "begin_epoch", lambda self: None)


def an_empty_directory_serves_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Incarnation, "unproven", property(lambda self: False, lambda self, value: None), raising=False)


def a_member_that_answers_is_proof_enough(patch: pytest.MonkeyPatch) -> None:
    """Before the node holds what that member does."""
    sound = Memberships.linked

    def linked(self: Memberships, peer: Identity) -> None:
        sound(self, peer)
        self._roster._incarnation.unproven = False

    patch.setattr(Memberships, "linked", linked)


MUTANTS = (
    Mutant(
        an_empty_directory_serves_at_once,
        "a wiped node answers that there is nothing, and takes writes beside what there is",
        ("38",),
        "lives",
        BEGINS,
    ),
    Mutant(
        a_member_that_answers_is_proof_enough,
        "a wiped node serves before it is filled",
        ("38",),
        "lives",
        BEGINS,
    ),
    Mutant(
        an_empty_directory_takes_what_it_hears,
        "an empty directory gets operations before it is added, and can then never be",
        ("4", "9"),
        "members",
        REMOVED,
    ),
    Mutant(a_drained_node_hands_nothing_over, "what only a drained node had is lost", ("3", "5", "14"), "members", REMOVED),
    Mutant(
        a_leaving_node_goes_on_writing,
        "a drained node acknowledges what it hands over to nobody",
        ("3", "5", "14"),
        "members",
        REMOVED,
    ),
    Mutant(
        a_change_is_done_before_the_others_hold_everything,
        "a member leaves before the others hold what it acknowledged",
        ("3", "5", "14"),
        "members",
        REMOVED,
    ),
    Mutant(
        members_that_are_away_are_not_waited_for,
        "what a member has that is away is retired without it",
        ("4", "22"),
        "members",
        FORGOTTEN,
    ),
    Mutant(
        what_was_said_before_an_epoch_counts_in_it,
        "what a member got of a removed directory after it said what it holds is retired without it",
        ("4", "3a"),
        "members",
        FORGOTTEN,
    ),
    Mutant(
        an_heir_takes_all_origins_for_those_of_the_removed,
        "the origins under which members write are retired",
        ("4", "9", "22"),
        "members",
        FORGOTTEN,
    ),
)
