"""Bugs in what is counted for `quorum` and `all`."""

from __future__ import annotations

import pytest

from shoal.crdt.dot import VersionVector
from shoal.node.peers.members import Members
from shoal.node.peers.quorum import Quorum
from tests.mutants.mutant import Mutant


def a_quorum_counts_itself_twice(patch: pytest.MonkeyPatch) -> None:
    sound = Quorum._holders

    def holders(self: Quorum, partition: int, wanted: VersionVector) -> list[str]:
        return [self._config.advertise, *sound(self, partition, wanted)]

    patch.setattr(Quorum, "_holders", holders)


def a_quorum_counts_who_is_linked(patch: pytest.MonkeyPatch) -> None:
    def holders(self: Quorum, partition: int, wanted: VersionVector) -> list[str]:
        return [member.address for member in self.members.all if member.outlet is not None]

    patch.setattr(Quorum, "_holders", holders)


def a_quorum_that_is_late_is_taken_for_made(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Quorum, "_late", lambda self, *_: None)


def a_quorum_of_those_in_sight(patch: pytest.MonkeyPatch) -> None:
    def needed(self: Members, durability: str) -> int:
        seen = 1 + len(self.linked_nodes)
        return seen if durability == "all" else seen // 2 + 1

    patch.setattr(Members, "needed", needed)


def all_is_a_majority(patch: pytest.MonkeyPatch) -> None:
    sound = Members.needed
    patch.setattr(Members, "needed", lambda self, durability: sound(self, "quorum"))


MUTANTS = (
    Mutant(a_quorum_counts_itself_twice, "a node counts itself twice for a quorum", ("3",)),
    Mutant(a_quorum_counts_who_is_linked, "a quorum counts who can be reached, not who holds the write", ("3",)),
    Mutant(a_quorum_that_is_late_is_taken_for_made, "a quorum that was not reached in time is acknowledged", ("3",)),
    Mutant(a_quorum_of_those_in_sight, "a majority is counted over the nodes in sight", ("3",)),
    Mutant(all_is_a_majority, "`all` is acknowledged by a majority", ("3",)),
)
