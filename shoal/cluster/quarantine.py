"""Operations that cannot be applied: the reasons, and the operations that are left out because of them.

Laws:
- A refused operation is quarantined: it and all that follow it in its origin's log are neither
  taken nor asked for, until its time is over, because they would fail again.
- Once a sound copy of it is stored, the quarantine ends at once. Other origins are not held up.
- At most `places_max` origins' logs are quarantined. Beyond that the oldest quarantine ends early.
"""

from __future__ import annotations

from collections import OrderedDict

from shoal.cluster.delivery import Arrival
from shoal.cluster.messages import Shipment
from shoal.crdt.dot import ORIGIN_BYTES, Dot, Origin, VersionVector
from shoal.errors import BadOperation
from shoal.records import NamedTuple


class _Quarantined(NamedTuple):
    sequence: int
    until: float
    reason: str


class Quarantine:
    """The quarantined logs. Times are seconds on the caller's clock."""

    def __init__(self, *, places_max: int, duration_s: float) -> None:
        self._places_max = places_max
        self._duration_s = duration_s
        self._found: OrderedDict[tuple[int, Origin], _Quarantined] = OrderedDict()

    def put(self, partition: int, dot: Dot, reason: str, now: float) -> None:
        """Quarantine an operation and all that follow it in its origin's log, from now for `duration_s`."""
        known = self._found.pop((partition, dot.origin), None)
        sequence = dot.sequence if known is None else min(dot.sequence, known.sequence)
        self._found[partition, dot.origin] = _Quarantined(sequence, now + self._duration_s, reason)
        while len(self._found) > self._places_max:
            self._found.popitem(last=False)

    def covers(self, partition: int, dot: Dot, now: float) -> bool:
        """Whether the operation must not be taken: it, or one before it, is quarantined."""
        found = self._found.get((partition, dot.origin))
        return found is not None and dot.sequence >= found.sequence and now < found.until

    def sound_until(self, partition: int, origin: Origin, last: int, now: float) -> int:
        """The last sequence up to `last` that may be asked for."""
        found = self._found.get((partition, origin))
        return last if found is None or now >= found.until else min(last, found.sequence - 1)

    def stored(self, partition: int, dot: Dot, count: int = 1) -> None:
        """End the quarantine of an operation of which a sound copy was stored: `count` of its origin were, up to `dot`."""
        found = self._found.get((partition, dot.origin))
        if found is not None and dot.sequence - count < found.sequence <= dot.sequence:
            del self._found[partition, dot.origin]

    def replaced(self, partition: int, held: VersionVector) -> None:
        """End the quarantines of operations that this replica holds now, because a snapshot brought them."""
        for place, found in list(self._found.items()):
            if place[0] == partition and held[place[1]] >= found.sequence:
                del self._found[place]

    def listed(self) -> list[str]:
        """The refused operations with the reasons, for people; the newest last."""
        return [
            f"operation {found.sequence} of {origin.hex()} in partition {partition}: {found.reason}"
            for (partition, origin), found in self._found.items()
        ]


def check_context(arrival: Arrival) -> None:
    """Check that an operation can become ready.

    Raises:
        BadOperation: its context names impossible operations, so it would wait forever.
    """
    shipment, body, dot = arrival
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
