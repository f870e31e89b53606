"""The progress of loops: per key a number that only grows.

Law: the greatest generation counts alone, and of it the greatest place. A loop that
starts again begins a generation.

Rows (within the thread's):
    K 0x02 key         generation₈ place₈
"""

from __future__ import annotations

import msgspec

from shoal.crdt.rows import Rows, Stamp
from shoal.records import NamedTuple

PLACE = b"K\x02"
NUMBER_MAX = 2**63 - 1


class Reach(msgspec.Struct, array_like=True, frozen=True, tag="reach"):
    """The mutation: a loop has come to a place."""

    key: str
    generation: int
    place: int


class LoopProgress(NamedTuple):
    """The progress of one loop. Tuples compare as the law says."""

    generation: int = 0
    place: int = 0


def apply(rows: Rows, _stamp: Stamp, change: Reach) -> None:
    """Record the place, if it is beyond the known one."""
    reached = LoopProgress(change.generation, change.place)
    if reached > find(rows, change.key):
        rows.put(PLACE + change.key.encode(), reached.generation.to_bytes(8, "big") + reached.place.to_bytes(8, "big"))


def find(rows: Rows, key: str) -> LoopProgress:
    """The progress of a loop; all zeros if it was never recorded."""
    stored = rows.get(PLACE + key.encode())
    return (
        LoopProgress() if stored is None else LoopProgress(int.from_bytes(stored[:8], "big"), int.from_bytes(stored[8:], "big"))
    )


def count(rows: Rows, limit: int) -> int:
    """How many loops have recorded progress, up to `limit`."""
    return sum(1 for _ in rows.scan(PLACE, limit=limit))
