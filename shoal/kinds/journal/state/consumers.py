"""Consumers of a journal: durable cursors, which only move forward.

Laws:
- A consumer's cursor is the join of all acknowledged cursors. If several readers share a
  name, events that one of them acknowledged may come again; an event that nobody
  acknowledged always comes.
- A reset begins a generation. Only the greatest generation counts, so an acknowledgement
  from before a reset does not undo it.

Rows (within the thread's):
    K 0x00 name        generation₈ acked_ms₈ cursor: the greatest generation, its latest wall time, its join
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.journal.state import journal
from shoal.kinds.journal.state.journal import Cursor
from shoal.records import NamedTuple

CONSUMER = b"K\x00"
GENERATION_MAX = 2**63 - 1


class Ack(msgspec.Struct, array_like=True, frozen=True, tag="ack"):
    """The mutation: acknowledges events, or resets the consumer by beginning a generation."""

    consumer: str
    generation: int
    cursor: bytes  # Packed, and clipped to what its origin had applied.


class Consumer(NamedTuple):
    """A consumer, and the events that it has acknowledged."""

    name: str
    generation: int = 0
    acked_ms: int = 0  # 0: never.
    cursor: Cursor = Cursor()


def apply(rows: Rows, stamp: Stamp, ack: Ack) -> None:
    """Join the cursor to the consumer's, or replace it if its generation is greater."""
    before = find(rows, ack.consumer)
    cursor, acked_ms = Cursor.unpack(ack.cursor), stamp.wall_ms
    if ack.generation < before.generation:
        return
    if ack.generation == before.generation:
        cursor, acked_ms = journal.join(before.cursor, cursor), max(before.acked_ms, acked_ms)
    packed = ack.generation.to_bytes(8, "big") + acked_ms.to_bytes(8, "big") + cursor.pack()
    rows.put(CONSUMER + ack.consumer.encode(), packed)


def find(rows: Rows, name: str) -> Consumer:
    """The consumer of that name; one that has acknowledged nothing if there is none."""
    stored = rows.get(CONSUMER + name.encode())
    return Consumer(name) if stored is None else _unpack(name, stored)


def consumers(rows: Rows, *, after: str | None = None) -> Iterator[Consumer]:
    """All consumers that have acknowledged something, by name; `after` is exclusive."""
    start = None if after is None else CONSUMER + after.encode()
    for row, stored in rows.scan(CONSUMER, after=start):
        yield _unpack(row[len(CONSUMER) :].decode(), stored)


def _unpack(name: str, stored: bytes) -> Consumer:
    return Consumer(name, int.from_bytes(stored[:8], "big"), int.from_bytes(stored[8:16], "big"), Cursor.unpack(stored[16:]))
