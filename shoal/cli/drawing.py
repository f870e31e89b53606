"""Draw a directed acyclic graph beside the lines that describe its nodes, as `git log --graph` does.

Laws:
- Children come before parents. A node has one column; a line runs down from it to each of its parents
  that is drawn. There are no other lines, so the graph can be read from the drawing.
- A column keeps its place as long as a line is in it, and is used again afterwards, so nothing shifts.

    *    a    merges b and c
    ├─╮
    │ *  b
    * │  c
    ├─╯
    *    d

Between two nodes there are at most two rows: in one, the lines that end at the next node
join; in the other, the lines to the other parents of the last node part. A row of either
kind has one hub, and each of its other ends belongs to a line from or to the hub.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeVar

from shoal.records import NamedTuple

Node = TypeVar("Node", bound=Hashable)


class Signs(NamedTuple):
    """The characters of rows."""

    node: str
    down: str
    hub: str  # The hub of a row; lines go to the right from it.
    across: str
    part: str  # A line that begins here, the last of its row.
    part_on: str  # A line that begins here, not the last of its row.
    join: str  # A line that ends here, the last of its row.
    join_on: str


BOXES = Signs("*", "│", "├", "─", "╮", "┬", "╯", "┴")
ASCII = Signs("*", "|", "|", "-", ".", ".", "'", "'")  # For a pipe, or a terminal without UTF-8.


def newest_first(parents: Mapping[Node, Sequence[Node]], moment: Callable[[Node], int]) -> list[Node]:
    """The nodes, each before its parents; of several that may come next, the one with the greatest `moment`."""
    children = dict.fromkeys(parents, 0)
    for node in parents:
        for parent in set(parents[node]) & parents.keys():
            children[parent] += 1
    order = {node: nth for nth, node in enumerate(parents)}
    due = [(-moment(node), order[node], node) for node in parents if not children[node]]
    heapify(due)
    found: list[Node] = []
    while due:
        node = heappop(due)[-1]
        found.append(node)
        for parent in set(parents[node]) & parents.keys():
            children[parent] -= 1
            if not children[parent]:
                heappush(due, (-moment(parent), order[parent], parent))
    return found


def drawn(nodes: Iterable[Node], parents: Mapping[Node, Sequence[Node]], signs: Signs) -> Iterator[tuple[str, Node | None]]:
    """Rows, each with the node that is in it, or None; `nodes` are all of `parents`, children first.

    Parents that are not keys of `parents` are not drawn.
    """
    columns: list[Node | None] = []  # The node at which the line in this column ends.
    ended = -1  # The column whose line ended at the last node; a node right below would look like its parent.
    for node in nodes:
        ends = [nth for nth, end in enumerate(columns) if end == node] or [_free(columns, but=ended)]
        at, *others = ends
        if others:
            yield _linked(columns, at, others, signs, (signs.join, signs.join_on)), None
        for other in others:
            columns[other] = None
        columns[at] = node
        yield _row(columns, at, signs), node
        below = [parent for parent in dict.fromkeys(parents[node]) if parent in parents]
        columns[at] = below[0] if below else None
        ended = -1 if below else at
        parted: list[int] = []
        for parent in below[1:]:
            parted.append(_free(columns, least=at + 1))
            columns[parted[-1]] = parent
        if parted:
            yield _linked(columns, at, sorted(parted), signs, (signs.part, signs.part_on)), None
        while columns and columns[-1] is None:
            columns.pop()


def _free(columns: list[Node | None], *, least: int = 0, but: int = -1) -> int:
    """The first column from `least` on without a line, except `but`."""
    nth = least
    while nth == but or (nth < len(columns) and columns[nth] is not None):
        nth += 1
    columns.extend([None] * (nth + 1 - len(columns)))
    return nth


def _row(columns: Sequence[object], at: int, signs: Signs) -> str:
    cells = [signs.node if nth == at else " " if end is None else signs.down for nth, end in enumerate(columns)]
    return " ".join(cells).rstrip()


def _linked(columns: Sequence[object], hub: int, ends: Sequence[int], signs: Signs, turns: tuple[str, str]) -> str:
    """A row in which lines run between the hub and `ends`, all of them to its right."""
    last, turn = ends[-1], dict.fromkeys(ends, turns[1]) | {ends[-1]: turns[0]}
    cells: list[str] = []
    for nth, end in enumerate(columns):
        inside = hub < nth < last
        if nth == hub:
            cells.append(signs.hub)
        elif nth in turn:
            cells.append(turn[nth])
        else:
            # A line that is only crossed is drawn unbroken.
            cells.append(signs.down if end is not None else signs.across if inside else " ")
        cells.append(signs.across if hub <= nth < last else " ")
    return "".join(cells).rstrip()
