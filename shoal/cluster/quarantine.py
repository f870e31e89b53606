"""Operations that cannot be applied: what is wrong with them, and what is left alone because of them.

Laws:
- An operation that is refused is put here; it and what follows it in its origin's log are not
  taken, and not asked for, until its time is over: that would bring the same again.
- A sound copy of it, once stored, ends that at once. Other origins are not held up.
- No more than `places_max` origins' logs are known here; past it the one that was put first is tried again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from shoal.cluster.delivery import Arrival
from shoal.cluster.messages import Shipment
from shoal.crdt.dot import ORIGIN_BYTES, Dot, Origin
from shoal.errors import BadOperation


class _Quarantined(NamedTuple):
    sequence: int
    until: float
    reason: str


class Quarantine:
    def __init__(self, *, places_max: int, duration_s: float) -> None:
        self._places_max = places_max
        self._duration_s = duration_s
        self._found: OrderedDict[tuple[int, Origin], _Quarantined] = OrderedDict()

    def put(self, partition: int, dot: Dot, reason: str, now: float) -> None:
        known = self._found.pop((partition, dot.origin), None)
        sequence = dot.sequence if known is None else min(dot.sequence, known.sequence)
        self._found[partition, dot.origin] = _Quarantined(sequence, now + self._duration_s, reason)
        while len(self._found) > self._places_max:
            self._found.popitem(last=False)

    def covers(self, partition: int, dot: Dot, now: float) -> bool:
        """Whether it is not to be taken: it, or what comes before it, was refused."""
        found = self._found.get((partition, dot.origin))
        return found is not None and dot.sequence >= found.sequence and now < found.until

    def sound_until(self, partition: int, origin: Origin, last: int, now: float) -> int:
        """The last sequence up to `last` that may be asked for."""
        found = self._found.get((partition, origin))
        return last if found is None or now >= found.until else min(last, found.sequence - 1)

    def stored(self, partition: int, dot: Dot) -> None:
        """A sound copy of an operation came."""
        found = self._found.get((partition, dot.origin))
        if found is not None and found.sequence == dot.sequence:
            del self._found[partition, dot.origin]

    def listed(self) -> list[str]:
        """What was refused and why, the newest last."""
        return [
            f"operation {found.sequence} of {origin.hex()} in partition {partition}: {found.reason}"
            for (partition, origin), found in self._found.items()
        ]


def check_context(arrival: Arrival) -> None:
    """
    Raises:
        BadOperation: it names what cannot come before it, and would wait for that for ever.
    """
    shipment, body, dot = arrival
    for origin, sequence in body.context:
        if len(origin) != ORIGIN_BYTES or not 0 < sequence < 1 << 63 or (origin == dot.origin and sequence >= dot.sequence):
            raise BadOperation(
                f"operation {dot.sequence} of origin {dot.origin.hex()} in partition {shipment.partition} says that it comes "
                f"after operation {sequence} of {origin.hex()[:40]}, which cannot be. Nothing of it was written.",
                reason="content",
            )


def taken(shipment: Shipment) -> BadOperation:
    """Another operation has this one's dot."""
    return BadOperation(
        f"operation {shipment.sequence} of origin {shipment.origin.hex()} in partition {shipment.partition} came with another "
        "content than before: two nodes write under one origin, or one was altered. Nothing of it was written. "
        "Compare the nodes with `shoal verify`.",
        reason="dot-taken",
    )
