"""Bugs in retiring the origins of past openings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import pytest

from shoal.cluster import knowledge
from shoal.cluster import truncation as stability
from shoal.cluster.knowledge import Parts
from shoal.cluster.truncation import Holding, Ripened
from shoal.crdt.dot import NOTHING_SEEN, Dot, Origin
from shoal.node import partitions as applier
from shoal.node.collection.retiring import Retiring
from shoal.node.incarnation import Incarnation
from shoal.node.partitions import Ahead, Partition
from shoal.node.retired import RetiredOrigins
from shoal.node.transaction import Transaction
from shoal.node.writes.issuing import Issuer
from shoal.storage import keys
from tests.mutants.mutant import Mutant

REOPENED = frozenset({"reopened"})


def retires_what_an_owner_lacks(patch: pytest.MonkeyPatch) -> None:
    def advanced_ripened(step: Ripened, ends: Collection[Dot], owners: Sequence[Holding]) -> Ripened:
        return Ripened(frozenset(ends))

    patch.setattr(stability, "advanced_ripened", advanced_ripened)
    patch.setattr(Retiring, "_may_retire", lambda self: True)


def drops_past_origins_without_telling(patch: pytest.MonkeyPatch) -> None:
    """A node retires for itself alone: no operation says so."""

    def retire(self: Issuer, number: int, origins: Iterable[Origin]) -> None:
        partition, transaction = self._partitions.load(number), Transaction(self._storage)
        origin = self._incarnation.current
        assert origin is not None
        retires = [(each, partition.tip(each).sequence) for each in sorted(origins)]
        ahead, tip = Ahead(partition), partition.tip(origin)
        applier.apply(transaction, ahead, Dot(origin, tip.sequence), hlc=tip.hlc, wall_ms=self._now_ms(), retires=retires)
        ahead.written(self._commit.write(transaction.rows))
        partition.durable = partition.durable.retire([each for each, _ in retires], partition.retired)

    patch.setattr(Issuer, "retire", retire)


def retired_origins_are_not_held(patch: pytest.MonkeyPatch) -> None:
    """What a peer or a client names of them is looked for."""
    patch.setattr(RetiredOrigins, "last", lambda self, origin: 0)


def retires_the_origins_of_others(patch: pytest.MonkeyPatch) -> None:
    def past_origins(self: Incarnation) -> list[Origin]:
        found = {Origin(key[3:]) for key, _ in self._storage.scan(keys.VECTOR, b"W")}
        return sorted(found - {self._origin})

    patch.setattr(Incarnation, "past_origins", past_origins)


def hashes_count_what_is_retired(patch: pytest.MonkeyPatch) -> None:
    def part(self: Parts, partition: int) -> bytes:
        vector = self._replica.durable(partition)
        before, total = self._made.get(partition, (NOTHING_SEEN, 0))
        for origin, sequence in vector.since(before).items():
            total += knowledge._hashed(Dot(origin, sequence))
            total -= knowledge._hashed(Dot(origin, before[origin])) if origin in before else 0
        self._made[partition] = vector, total
        return (total % knowledge._MODULUS).to_bytes(knowledge.PART_BYTES, "big")

    patch.setattr(Parts, "_part", part)


def cursors_do_not_say_what_was_retired(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "shown", property(lambda self: self.vector))


MUTANTS = (
    Mutant(
        retires_what_an_owner_lacks,
        "an origin is retired although an owner lacks some of it",
        ("4", "22"),
        "composed",
        REOPENED,
    ),
    Mutant(
        drops_past_origins_without_telling,
        "a node forgets its past origins and tells nobody",
        ("4", "19"),
        "composed",
        REOPENED,
    ),
    Mutant(
        retired_origins_are_not_held,
        "a node looks for what it has retired",
        ("4", "6", "7", "9", "11"),
        "composed",
        REOPENED,
    ),
    Mutant(retires_the_origins_of_others, "a node retires the origin under which another writes", ("4",), "composed", REOPENED),
    Mutant(hashes_count_what_is_retired, "vectors that are equal have different hashes", ("4",), "composed", REOPENED),
    Mutant(cursors_do_not_say_what_was_retired, "a reader gets events again", ("7", "2"), "composed", REOPENED),
)
