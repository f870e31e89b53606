"""What becomes of a document by an update: whether it is ready, and how deep shared types nest then.

Law: `advance` replays the engine's own rule: a struct is integrated once its
origins, its parent and its client's previous clock are there; an update is
ready if all its structs are, and all that it deletes is there by then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple

from shoal.crdt.yjs import Parsed, StateVector, Struct
from shoal.errors import NotReady


class Advanced(NamedTuple):
    """What a document will be once an update is applied."""

    state: StateVector
    deepest: int  # An upper bound of how deep shared types nest, roots not counted.
    shared: dict[tuple[int, int], int]  # The update's shared types, by id → an upper bound of how many are around each.


NO_TYPES: Mapping[tuple[int, int], int] = {}


def advance(
    parsed: Parsed, state: StateVector, *, deepest: int = 0, shared: Mapping[tuple[int, int], int] = NO_TYPES
) -> Advanced:
    """What becomes of a document at `state`, whose types nest `deepest` deep, some of them known as `shared`.

    Raises:
        NotReady: the update depends on what that document lacks.
    """
    after = dict(state)
    depths = _Depths(deepest, shared)
    left = {client: iter(structs) for client, structs in parsed.structs.items()}
    heads = {client: next(structs, None) for client, structs in left.items()}
    waiting: dict[int, list[int]] = {}
    runnable = list(heads)
    while runnable:
        client = runnable.pop()
        moved = False
        while (struct := heads[client]) is not None:
            missing = _missing(client, struct, after)
            if missing is not None:
                if missing != client:  # Else a clock is skipped, and no other client can help.
                    waiting.setdefault(missing, []).append(client)
                break
            depths.note(client, struct)
            after[client] = max(after.get(client, 0), struct.clock + struct.length)
            heads[client] = next(left[client], None)
            moved = True
        if moved:  # Else two clients that wait for each other would wake each other for ever.
            runnable.extend(waiting.pop(client, ()))
    if any(head is not None for head in heads.values()):
        raise NotReady("the update depends on one that is not here yet. Nothing was written; send what it builds on first.")
    if any(clock + length > after.get(client, 0) for client, clock, length in parsed.deletes):
        raise NotReady("the update deletes what is not here yet. Nothing was written; send what it builds on first.")
    return Advanced({client: clock for client, clock in after.items() if clock}, depths.deepest, depths.found)


def _missing(client: int, struct: Struct, state: StateVector) -> int | None:
    """The client whose structs this one waits for; itself, for ever, if a clock is skipped."""
    known = state.get(client, 0)
    if struct.clock + struct.length <= known:
        return None  # Applied before; the engine skips it.
    if struct.clock > known or struct.gap:
        return client
    for needed, clock in struct.needs:
        if clock >= (struct.clock if needed == client else state.get(needed, 0)):
            return needed
    return None


class _Depths:
    """How many shared types are around each item of an update: an upper bound, exact where enough is known."""

    def __init__(self, deepest: int, shared: Mapping[tuple[int, int], int]) -> None:
        self.deepest = deepest
        self.found: dict[tuple[int, int], int] = {}
        self._known, self._unknown = shared, deepest
        self._runs: dict[int, tuple[list[int], list[int]]] = {}

    def note(self, client: int, struct: Struct) -> None:
        # Siblings are equally deep, so that the least bound of them holds.
        depth = min((self._at(need, inside=struct.inside) for need in struct.needs), default=0)
        clocks, depths = self._runs.setdefault(client, ([], []))
        if not depths or depths[-1] != depth:
            clocks.append(struct.clock)
            depths.append(depth)
        if struct.shared:
            self.found[client, struct.clock] = depth
            self.deepest = max(self.deepest, depth + 1)

    def _at(self, item: tuple[int, int], *, inside: bool) -> int:
        clocks, depths = self._runs.get(item[0], ((), ()))
        run = bisect_right(clocks, item[1])
        known = depths[run - 1] if run else self._known.get(item)
        return self._unknown if known is None else known + inside
