"""Bugs on the way between replicas: order, gaps, repetition, and what is never asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from shoal.cluster import delivery, operation
from shoal.cluster.delivery import Arrival
from shoal.cluster.knowledge import PART_BYTES, Parts
from shoal.cluster.operation import Reach, Readiness, readiness
from shoal.cluster.replication import Replication
from shoal.crdt.dot import Dot, HybridClock, VersionVector
from shoal.node.peers import incoming
from shoal.node.peers.incoming import _Ahead
from tests.mutants.mutant import Mutant

Vector = VersionVector | Reach
Context = Sequence[tuple[bytes, int]]


def _readiness(patch: pytest.MonkeyPatch, judged: Callable[[Vector, Dot, Context], Readiness]) -> None:
    """Let replicas take for ready what is not."""

    def take(self: Reach, dot: Dot) -> None:
        self._grown[dot.origin] = max(dot.sequence, self[dot.origin])

    patch.setattr(delivery, "readiness", judged)
    patch.setattr(Reach, "take", take)
    patch.setattr(VersionVector, "advance", lambda self, dot, knowing=None: self.join(VersionVector([dot])))
    patch.setattr(_Ahead, "follows", lambda self, arrival: True)


def a_hole_under_the_vector(patch: pytest.MonkeyPatch) -> None:
    def hasty(vector: Vector, dot: Dot, context: Context) -> Readiness:
        state = readiness(vector, dot, context)
        return Readiness.READY if state is Readiness.EARLY else state

    _readiness(patch, hasty)
    patch.setattr(operation, "chain", lambda *_: bytes(32))


def applied_again(patch: pytest.MonkeyPatch) -> None:
    def forgetful(vector: Vector, dot: Dot, context: Context) -> Readiness:
        state = readiness(vector, dot, context)
        return Readiness.READY if state is Readiness.SEEN else state

    _readiness(patch, forgetful)
    patch.setattr(incoming, "readiness", forgetful)
    patch.setattr(operation, "chain", lambda *_: bytes(32))
    patch.setattr("shoal.node.peers.incoming._check_body", lambda *_: None)


def dependencies_of_others_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    def alone(vector: Vector, dot: Dot, context: Context) -> Readiness:
        return readiness(vector, dot, ())

    def follows(self: _Ahead, arrival: Arrival) -> bool:
        return self.vector[arrival.dot.origin] + 1 == arrival.dot.sequence

    patch.setattr(delivery, "readiness", alone)
    patch.setattr(_Ahead, "follows", follows)


def vectors_are_not_asked_about(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replication, "_take_vectors", lambda self, *args, **options: None)


def digests_of_the_past(patch: pytest.MonkeyPatch) -> None:
    sound = Parts._part

    def part(self: Parts, partition: int) -> bytes:
        made = self._made.get(partition)
        return sound(self, partition) if made is None else (made[1] % 2**64).to_bytes(PART_BYTES, "big")

    patch.setattr(Parts, "_part", part)


def early_operations_without_a_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Arrival, "bytes", property(lambda self: 0))


def the_clock_is_not_led(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HybridClock, "observe", lambda self, hlc: None)


MUTANTS = (
    Mutant(a_hole_under_the_vector, "operations that come early are applied", ("2", "4")),
    Mutant(applied_again, "operations that come twice are applied twice", ("2", "4", "5", "6")),
    Mutant(
        dependencies_of_others_are_forgotten, "an operation is applied before those of others that it builds on", ("2", "4")
    ),
    Mutant(vectors_are_not_asked_about, "what pushes lost is never asked for", ("4",)),
    Mutant(digests_of_the_past, "a partition's hash is not made anew when its vector grows", ("3", "4")),
    Mutant(early_operations_without_a_bound, "what comes early waits without a bound", ("11",)),
    Mutant(the_clock_is_not_led, "a node's clock is not led by the operations that it applies", ("4", "6", "10")),
)
