"""Histories of operations among replicas that gossip, and their delivery in every causal order.

Laws:
- An operation carries a dot, an HLC and the context its origin had applied;
  a replica applies it once, and only when it has applied that context: early
  ones wait outside the rows, others again are known by the vector.
- Every choice is made by `choose(n)`, an integer from 0 to n − 1: a Hypothesis
  draw, or a seeded generator. Nothing else decides.
- The kit knows no data type: a change is whatever the type's `apply` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from shoal.crdt.dot import Dot, HybridClock, Origin, VersionVector
from shoal.crdt.rows import Rows, Stamp
from tests.support.rows import DictRows

Choose = Callable[[int], int]
Apply = Callable[[Rows, Stamp, Any], None]


class Operation(NamedTuple):
    """One or more changes to one object, applied together."""

    stamp: Stamp  # Of the first change.
    changes: tuple[Any, ...]

    def stamped(self) -> list[tuple[Stamp, Any]]:
        return [(self.stamp.at(nth), change) for nth, change in enumerate(self.changes)]


class Replica:
    """The rows of one object, and the rules of causal delivery around them."""

    def __init__(self, origin: Origin, apply: Apply) -> None:
        self.origin = origin
        self.rows = DictRows()
        self.vector = VersionVector()
        self.applied: list[Operation] = []
        self._apply = apply
        self._clock = HybridClock()
        self._early: list[Operation] = []

    def issue(self, changes: Sequence[Any], *, wall_ms: int) -> Operation:
        dot = Dot(self.origin, self.vector[self.origin] + 1)
        stamp = Stamp(dot, self._clock.issue(wall_ms), wall_ms, self.vector)
        operation = Operation(stamp, tuple(changes))
        self._fold(operation)
        return operation

    def receive(self, packet: Sequence[Operation]) -> None:
        """Apply what is new and ready, in the packet's order, and then what that makes ready."""
        self._early = self._new([*self._early, *packet])
        nth = 0
        while nth < len(self._early):
            if self._is_ready(self._early[nth]):
                self._fold(self._early.pop(nth))
                nth = 0
            else:
                nth += 1
        self._early = self._new(self._early)  # Without those that were there twice.

    def _new(self, operations: list[Operation]) -> list[Operation]:
        return [operation for operation in operations if not self.vector.covers(operation.stamp.dot)]

    def _is_ready(self, operation: Operation) -> bool:
        stamp = operation.stamp
        return self.vector[stamp.dot.origin] + 1 == stamp.dot.sequence and self.vector.dominates(stamp.context)

    def _fold(self, operation: Operation) -> None:
        self._clock.observe(operation.stamp.hlc)
        for stamp, change in operation.stamped():
            self._apply(self.rows, stamp, change)
        self.vector = self.vector.advance(operation.stamp.dot)
        self.applied.append(operation)


Decide = Callable[[Replica, list[Replica]], Sequence[Any]]
"""The changes that a replica issues next, given itself and all replicas (whose rows its client may have read)."""


def origin(number: int) -> Origin:
    return Origin(bytes([number]) * 16)


def history(choose: Choose, apply: Apply, decide: Decide, *, replicas: int = 3, steps: int = 12) -> list[Replica]:
    """Replicas after `steps` of issuing and random gossip, and a last exchange that leaves them with equal vectors.

    Clocks are skewed and may jump: each operation's wall time is drawn on its own.
    """
    # Origins in an order unrelated to who issues first, so that the least dot is often not the earliest.
    all_replicas = [Replica(origin(replicas - number), apply) for number in range(replicas)]
    for _ in range(steps):
        replica = all_replicas[choose(replicas)]
        if choose(3):
            replica.issue(decide(replica, all_replicas), wall_ms=1 + choose(8))
        else:
            _gossip(choose, source=all_replicas[choose(replicas)], sink=replica)
    everything = [operation for replica in all_replicas for operation in replica.applied]
    for replica in all_replicas:
        replica.receive(everything)
    return all_replicas


def deliver(choose: Choose, apply: Apply, operations: Sequence[Operation]) -> Replica:
    """A fresh replica that got `operations` in random packets, out of order and some of them twice."""
    replica = Replica(origin(0), apply)
    waiting = list(operations)
    while waiting:
        packet = [waiting.pop(choose(len(waiting))) for _ in range(1 + choose(min(4, len(waiting))))]
        if replica.applied and choose(2):
            packet.insert(choose(len(packet) + 1), replica.applied[choose(len(replica.applied))])
        replica.receive(packet)
    return replica


def check_converges(choose: Choose, apply: Apply, decide: Decide, *, deliveries: int = 3, steps: int = 12) -> list[Replica]:
    """Build a history and deliver it again; return its replicas.

    Raises:
        AssertionError: two replicas that applied the same operations hold different rows.
    """
    built = history(choose, apply, decide, steps=steps)
    operations = list(built[0].applied)
    fresh = [deliver(choose, apply, operations) for _ in range(deliveries)]
    expected = built[0]
    for replica in [*built[1:], *fresh]:
        assert replica.vector == expected.vector, f"vectors differ: {replica.vector} and {expected.vector}"
        assert replica.rows.canonical() == expected.rows.canonical(), (
            f"rows differ after equal operations: {replica.rows.canonical()} and {expected.rows.canonical()}; "
            f"{replica.applied} and {expected.applied}"
        )
    return built


def _gossip(choose: Choose, *, source: Replica, sink: Replica) -> None:
    """Some of what `source` knows, in a random slice: it may be early, and it may be known."""
    if source.applied:
        start = choose(len(source.applied))
        sink.receive(source.applied[start:] if choose(2) else source.applied[: start + 1])
