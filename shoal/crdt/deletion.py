"""The deletion of an object: it ends a generation, and the next may begin.

Laws:
- Every change of an object belongs to the generation that its issuer knew as the
  current one, and names it. Each generation has rows of its own, as if it were an
  object of its own; only the current one's are shown.
- A deletion ends the generation that it names and all before it. So the current
  one is the greatest that was ended, plus one: a function of the set of deletions.
- A change of a generation that was ended is dead, whenever it arrives; what was begun
  anew after one deletion does not die by another of the same generation. So a
  deletion that is sent to two nodes counts once.

Row, one per object that was ever deleted, beside its generations' rows and kept for ever:
    00              generation₄ dot₂₄ hlc₈ wall_ms₈ [client₈ …]: the current one, the deletion that began it,
                    and the Yjs clients that it named; of several the one with the least dot
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from shoal.crdt.dot import DOT_BYTES, Dot
from shoal.crdt.rows import Rows, Stamp

ROW = b"\x00"
GENERATION_BYTES = 4
GENERATIONS_MAX = (1 << 8 * GENERATION_BYTES) - 1


class Delete(msgspec.Struct, array_like=True, frozen=True, tag="delete"):
    """The mutation: it ends the generation to which it belongs."""

    generation: int
    clients: list[int] = []  # Of a document: Yjs clients that edited what was ended, and may not edit what comes.


class Deletion(NamedTuple):
    """What `ROW` holds."""

    generation: int  # The current one; from 1.
    dot: Dot
    hlc: int
    wall_ms: int
    clients: tuple[int, ...] = ()


def apply(rows: Rows, stamp: Stamp, delete: Delete) -> bool:
    """`rows` are the object's, not a generation's. Returns whether a new generation is the current one."""
    before = last(rows)
    made = Deletion(delete.generation + 1, stamp.dot, stamp.hlc, stamp.wall_ms, tuple(delete.clients))
    if before is None or before.generation < made.generation:
        rows.put(ROW, _pack(made))
        return True
    if before.generation == made.generation and made.dot < before.dot:
        rows.put(ROW, _pack(made))
    return False


def last(rows: Rows) -> Deletion | None:
    """The deletion that began the current generation; None: the object was never deleted."""
    packed = rows.get(ROW)
    return None if packed is None else unpack(packed)


def prefix(generation: int) -> bytes:
    """Of a generation's rows, within the object's. The first one's have none: no row of theirs begins with a 0 byte."""
    return ROW + generation.to_bytes(GENERATION_BYTES, "big") if generation else b""


def unpack(packed: bytes) -> Deletion:
    at = GENERATION_BYTES + DOT_BYTES
    return Deletion(
        int.from_bytes(packed[:GENERATION_BYTES], "big"),
        Dot.unpack(packed[GENERATION_BYTES:at]),
        int.from_bytes(packed[at : at + 8], "big"),
        int.from_bytes(packed[at + 8 : at + 16], "big"),
        tuple(int.from_bytes(packed[start : start + 8], "big") for start in range(at + 16, len(packed), 8)),
    )


def _pack(made: Deletion) -> bytes:
    stamp = made.dot.pack() + made.hlc.to_bytes(8, "big") + made.wall_ms.to_bytes(8, "big")
    clients = b"".join(client.to_bytes(8, "big") for client in made.clients)
    return made.generation.to_bytes(GENERATION_BYTES, "big") + stamp + clients
