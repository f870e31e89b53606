"""The deletion of an object: it ends a generation, and the next may begin.

Laws:
- Every change names the generation that was current for its issuer, and belongs to it.
  Each generation has rows of its own; only the current one's are shown.
- A deletion ends the generation that it names and all before it. So the current
  generation is the greatest that was ended, plus one: a function of the set of deletions.
- A change of an ended generation is dead, whenever it arrives. If several deletions name
  one generation, the first ends it and the others leave the next alone. So a deletion that
  is sent to two nodes counts once.

Row, one per object that was ever deleted, beside its generations' rows and kept forever:
    00              generation₄ dot₂₄ hlc₈ wall_ms₈ [client₈ …]: the current generation, the deletion that
                    began it (if several did, the one with the least dot), and the Yjs clients that it named
"""

from __future__ import annotations

import msgspec

from shoal.crdt.dot import DOT_BYTES, Dot
from shoal.crdt.rows import Rows, Stamp
from shoal.records import NamedTuple

ROW = b"\x00"
GENERATION_BYTES = 4
GENERATIONS_MAX = (1 << 8 * GENERATION_BYTES) - 1


class Delete(msgspec.Struct, array_like=True, frozen=True, tag="delete"):
    """The mutation: it ends the generation to which it belongs."""

    generation: int
    clients: list[int] = []  # Of a document: the Yjs clients that edited the ended generation. They may not edit the next.


class Deletion(NamedTuple):
    """The row `ROW`: the deletion that began the current generation."""

    generation: int  # The current one; from 1.
    dot: Dot
    hlc: int
    wall_ms: int
    clients: tuple[int, ...] = ()


def apply(rows: Rows, stamp: Stamp, delete: Delete) -> bool:
    """Apply a deletion, and return whether a new generation is now current. `rows` are the object's, not a generation's."""
    before = last(rows)
    made = Deletion(delete.generation + 1, stamp.dot, stamp.hlc, stamp.wall_ms, tuple(delete.clients))
    if before is None or before.generation < made.generation:
        rows.put(ROW, _pack(made))
        return True
    if before.generation == made.generation and made.dot < before.dot:
        rows.put(ROW, _pack(made))
    return False


def last(rows: Rows) -> Deletion | None:
    """The deletion that began the current generation; None if the object was never deleted."""
    packed = rows.get(ROW)
    return None if packed is None else unpack(packed)


def prefix(generation: int) -> bytes:
    """The prefix of a generation's rows among the object's. The first has none, and no row of it begins with a 0 byte."""
    return ROW + generation.to_bytes(GENERATION_BYTES, "big") if generation else b""


def unpack(packed: bytes) -> Deletion:
    """The deletion in the bytes of row `ROW`."""
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
