"""Pruning: removing old checkpoints, by their ids. And the ancestors of those that are there, along all parents.

Laws:
- A prune names the moves of branches to its checkpoints that its issuer knew. If a branch
  was moved to a checkpoint by another, concurrent move, the checkpoint stays. So which
  checkpoints are pruned is a function of the set of operations, and no branch ends at a pruned one.
- A pruned checkpoint is not shown any more; a history ends before it. Its record and chunks
  stay until the prune is stable, or longer if a remaining checkpoint's recipe needs them.
- A swept checkpoint is remembered for as long as its save can be repeated, so that the repetition makes no head.

Rows (within the thread's, beside the checkpoints'):
    T id₃₂                dot₂₄: the least of the prunes; hlc₈: of the last one
    W id₃₂                the same, in the place of T once the record is removed, until its save cannot be repeated any more
    T                     hlc₈: of the last prune; hlc₈: up to this time moves to what is swept are forgotten, and rows W

The ancestors of checkpoints along all parents (`dag.ancestry` follows first parents), and where a branch was at a time.

Law: nothing here is cut short silently. A walk raises if it would look at more checkpoints
than it may. It ends where the history was pruned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

import msgspec

from shoal.crdt.dot import DOT_BYTES, HLC_BYTES, Dot
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import NotFound, TooLarge
from shoal.kinds.thread.state import dag
from shoal.kinds.thread.state.dag import PRUNED, SWEPT


class Prune(msgspec.Struct, array_like=True, frozen=True, tag="prune"):
    """The mutation: prunes these checkpoints."""

    ids: list[bytes]
    moves: list[bytes] = []  # Tokens of the moves to them that the issuer knew.
    moves_hlc: int = 0  # Up to this time no request for a move or a save can be repeated any more.


def moves_to(rows: Rows, ids: set[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """The token and the checkpoint of each move to one of these checkpoints. It reads all moves of the thread."""
    return ((move.token, move.to) for move in dag.moves(rows) if move.to in ids)


def is_over(rows: Rows, move: dag.Moved) -> bool:
    """Whether a move can be forgotten: its checkpoint is swept, and its request cannot be repeated any more.

    Until then a directory that was set back may carry it out again; what is known of the move keeps that without effect.
    """
    return move.hlc <= _expired_hlc(rows) and rows.get(dag.CHECKPOINT + move.to) is None


def _expired_hlc(rows: Rows) -> int:
    return int.from_bytes((rows.get(PRUNED) or b"")[8:], "big")


def swept_rows(rows: Rows, id: bytes) -> dict[bytes, bytes | None]:
    """The row that replaces a mark once the checkpoint's other rows are removed."""
    mark = rows.get(PRUNED + id) or b""
    return {PRUNED + id: None} if _is_forgotten(rows, mark) else {PRUNED + id: None, SWEPT + id: mark}


def swept(rows: Rows, *, after: bytes | None = None, limit: int | None = None) -> list[tuple[bytes, bool]]:
    """The swept checkpoints that are remembered, by id, each with whether it can be forgotten; `after` is an id, exclusive.

    Among them are rows of worklists, which begin with the same byte, and are never forgotten: nothing else has both lengths.
    """
    found = rows.scan(SWEPT, after=None if after is None else SWEPT + after, limit=limit)
    return [(key[1:], is_remembered(key, mark) and _is_forgotten(rows, mark)) for key, mark in found]


def is_remembered(row: bytes, value: bytes) -> bool:
    """Whether a row is that of a swept checkpoint, and not one of a worklist."""
    return row.startswith(SWEPT) and len(row) == len(SWEPT) + dag.ID_BYTES and len(value) == DOT_BYTES + HLC_BYTES


def _is_forgotten(rows: Rows, mark: bytes) -> bool:
    return int.from_bytes(mark[DOT_BYTES:], "big") <= _expired_hlc(rows)


