"""Causal delivery: which of the arriving operations may be applied now, which wait, and which can never be applied.

Laws:
- Operations are handed out when they are causally ready, in order: so a
  replica's vector is always a contiguous, causally closed prefix.
- An early operation waits here, outside vector and state, within `bytes_max`, and of one partition within
  `EARLY_PARTITION_BYTES`: all that become ready by one operation are applied in one step. Beyond these
  the newcomer is dropped, and so is an operation that has waited too long (`expire`). A dropped one is
  fetched again when it is missed, unless it depends on operations that were lost with its node's disk.
- HLC order is a causal order, so one pass over the waiting operations finds all that are ready. It looks at the next one
  of each origin alone: a node that catches up beside many writes does not look through all that waits, again and again.
- A refused operation is quarantined with the peer that sent it: from that peer it and all that follow it in its origin's log
  are neither taken nor asked for, until its time is over, because they would fail again. What others send is taken: a peer
  that lies shuts nobody's origin out but from itself.
- Of two operations under one dot that its origin's own directory and another peer sent, the directory's waits. Of two that
  others sent, the later one does: it is the answer to a question, since what another peer sent is asked for again.
- Once a sound copy of it is stored, the quarantine ends at once. Other origins are not held up.
- At most `places_max` logs are quarantined, one for each sender. Beyond that the oldest quarantine ends early.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import takewhile
from typing import Any

from shoal.cluster.messages import Shipment
from shoal.cluster.operation import Body, Reach, Readiness, readiness
from shoal.crdt.dot import ORIGIN_BYTES, Dot, Origin, VersionVector, belongs
from shoal.errors import BadOperation, ShoalError
from shoal.records import NamedTuple

EARLY_PARTITION_BYTES = 512 * 1024  # Of one partition, that wait; the first may exceed it. Some 800 small ones.
OVERHEAD_BYTES = 500  # The memory that an operation takes beside its bytes.


class Arrival(NamedTuple):
    """An operation that came from a peer."""

    shipment: Shipment
    body: Body
    dot: Dot
    changes: Any = None  # What its payload holds, if that was decoded already; opaque here.
    sender: bytes = b""  # The peer that sent it, if it waits or has waited.

    @property
    def bytes(self) -> int:
        """The memory that it takes while it waits, about."""
        return len(self.shipment.packed) + len(self.shipment.attached) + OVERHEAD_BYTES


class Refused(NamedTuple):
    """An operation that came from a peer, and what is wrong with its bytes."""

    shipment: Shipment
    error: ShoalError


class Sorted(NamedTuple):
    """Some arrivals, by what to do with them."""

    ready: list[Arrival]  # Apply them, in this order. Some may have waited since an earlier call.
    again: list[Arrival]  # Applied before, or waiting already.
    early: list[Arrival]  # An operation before them is missing. They were kept, or dropped for lack of room.


class Delivery:
    """`applied` returns a partition's vector. Operations that were handed out must be applied before the next call."""

    def __init__(self, applied: Callable[[int], VersionVector], *, bytes_max: int) -> None:
        self._applied = applied
        self._bytes_max = bytes_max
        self._bytes = 0
        self._of: dict[int, int] = {}  # The same, by partition.
        self._waiting: dict[int, dict[Origin, list[int]]] = {}  # By partition and origin: a heap of sequence numbers.
        self._dots: dict[tuple[int, Dot], Arrival] = {}
        self._also: dict[tuple[int, Dot], set[bytes]] = {}  # Who else sent the same.
        self._since: dict[tuple[int, Dot], float] = {}  # In the order in which they came.

    def __len__(self) -> int:
        return len(self._dots)

    @property
    def waiting_bytes(self) -> int:
        """The memory that the waiting operations take, at most `bytes_max`."""
        return self._bytes

    def take(self, arrivals: Iterable[Arrival], now: float = 0.0, *, sender: bytes = b"") -> Sorted:
        """Sort arrivals, and hand out the ready ones along with those that waited for them. `now` is for `expire`."""
        found = Sorted([], [], [])
        reached: dict[int, Reach] = {}
        for arrival in arrivals:
            partition = arrival.shipment.partition
            reach = reached.get(partition)
            if reach is None:
                reach = reached[partition] = Reach(self._applied(partition))
            state = readiness(reach, arrival.dot, arrival.body.context)
            if state is Readiness.READY:
                found.ready.append(arrival)
                reach.take(arrival.dot)
            elif state is Readiness.SEEN:
                found.again.append(arrival)
            else:
                self._keep(arrival, found, now, sender)
        for partition, reach in reached.items():
            if partition in self._waiting and reach:
                self._release(partition, reach, found)
        return found

    def _keep(self, arrival: Arrival, found: Sorted, now: float, sender: bytes) -> None:
        place = arrival.shipment.partition, arrival.dot
        if place in self._dots:
            found.again.append(arrival)
            self._also.setdefault(place, set()).add(sender)
            return
        found.early.append(arrival)
        size, of = arrival.bytes, self._of.get(place[0], 0)
        if self._bytes + size <= self._bytes_max and (not of or of + size <= EARLY_PARTITION_BYTES):
            self._bytes += size
            self._of[place[0]] = of + size
            self._dots[place] = arrival._replace(changes=None, sender=sender)  # Its bytes alone are counted.
            self._since[place] = now
            queues = self._waiting.setdefault(place[0], {})
            heappush(queues.setdefault(arrival.dot.origin, []), arrival.dot.sequence)

    def _release(self, partition: int, reach: Reach, found: Sorted) -> None:
        """Hand out the operations that waited for those in `found`, and drop those that were applied by another way."""
        queues = self._waiting[partition]
        heads: list[tuple[int, Dot]] = []  # By HLC: the next operation of each origin, if it is here.
        for origin in list(queues):
            self._advance(partition, origin, reach, heads)
        while heads:
            dot = heappop(heads)[1]
            arrival = self._dots[partition, dot]
            if readiness(reach, dot, arrival.body.context) is Readiness.READY:
                self._forget(partition, arrival)
                found.ready.append(arrival)
                reach.take(dot)
                self._advance(partition, dot.origin, reach, heads)
        if not queues:
            del self._waiting[partition]

    def _advance(self, partition: int, origin: Origin, reach: Reach, heads: list[tuple[int, Dot]]) -> None:
        """Drop what was applied of an origin, and put its next operation among `heads`."""
        queue, held = self._waiting[partition][origin], reach[origin]
        while queue and queue[0] <= held:
            applied = self._dots.get((partition, Dot(origin, heappop(queue))))
            if applied is not None:
                self._forget(partition, applied)
        if not queue:
            del self._waiting[partition][origin]
        elif queue[0] == held + 1:
            dot = Dot(origin, queue[0])
            heappush(heads, (self._dots[partition, dot].body.hlc, dot))

    def waits(self, partition: int, dot: Dot) -> Arrival | None:
        """The operation that waits under `dot`, if one does."""
        return self._dots.get((partition, dot))

    def gives_way(self, arrival: Arrival, sender: bytes) -> bool:
        """Whether what waits under a dot, with other content, is dropped for what this peer sends."""
        dot = arrival.dot
        before = self._dots[arrival.shipment.partition, dot].sender
        return sender != before and (belongs(dot.origin, sender) or not belongs(dot.origin, before))

    def need_not_come(self, partition: int, dot: Dot, peer: bytes) -> bool:
        """Whether `peer` need not be asked for an operation: its own copy waits here, or that of the origin's directory."""
        place = partition, dot
        waiting = self._dots.get(place)
        if waiting is None:
            return False
        return waiting.sender == peer or peer in self._also.get(place, ()) or belongs(dot.origin, waiting.sender)

    def withdraw(self, partition: int, dot: Dot) -> None:
        """Forget the operation that waits under `dot`."""
        self._forget(partition, self._dots[partition, dot])
        queues = self._waiting[partition]
        queues[dot.origin].remove(dot.sequence)
        heapify(queues[dot.origin])
        if not queues[dot.origin]:
            del queues[dot.origin]
        if not queues:
            del self._waiting[partition]

    def drop_log(self, partition: int, origin: Origin, sender: bytes) -> None:
        """Forget what waits of one log and came from this peer."""
        for sequence in list(self._waiting.get(partition, {}).get(origin, ())):
            if self._dots[partition, Dot(origin, sequence)].sender == sender:
                self.withdraw(partition, Dot(origin, sequence))

    def drop(self, partition: int) -> None:
        """Forget the operations that wait in a partition."""
        for origin, queue in self._waiting.pop(partition, {}).items():
            for sequence in queue:
                self._forget(partition, self._dots[partition, Dot(origin, sequence)])

    def is_waiting(self, partition: int) -> bool:
        """Whether operations of a partition wait for others."""
        return partition in self._waiting

    def drop_of(self, directory: bytes) -> None:
        """Forget the waiting operations that the directory with this id issued."""
        for partition, queues in list(self._waiting.items()):
            for origin in [origin for origin in queues if belongs(origin, directory)]:
                for sequence in queues.pop(origin):
                    self._forget(partition, self._dots[partition, Dot(origin, sequence)])
            if not queues:
                del self._waiting[partition]

    def clear(self) -> None:
        """Forget all operations that wait."""
        for partition in list(self._waiting):
            self.drop(partition)

    def expire(self, before: float) -> None:
        """Forget the operations that have waited since before this time."""
        old = [place for place, since in takewhile(lambda entry: entry[1] < before, self._since.items())]
        for partition, dot in old:
            self._forget(partition, self._dots[partition, dot])
        for partition, origin in {(partition, dot.origin) for partition, dot in old}:
            queues = self._waiting[partition]
            queue = [sequence for sequence in queues.pop(origin) if (partition, Dot(origin, sequence)) in self._dots]
            if queue:
                heapify(queue)
                queues[origin] = queue
            if not queues:
                del self._waiting[partition]

    def _forget(self, partition: int, arrival: Arrival) -> None:
        del self._dots[partition, arrival.dot]
        del self._since[partition, arrival.dot]
        self._also.pop((partition, arrival.dot), None)
        self._bytes -= arrival.bytes
        self._of[partition] -= arrival.bytes
        if not self._of[partition]:
            del self._of[partition]


