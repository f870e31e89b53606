"""Bugs in who is asked, who is admitted, and how many owners there are."""

from __future__ import annotations

import pytest

from shoal.cluster.peer_state import Limits
from shoal.cluster.peering import Identity
from shoal.errors import PeerRefused
from shoal.node.peers import replica
from shoal.node.peers.members import Members
from shoal.node.peers.replicator import Replicator
from shoal.storage.interface import MemoryStorage
from tests.mutants.mutant import Mutant


def a_peer_that_does_not_answer_is_asked_first_again(patch: pytest.MonkeyPatch) -> None:
    sound = replica.limits_of

    def limits(*arguments: object) -> Limits:
        return sound(*arguments)._replace(pause_s_max=0.0)  # type: ignore[arg-type]

    patch.setattr("shoal.node.peers.replicator.limits_of", limits)


def an_address_that_leads_back_shrinks_the_quorum(patch: pytest.MonkeyPatch) -> None:
    sound = Replicator.admit

    def admit(self: Replicator, peer: Identity) -> None:
        try:
            sound(self, peer)
        except PeerRefused as refused:
            members = self.quorum.members
            away = next((member.address for member in members.all if member.outlet is None), None)
            if refused.detail.get("reason") == "self" and away is not None:
                del members._members[away]
                members.owners = members.all
                members._groups = [
                    group._replace(others=group.others - {away}, quorum=len(group.others) // 2, all=group.all - 1)
                    for group in members._groups
                ]
            raise

    patch.setattr(Replicator, "admit", admit)


def a_clone_is_admitted_under_any_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryStorage, "identity", property(lambda self: b"one for all", lambda self, identity: None), raising=False)
    patch.setattr(Members, "check", lambda self, peer, *, own: None)


MUTANTS = (
    Mutant(
        a_clone_is_admitted_under_any_name,
        "a copy of a directory counts as its original, under any name",
        ("3", "14", "17"),
        "composed",
        frozenset({"cloned"}),
    ),
    Mutant(
        a_peer_that_does_not_answer_is_asked_first_again,
        "one peer that cannot answer starves a node",
        ("9",),
        "composed",
        frozenset({"black_hole"}),
    ),
    Mutant(
        an_address_that_leads_back_shrinks_the_quorum,
        "an address that leads back counts for no owner",
        ("3",),
        "composed",
        frozenset({"misrouted"}),
    ),
)
