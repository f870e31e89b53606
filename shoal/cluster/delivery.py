"""Causal delivery: which of the operations that arrive may be applied now, and which wait.

Laws:
- What is handed out is causally ready, in order, given what was applied: so a
  replica's vector is always a contiguous, causally closed prefix.
- What comes early waits here, outside vector and state, within `bytes_max`. Past it
  the newcomer is dropped, and so is what has waited for too long (`expire`): it is
  fetched again once it is missed, or depends on what was lost with its node's disk.
- HLC order is a causal order, so one pass over what waits finds all that is ready.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import NamedTuple

from shoal.cluster.messages import Shipment
from shoal.cluster.operation import Body, Readiness, readiness
from shoal.crdt.dot import Dot, VersionVector

OVERHEAD_BYTES = 500  # Of an operation as Python objects.


class Arrival(NamedTuple):
    """An operation that came from a peer."""

    shipment: Shipment
    body: Body
    dot: Dot

    @property
    def bytes(self) -> int:
        return len(self.shipment.packed) + len(self.shipment.attached) + OVERHEAD_BYTES


class Sorted(NamedTuple):
    """What became of some arrivals."""

    ready: list[Arrival]  # To be applied, in this order.
    again: list[Arrival]  # Applied before, or waiting already.
    early: list[Arrival]  # That were kept, or dropped: something before them is missing.
    vectors: dict[int, VersionVector]  # Of the partitions in `ready`, once they are applied.


class Delivery:
    """`applied` gives a partition's vector; what was handed out must be applied before the next call, or is missing from it."""

    def __init__(self, applied: Callable[[int], VersionVector], *, bytes_max: int) -> None:
        self._applied = applied
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiting: dict[int, list[tuple[int, Dot, Arrival]]] = {}  # By partition, in the order of (HLC, dot).
        self._dots: dict[tuple[int, Dot], Arrival] = {}
        self._since: dict[tuple[int, Dot], float] = {}  # In the order in which they came.

    def __len__(self) -> int:
        return len(self._dots)

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def take(self, arrivals: Iterable[Arrival], now: float = 0.0) -> Sorted:
        found = Sorted([], [], [], {})
        for arrival in arrivals:
            self._sort(arrival, found, now)
        for partition in list(found.vectors):
            self._release(partition, found)
        return found

    def _sort(self, arrival: Arrival, found: Sorted, now: float) -> None:
        partition = arrival.shipment.partition
        vector = found.vectors.get(partition) or self._applied(partition)
        match readiness(vector, arrival.dot, arrival.body.knowing()):
            case Readiness.READY:
                found.ready.append(arrival)
                found.vectors[partition] = vector.advance(arrival.dot)
            case Readiness.SEEN:
                found.again.append(arrival)
            case Readiness.EARLY:
                self._keep(arrival, found, now)

    def _keep(self, arrival: Arrival, found: Sorted, now: float) -> None:
        place = arrival.shipment.partition, arrival.dot
        if place in self._dots:
            found.again.append(arrival)
            return
        found.early.append(arrival)
        if self._bytes + arrival.bytes <= self._bytes_max:
            self._bytes += arrival.bytes
            self._dots[place] = arrival
            self._since[place] = now
            insort(
                self._waiting.setdefault(place[0], []), (arrival.body.hlc, arrival.dot, arrival), key=lambda entry: entry[:2]
            )

    def _release(self, partition: int, found: Sorted) -> None:
        """Hand out what waited for the operations in `found`, and drop what has come another way."""
        kept = []
        vector = found.vectors[partition]
        for entry in self._waiting.pop(partition, ()):
            arrival = entry[2]
            state = readiness(vector, arrival.dot, arrival.body.knowing())
            if state is Readiness.EARLY:
                kept.append(entry)
                continue
            self._forget(partition, arrival)
            if state is Readiness.READY:
                found.ready.append(arrival)
                vector = vector.advance(arrival.dot)
        found.vectors[partition] = vector
        if kept:
            self._waiting[partition] = kept

    def waits(self, partition: int, dot: Dot) -> Arrival | None:
        """What waits under `dot`."""
        return self._dots.get((partition, dot))

    def drop(self, partition: int) -> None:
        """Forget what waits in a partition."""
        for _, _, arrival in self._waiting.pop(partition, ()):
            self._forget(partition, arrival)

    def expire(self, before: float) -> None:
        """Forget what has waited since before then."""
        old = [place for place, since in takewhile(lambda entry: entry[1] < before, self._since.items())]
        for partition, dot in old:
            arrival = self._dots[partition, dot]
            kept = [entry for entry in self._waiting[partition] if entry[1] != dot]
            self._forget(partition, arrival)
            self._waiting[partition] = kept
            if not kept:
                del self._waiting[partition]

    def _forget(self, partition: int, arrival: Arrival) -> None:
        del self._dots[partition, arrival.dot]
        del self._since[partition, arrival.dot]
        self._bytes -= arrival.bytes