class _Quarantined(NamedTuple):
    sequence: int
    until: float
    reason: str


class Quarantine:
    """The quarantined logs, by the peer that sent what was refused. Times are seconds on the caller's clock."""

    def __init__(self, *, places_max: int, duration_s: float) -> None:
        self._places_max = places_max
        self._duration_s = duration_s
        self._found: OrderedDict[tuple[int, Origin, bytes], _Quarantined] = OrderedDict()
        self._senders: dict[tuple[int, Origin], set[bytes]] = {}
        self.found: Mapping[tuple[int, Origin, bytes], _Quarantined] = self._found
        """By partition, origin and sender. Mostly there is none, and nothing else is asked."""

    def put(self, partition: int, dot: Dot, reason: str, now: float, *, sender: bytes) -> None:
        """Quarantine an operation and all that follow it in its origin's log, from now for `duration_s`."""
        place = partition, dot.origin, sender
        known = self._found.pop(place, None)
        sequence = dot.sequence if known is None else min(dot.sequence, known.sequence)
        self._found[place] = _Quarantined(sequence, now + self._duration_s, reason)
        self._senders.setdefault((partition, dot.origin), set()).add(sender)
        while len(self._found) > self._places_max:
            self._end(next(iter(self._found)))

    def covers(self, partition: int, dot: Dot, now: float, *, sender: bytes) -> bool:
        """Whether the operation must not be taken from this peer: it, or one before it, is quarantined."""
        found = self._found.get((partition, dot.origin, sender))
        return found is not None and dot.sequence >= found.sequence and now < found.until

    def sound_until(self, partition: int, origin: Origin, last: int, now: float, *, sender: bytes) -> int:
        """The last sequence up to `last` for which this peer may be asked."""
        found = self._found.get((partition, origin, sender))
        return last if found is None or now >= found.until else min(last, found.sequence - 1)

    def stored(self, partition: int, dot: Dot, count: int = 1) -> None:
        """End the quarantine of an operation of which a sound copy was stored: `count` of its origin were, up to `dot`."""
        for sender in list(self._senders.get((partition, dot.origin), ())):
            place = partition, dot.origin, sender
            if dot.sequence - count < self._found[place].sequence <= dot.sequence:
                self._end(place)

    def replaced(self, partition: int, held: VersionVector) -> None:
        """End the quarantines of operations that this replica holds now, because a snapshot brought them."""
        for place, found in list(self._found.items()):
            if place[0] == partition and held[place[1]] >= found.sequence:
                self._end(place)

    def listed(self) -> list[str]:
        """The refused operations with the reasons, for people; the newest last."""
        told = (
            f"operation {found.sequence} of {origin.hex()} in partition {partition}: {found.reason}"
            for (partition, origin, _), found in self._found.items()
        )
        return list(dict.fromkeys(told))

    def _end(self, place: tuple[int, Origin, bytes]) -> None:
        del self._found[place]
        partition, origin, sender = place
        senders = self._senders[partition, origin]
        senders.discard(sender)
        if not senders:
            del self._senders[partition, origin]


def check_context(arrival: Arrival) -> None:
    """Check that an operation can become ready.

    Raises:
        BadOperation: its context names impossible operations, so it would wait forever.
    """
    shipment, body, dot, *_ = arrival
    for origin, sequence in body.context:
        if len(origin) != ORIGIN_BYTES or not 0 < sequence < 1 << 63 or (origin == dot.origin and sequence >= dot.sequence):
            raise BadOperation(
                f"operation {dot.sequence} of origin {dot.origin.hex()} in partition {shipment.partition} claims to follow "
                f"operation {sequence} of {origin.hex()[:40]}, which cannot be. Nothing of it was written.",
                reason="content",
            )


def taken(shipment: Shipment) -> BadOperation:
    """The error for an operation whose dot another operation has."""
    return BadOperation(
        f"operation {shipment.sequence} of origin {shipment.origin.hex()} in partition {shipment.partition} came with another "
        "content than before: two nodes write under one origin, or one was altered. Nothing of it was written. "
        "Compare the nodes with `shoal verify`.",
        reason="dot-taken",
    )
