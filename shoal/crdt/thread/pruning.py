"""Pruning: removing old checkpoints, by their ids.

Laws:
- A prune names the moves of branches to its checkpoints that its issuer knew. If a branch
  was moved to a checkpoint by another, concurrent move, the checkpoint stays. So which
  checkpoints are pruned is a function of the set of operations, and no branch ends at a pruned one.
- A pruned checkpoint is not shown any more; a history ends before it. Its record and chunks
  stay until the prune is stable, or longer if a remaining checkpoint's recipe needs them.

Rows (within the thread's, beside the checkpoints'):
    T id₃₂                dot₂₄: the least of the prunes; removed with the checkpoint's record
    T                     hlc₈: of the last prune
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


def moves_to(rows: Rows, ids: set[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """The token and the checkpoint of each move to one of these checkpoints. It reads all moves of the thread."""
    for key, packed in rows.scan(dag.MOVE):
        to = dag.moved_to(packed)
        if to in ids:
            yield key[1:], to


def apply(rows: Rows, stamp: Stamp, prune: Prune) -> None:
    """Mark the checkpoints as pruned, except those to which a move went that the issuer did not know."""
    known = set(prune.moves)
    reached = {to for token, to in moves_to(rows, set(prune.ids)) if token not in known}
    for id in prune.ids:
        if id not in reached:
            mark = rows.get(PRUNED + id)
            if mark is None or stamp.dot < Dot.unpack(mark):
                rows.put(PRUNED + id, stamp.dot.pack())
    last = rows.get(PRUNED)
    rows.put(PRUNED, max(last or b"", stamp.hlc.to_bytes(8, "big")))


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
