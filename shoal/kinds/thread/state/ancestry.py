"""The ancestors of checkpoints along all parents (`dag.ancestry` follows first parents), and where a branch was at a time.

Law: nothing here is cut short silently. A walk raises if it would look at more checkpoints
than it may. It ends where the history was pruned.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from shoal.crdt.rows import Rows
from shoal.errors import NotFound, TooLarge
from shoal.kinds.thread.state import dag

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
