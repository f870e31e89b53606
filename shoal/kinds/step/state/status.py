"""A thread's status: running, paused, waiting, done or failed; who set it, when and why.

Laws:
- Of all moves the one with the greatest position counts. Positions are a causal
  order, so a move beats every move that its author had seen. Of concurrent moves the
  greatest HLC wins, and all of them stay, in order.
- Of the moves with one key (a request that was sent to two nodes) the one with the least
  (dot, nth) counts, on every replica.

Rows (within the thread's):
    U p position₃₄                     a move: msgpack [status, reason, by, wall_ms, key]
    U k key                            position₃₄: the move of this key
"""

from __future__ import annotations

from typing import Literal

import msgspec

from shoal.crdt.rows import Rows, Stamp
from shoal.errors import StoreCorrupt

MOVE, KEY = b"Up", b"Uk"
_HLC_BYTES = 8

Status = Literal["running", "paused", "waiting", "done", "failed"]


class Move(msgspec.Struct, array_like=True, frozen=True, tag="status"):
    """The mutation: sets the status."""

    status: Status
    reason: str = ""
    by: str = ""
    key: str | None = None


class StatusRecord(msgspec.Struct, array_like=True, frozen=True):
    """A move, as it is stored."""

    status: Status
    reason: str = ""
    by: str = ""
    wall_ms: int = 0
    key: str | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StatusRecord)


def apply(rows: Rows, stamp: Stamp, move: Move) -> None:
    """Store the move, unless its key was claimed by a lesser (dot, nth)."""
    position = stamp.pack_position()
    if move.key is not None:
        row = KEY + move.key.encode()
        claimed = rows.get(row)
        if claimed is not None:
            if _rank(claimed) <= _rank(position):
                return
            rows.delete(MOVE + claimed)
        rows.put(row, position)
    rows.put(MOVE + position, _encoder.encode(StatusRecord(move.status, move.reason, move.by, stamp.wall_ms, move.key)))


def _rank(position: bytes) -> bytes:
    return position[_HLC_BYTES:]


def current(rows: Rows) -> StatusRecord | None:
    """The move that counts; None if none was ever made, and the thread is running.

    Raises:
        StoreCorrupt: the row cannot be decoded.
    """
    return next((decode(stored) for _, stored in rows.scan(MOVE, reverse=True, limit=1)), None)


def decode(stored: bytes) -> StatusRecord:
    """A stored move.

    Raises:
        StoreCorrupt: the row cannot be decoded.
    """
    try:
        return _decoder.decode(stored)
    except ValueError as error:
        raise StoreCorrupt(f"a thread's status cannot be decoded ({error}). Run `shoal verify`.") from None


def is_held(standing: StatusRecord | None) -> bool:
    """Whether the status makes steps wait: paused, or waiting."""
    return standing is not None and standing.status in ("paused", "waiting")
