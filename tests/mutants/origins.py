"""Bugs in what stands for many origins: frontiers, and hashes of vectors."""

from __future__ import annotations

from hashlib import sha256

import pytest

from shoal.cluster import knowledge
from shoal.cluster.operation import Tip
from shoal.crdt.dot import Dot, VersionVector
from shoal.node.partitions import Ahead
from tests.mutants.mutant import Mutant


def a_frontier_is_the_last_operation(patch: pytest.MonkeyPatch) -> None:
    sound = VersionVector.advance

    def advance(self: VersionVector, dot: Dot, knowing: VersionVector | None = None) -> VersionVector:
        grown = sound(self, dot)
        return grown if knowing is None else grown.with_frontier([dot.origin])

    patch.setattr(VersionVector, "advance", advance)


def a_stored_frontier_lacks_what_is_concurrent(patch: pytest.MonkeyPatch) -> None:
    sound = Ahead.take

    def take(self: Ahead, dot: Dot, tip: Tip, knowing: VersionVector) -> None:
        before = self.vector.frontier
        sound(self, dot, tip, knowing)
        for origin in before.keys() - {dot.origin}:
            known = self.tip(origin)
            self.tips[origin] = Tip(known.sequence, known.hlc, known.chain, known=True)

    patch.setattr(Ahead, "take", take)


def unequal_vectors_have_one_hash(patch: pytest.MonkeyPatch) -> None:
    def hashed(dot: Dot) -> int:
        return int.from_bytes(sha256(dot.origin).digest()[: knowledge.PART_BYTES], "big")

    patch.setattr(knowledge, "_hashed", hashed)


MUTANTS = (
    Mutant(
        a_frontier_is_the_last_operation,
        "what is concurrent with the last operation is in no context and no bookmark",
        ("2", "4", "7"),
    ),
    Mutant(a_stored_frontier_lacks_what_is_concurrent, "after a restart the same, for what was there before", ("2", "4", "7")),
    Mutant(unequal_vectors_have_one_hash, "two nodes find their vectors equal that differ in a sequence alone", ("3", "4")),
)