def apply(rows: Rows, stamp: Stamp, prune: Prune) -> None:
    """Mark the checkpoints as pruned, except those to which a move went that the issuer did not know."""
    known = set(prune.moves)
    reached = {to for token, to in moves_to(rows, set(prune.ids)) if token not in known}
    for id in prune.ids:
        if id not in reached:
            swept, hlc = rows.get(SWEPT + id), stamp.hlc.to_bytes(8, "big")
            mark = rows.get(PRUNED + id) or swept
            dot = stamp.dot if mark is None else min(stamp.dot, Dot.unpack(mark[:DOT_BYTES]))
            rows.put(PRUNED + id, dot.pack() + (hlc if mark is None else max(mark[DOT_BYTES:], hlc)))
            if swept is not None:
                rows.delete(SWEPT + id)
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


VISITS_MAX = 20_000
BRANCHES_WALKED_MAX = 64  # From a branch to the one on which it began, and so on.


def in_order(rows: Rows, ids: Sequence[bytes]) -> list[bytes]:
    """Each id once, the least (HLC, id) first: the same order on every replica.

    Raises:
        NotFound: one is no checkpoint of this thread.
    """
    return [id for _, id in sorted({(_there(rows, id).hlc, id) for id in ids})]


def common_ancestor(rows: Rows, ids: Sequence[bytes], *, visits_max: int = VISITS_MAX) -> bytes | None:
    """The newest checkpoint that each of `ids` is or descends from; None if there is none.

    The walk goes back by HLC, in which a parent comes before its child, so the first
    checkpoint that is reached from all sides is the newest.

    Raises:
        NotFound: an id is no checkpoint of this thread.
        TooLarge: it lies more than `visits_max` checkpoints back.
    """
    everyone = (1 << len(ids)) - 1
    sides: dict[bytes, int] = {}
    waiting: list[tuple[int, bytes]] = []

    def reach(id: bytes, side: int, found: dag.Checkpoint) -> None:
        if id not in sides:
            heappush(waiting, (-found.hlc, id))
        sides[id] = sides.get(id, 0) | side

    for nth, id in enumerate(ids):
        reach(id, 1 << nth, _there(rows, id))
    for _ in range(visits_max):
        if not waiting:
            return None
        _, id = heappop(waiting)
        if sides[id] == everyone:
            return id
        for parent in _there(rows, id).record.parents:
            older = dag.shown(rows, parent)
            if older is not None:
                reach(parent, sides[id], older)
    raise TooLarge(f"these checkpoints have no common ancestor within the last {visits_max} checkpoints. Nothing was written.")


def as_of(rows: Rows, branch: str, wall_ms: int) -> bytes | None:
    """Where the branch was at a time, by the clocks of the nodes that put it there; None if it did not exist yet.

    For times before its first save or move, the branch is taken to be where it began: on another branch.
    """
    for _ in range(BRANCHES_WALKED_MAX):
        prefix = dag.WHEN + branch.encode() + b"\x00"
        # Checkpoints that were pruned since are passed over.
        for row, value in rows.scan(prefix, after=prefix + (wall_ms + 1).to_bytes(8, "big"), reverse=True, limit=VISITS_MAX):
            found = dag.place(row, value).id
            if dag.shown(rows, found) is not None:
                return found
        origin = _origin(rows, prefix, branch)
        if origin is None or origin.wall_ms <= wall_ms:
            return None if origin is None else origin.id
        if origin.record.branch == branch:
            return None
        branch = origin.record.branch
    return None


def _origin(rows: Rows, prefix: bytes, branch: str) -> dag.Checkpoint | None:
    """The checkpoint, saved on another branch, on which this branch began."""
    for row, value in rows.scan(prefix, limit=1):
        place = dag.place(row, value)
        if place.was_elsewhere:
            return None  # What was before is pruned.
        first = dag.checkpoint(rows, place.id)
        if first is not None and place.is_saved:
            parents = first.record.parents
            first = dag.checkpoint(rows, parents[0]) if parents else None
        return None if first is None or first.record.branch == branch else first
    return None


def _there(rows: Rows, id: bytes) -> dag.Checkpoint:
    found = dag.shown(rows, id)
    if found is None:
        raise NotFound(f"this thread has no checkpoint {id.hex()}. Nothing was written. List them with history().")
    return found
