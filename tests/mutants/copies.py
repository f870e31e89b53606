"""Bugs in what is counted for `quorum` and `all`."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from shoal.crdt.dot import VersionVector
from shoal.node.peers.members import Members
from shoal.node.peers.quorum import Quorum
from tests.mutants.mutant import Mutant


def a_quorum_counts_itself_twice(patch: pytest.MonkeyPatch) -> None:
    def decides(self: Members, others: Collection[str], durability: str) -> bool:
        return all(len(group.others.intersection(others)) + 1 >= getattr(group, durability) for group in self._groups)

    patch.setattr(Members, "decides", decides)


def a_quorum_counts_who_is_linked(patch: pytest.MonkeyPatch) -> None:
    def holders(self: Quorum, partition: int, wanted: VersionVector) -> list[str]:
        return [member.address for member in self.members.all if member.outlet is not None]

    patch.setattr(Quorum, "_holders", holders)


def a_quorum_that_is_late_is_taken_for_made(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Quorum, "_late", lambda self, *_: None)


def a_quorum_of_those_in_sight(patch: pytest.MonkeyPatch) -> None:
    def decides(self: Members, others: Collection[str], durability: str) -> bool:
        seen = 1 + len(self.linked_nodes)
        return 1 + len(others) >= (seen if durability == "all" else seen // 2 + 1)

    patch.setattr(Members, "decides", decides)


def all_is_a_majority(patch: pytest.MonkeyPatch) -> None:
    sound = Members.decides
    patch.setattr(Members, "decides", lambda self, others, durability: sound(self, others, "quorum"))


MUTANTS = (
    Mutant(a_quorum_counts_itself_twice, "a node counts itself twice for a quorum", ("3",)),
    Mutant(a_quorum_counts_who_is_linked, "a quorum counts who can be reached, not who holds the write", ("3",)),
    Mutant(a_quorum_that_is_late_is_taken_for_made, "a quorum that was not reached in time is acknowledged", ("3",)),
    Mutant(a_quorum_of_those_in_sight, "a majority is counted over the nodes in sight", ("3",)),
    Mutant(all_is_a_majority, "`all` is acknowledged by a majority", ("3",)),
)
