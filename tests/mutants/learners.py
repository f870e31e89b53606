"""Bugs that let a node which may have forgotten count."""

from __future__ import annotations

import pytest

from shoal.cluster.replication import Replication
from shoal.crdt.dot import Origin
from shoal.node import rebuilding
from shoal.node.members import Members
from shoal.node.opening import Opening
from shoal.node.quorum import Quorum
from shoal.node.transaction import Transaction
from tests.mutants.mutant import Mutant


def a_learner_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replication, "is_member", lambda self, peer: bool(peer) and self._state(peer).linked)
    patch.setattr(Quorum, "is_learner", False)


def one_other_is_enough_to_learn_from(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Members, "others_needed", 1)


def a_copy_writes_at_once(patch: pytest.MonkeyPatch) -> None:
    sound = Opening.origin

    def origin(self: Opening, transaction: Transaction) -> Origin:
        self._issues = True
        return sound(self, transaction)

    patch.setattr(Opening, "origin", origin)
    patch.setattr(rebuilding, "unreadable", lambda rows: [])  # What it builds on would be supplied to the others.


MUTANTS = (
    Mutant(
        a_copy_writes_at_once,
        "a restored copy builds on what all others have erased, and they do not ask for it",
        ("4",),
        "composed",
    ),
    Mutant(a_learner_counts, "a node that has forgotten counts in quorums", ("3", "14"), "composed"),
    Mutant(one_other_is_enough_to_learn_from, "a learner asks one other owner alone", ("3", "14"), "composed"),
)
