"""Bugs that let a node which may have forgotten count."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from shoal.cluster.fetching import Learning
from shoal.cluster.knowledge import Knowledge
from shoal.cluster.replication import Replication
from shoal.crdt.dot import Origin
from shoal.node.incarnation import Incarnation
from shoal.node.peers.members import Members
from shoal.node.peers.quorum import Quorum
from shoal.node.transaction import Transaction
from shoal.node.verification import rebuilding
from shoal.storage.interface import MemoryStorage
from tests.mutants.mutant import Mutant


def a_learner_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replication, "is_member", lambda self, peer: bool(peer) and self._state(peer).linked)
    patch.setattr(Quorum, "is_learner", False)


def one_other_is_enough_to_learn_from(patch: pytest.MonkeyPatch) -> None:
    sound = Members.teachers
    patch.setattr(Members, "teachers", property(lambda self: (sound.__get__(self)[0], 1, len(self.all))))


def a_copy_writes_at_once(patch: pytest.MonkeyPatch) -> None:
    sound = Incarnation.origin

    def origin(self: Incarnation, transaction: Transaction) -> Origin:
        self._issues = True
        return sound(self, transaction)

    patch.setattr(Incarnation, "origin", origin)
    patch.setattr(rebuilding, "unreadable", lambda rows: [])  # What it builds on would be supplied to the others.


def a_learner_counts_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Quorum, "is_learner", False)


def what_is_current_is_asked_of_learners(patch: pytest.MonkeyPatch) -> None:
    def answered(self: Quorum, partition: int, question: int) -> list[str]:
        told = self._told_by(partition, question)
        return [member.address for member in self.members.owners if member.node in told]

    patch.setattr(Quorum, "_answered", answered)
    patch.setattr(Quorum, "_countable", lambda self: [m.address for m in self.members.owners if m.outlet is not None])


def an_answer_of_a_learner_counts_once_it_is_none(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Knowledge, "confirmed", Knowledge.answered)


def a_learner_learns_from_learners(patch: pytest.MonkeyPatch) -> None:
    sound = Learning.is_done

    def is_done(self: Learning, others: Collection[bytes], *, needed: int, everyone: int, learners: Collection[bytes]) -> bool:
        return sound(self, others, needed=needed, everyone=everyone)

    patch.setattr(Learning, "is_done", is_done)


def a_copy_goes_on_as_its_original(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryStorage, "identity", property(lambda self: b"one for all", lambda self, identity: None), raising=False)


def a_copy_keeps_its_originals_origins(patch: pytest.MonkeyPatch) -> None:
    sound = Incarnation.introduction

    def introduction(self: Incarnation, *, has_others: bool = True) -> dict[bytes, bytes | None]:
        rows = sound(self, has_others=has_others)
        self._gave_up, self._issues = False, True
        return self._identified() if self.copied else rows

    patch.setattr(Incarnation, "introduction", introduction)


_LOSSES = frozenset({"forgotten", "stale_copy", "one_by_one"})

MUTANTS = (
    Mutant(
        a_copy_keeps_its_originals_origins,
        "a copy of a directory writes, and spends what its original had",
        ("2", "3", "4", "17"),
        "composed",
        frozenset({"cloned", "stale_copy"}),
    ),
    Mutant(
        a_copy_writes_at_once,
        "a restored copy builds on what all others have erased",
        ("4",),
        "composed",
        frozenset({"set_back"}),
    ),
    Mutant(a_learner_counts, "a node that has forgotten counts in quorums", ("3", "14"), "composed", _LOSSES),
    Mutant(one_other_is_enough_to_learn_from, "a learner asks one other owner alone", ("3", "14"), "composed", _LOSSES),
    Mutant(a_learner_counts_itself, "a learner asks a majority with itself among them", ("3", "14", "17"), "composed", _LOSSES),
    Mutant(
        what_is_current_is_asked_of_learners,
        "a learner's answer counts as a current one",
        ("3", "14", "16"),
        "composed",
        _LOSSES,
    ),
    Mutant(
        an_answer_of_a_learner_counts_once_it_is_none,
        "an answer that a node gave as a learner counts once the node is none",
        ("3", "14", "16"),
        "composed",
        _LOSSES,
    ),
    Mutant(
        a_learner_learns_from_learners,
        "two nodes that have forgotten learn from each other",
        ("3", "14"),
        "composed",
        frozenset({"forgotten"}),
        nodes_min=5,
    ),
    Mutant(
        a_copy_goes_on_as_its_original,
        "a copied directory is taken for its original",
        ("3", "14", "16", "17"),
        "composed",
        frozenset({"cloned", "stale_copy"}),
    ),
)
