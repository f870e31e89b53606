"""What checkpoints descend from: along all parents, where `lineage.ancestry` follows the first.

Law: nothing here is cut short silently. A walk that would look at more than it may
raises; a history that was pruned ends where a checkpoint is not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from shoal.crdt import lineage
from shoal.crdt.rows import Rows
from shoal.errors import NotFound, TooLarge

VISITS_MAX = 20_000


def in_order(rows: Rows, ids: Sequence[bytes]) -> list[bytes]:
    """Each id once, the least (HLC, id) first: an order that every replica has.

    Raises:
        NotFound: one is no checkpoint of this thread.
    """
    return [id for _, id in sorted({(_there(rows, id).hlc, id) for id in ids})]


def common_ancestor(rows: Rows, ids: Sequence[bytes], *, visits_max: int = VISITS_MAX) -> bytes | None:
    """The newest checkpoint that all `ids` are or descend from; None if there is none.

    Newest by HLC, in which a parent comes before its child, so that the first that
    is met from all sides is the one.

    Raises:
        NotFound: an id is no checkpoint of this thread.
        TooLarge: it lies more than `visits_max` checkpoints back.
    """
    everyone = (1 << len(ids)) - 1
    sides: dict[bytes, int] = {}
    waiting: list[tuple[int, bytes]] = []

    def reach(id: bytes, side: int, found: lineage.Checkpoint) -> None:
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
            older = lineage.checkpoint(rows, parent)
            if older is not None:
                reach(parent, sides[id], older)
    raise TooLarge(f"these checkpoints have nothing in common within the last {visits_max}. Nothing was written.")


def _there(rows: Rows, id: bytes) -> lineage.Checkpoint:
    found = lineage.checkpoint(rows, id)
    if found is None:
        raise NotFound(f"this thread has no checkpoint {id.hex()}. Nothing was written. List them with history().")
    return found
