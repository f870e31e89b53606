"""Pruning: removing old checkpoints, by their ids.

Laws:
- A prune names the moves of branches to its checkpoints that its issuer knew. If a branch
  was moved to a checkpoint by another, concurrent move, the checkpoint stays. So which
  checkpoints are pruned is a function of the set of operations, and no branch ends at a pruned one.
- A pruned checkpoint is not shown any more; a history ends before it. Its record and chunks
  stay until the prune is stable, or longer if a remaining checkpoint's recipe needs them.

Rows (within the thread's, beside the checkpoints'):
    T id₃₂                dot₂₄: the least of the prunes; removed with the checkpoint's record
    T                     hlc₈: of the last prune; hlc₈: up to this time moves to what is swept are forgotten
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shoal.crdt.dot import DOT_BYTES, Dot
from shoal.crdt.rows import Rows, Stamp
from shoal.crdt.thread import dag
from shoal.crdt.thread.dag import PRUNED


class Prune(msgspec.Struct, array_like=True, frozen=True, tag="prune"):
    """The mutation: prunes these checkpoints."""

    ids: list[bytes]
    moves: list[bytes] = []  # Tokens of the moves to them that the issuer knew.
    moves_hlc: int = 0  # Up to this time no request for a move can be repeated any more.


def moves_to(rows: Rows, ids: set[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """The token and the checkpoint of each move to one of these checkpoints. It reads all moves of the thread."""
    return ((move.token, move.to) for move in dag.moves(rows) if move.to in ids)


def is_over(rows: Rows, move: dag.Moved) -> bool:
    """Whether a move can be forgotten: its checkpoint is swept, and its request cannot be repeated any more.

    Until then a directory that was set back may carry it out again; what is known of the move keeps that without effect.
    """
    last = rows.get(PRUNED) or b""
    return move.hlc <= int.from_bytes(last[8:], "big") and rows.get(dag.CHECKPOINT + move.to) is None


def apply(rows: Rows, stamp: Stamp, prune: Prune) -> None:
    """Mark the checkpoints as pruned, except those to which a move went that the issuer did not know."""
    known = set(prune.moves)
    reached = {to for token, to in moves_to(rows, set(prune.ids)) if token not in known}
    for id in prune.ids:
        if id not in reached:
            mark = rows.get(PRUNED + id)
            if mark is None or stamp.dot < Dot.unpack(mark):
                rows.put(PRUNED + id, stamp.dot.pack())
    last = rows.get(PRUNED) or b""
    times = (stamp.hlc, prune.moves_hlc)
    known_times = (int.from_bytes(last[:8], "big"), int.from_bytes(last[8:], "big"))
    rows.put(PRUNED, b"".join(max(pair).to_bytes(8, "big") for pair in zip(times, known_times, strict=True)))


def marks(rows: Rows, *, after: bytes | None = None, limit: int | None = None) -> Iterator[tuple[bytes, Dot]]:
    """The pruned checkpoints whose records may still be here, by id, each with the prune; `after` is an id, exclusive."""
    start = PRUNED if after is None else PRUNED + after
    for key, dot in rows.scan(PRUNED, after=start, limit=limit):
        yield key[1:], Dot.unpack(dot[:DOT_BYTES])


def any_pruned(rows: Rows) -> bool:
    """Whether there may be records and chunks that only pruned checkpoints need."""
    return next(iter(marks(rows, limit=1)), None) is not None


def ever_pruned(rows: Rows) -> bool:
    """Whether any checkpoint of the thread was ever pruned."""
    return rows.get(PRUNED) is not None
