"""Bugs that let a directory which was set back as a whole pass for what it was, or keep a new one out."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import pytest

from shoal.cluster.peer_state import Mark
from shoal.cluster.peering import Identity, Outlet
from shoal.cluster.replication import Replication
from shoal.node.peers.replicator import Replicator
from shoal.storage import keys
from tests.mutants.mutant import Mutant


def marks_are_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Mark, "note", lambda self, partition, vector: None)


def a_node_that_was_set_back_counts_at_once(patch: pytest.MonkeyPatch) -> None:
    """It is told, and neither it nor who told it draws the conclusion."""

    def is_member(self: Replication, peer: bytes) -> bool:
        return bool(peer) and self._state(peer).member

    patch.setattr(Replication, "is_member", is_member)
    patch.setattr(Replication, "_hear", lambda self, peer, state, message: None)


def a_mark_outlives_its_directory(patch: pytest.MonkeyPatch) -> None:
    """The new directory at its address is to hold what nobody says of it any more."""
    sound, sound_linked = Replication.is_member, Replicator.linked
    new: WeakKeyDictionary[Replication, set[bytes]] = WeakKeyDictionary()

    def linked(self: Replicator, peer: Identity, outlet: Outlet, /) -> None:
        before = {member.node for member in self.quorum.members.all if member.address == outlet.address}
        if before - {b"", peer.node}:
            new.setdefault(self._protocol, set()).add(peer.node)
        sound_linked(self, peer, outlet)

    def is_member(self: Replication, peer: bytes) -> bool:
        return sound(self, peer) and peer not in new.get(self, ())

    patch.setattr(Replicator, "linked", linked)
    patch.setattr(Replication, "is_member", is_member)


def marks_keep_what_was_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A node that restarts before its marks are recorded again tells a peer that it was set back."""
    patch.setattr(keys, "without", lambda storage, partition, origins: {})


MUTANTS = (
    Mutant(marks_are_not_kept, "nodes do not remember what their peers held", ("19",)),
    Mutant(a_node_that_was_set_back_counts_at_once, "a node that was set back is told so, and counts at once", ("19",)),
    Mutant(a_mark_outlives_its_directory, "the mark of a lost directory keeps the new one out for ever", ("4", "9", "15")),
    Mutant(marks_keep_what_was_forgotten, "marks name origins that are retired and forgotten", ("19",), "mixed"),
)
