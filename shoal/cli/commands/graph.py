"""`shoal graph`: a thread's checkpoints, drawn.

A drawing is a directed acyclic graph beside the lines that describe its nodes, as `git log --graph` has it.

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

import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, TypeVar

import typer

from shoal.cli.arguments import PANEL, Limit, ThreadName
from shoal.cli.command import Run, Work, in_store
from shoal.cli.commands.threads import described, shown_metadata
from shoal.cli.finding import SHORT, check_thread
from shoal.cli.output import ago, emit, is_terminal, line, note, plain, show_text, to_text
from shoal.kinds.thread.flows.checkpoints import Checkpoint, ThreadCheckpoints
from shoal.records import NamedTuple

if TYPE_CHECKING:
    from shoal.client.store import Store


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(graph)


@in_store
def graph(
    run: Run,
    thread: ThreadName,
    limit: Limit = 50,
) -> Work:
    """Draw a thread's checkpoints, newest first: its branches, and where they part and are merged.

    Example: shoal graph researcher-1 --data ./state --space crew
    """

    async def work(store: Store) -> None:
        await check_thread(store, run.space, thread)
        checkpoints = ThreadCheckpoints(store.connection, run.space, thread)
        heads = await checkpoints.heads()
        # Read one more of each line than is shown, to know whether there are older ones.
        found = {each.id: each async for each in checkpoints.reachable(line_max=limit + 1)}
        order = newest_first({id: each.parents for id, each in found.items()}, lambda id: found[id].wall_ms)
        shown = [found[id] for id in order[:limit]]
        marks = _marks(heads)
        if run.json:
            for each in shown:
                emit(described(each) | {"head_of": marks[each.id]})
            return
        _print(shown, marks)
        if not shown:
            note(f"thread {thread!r} has no checkpoints.")
        elif len(order) > limit:
            note(f"older checkpoints are left out; --limit {limit * 10} shows more.")

    return work


def _marks(heads: Mapping[str, Sequence[str]]) -> defaultdict[str, list[str]]:
    marks: defaultdict[str, list[str]] = defaultdict(list)
    for branch, ids in heads.items():
        for id in ids:
            marks[id].append(branch)
    return marks


def _print(shown: Sequence[Checkpoint], marks: Mapping[str, Sequence[str]]) -> None:
    on_terminal = is_terminal()
    signs = BOXES if on_terminal and (sys.stdout.encoding or "").lower().startswith("utf") else ASCII
    by_id = {each.id: each for each in shown}
    for row, id in drawn(by_id, {each.id: each.parents for each in shown}, signs):
        if id is None:
            show_text((row, "")) if on_terminal else line(row)
            continue
        each, notes = by_id[id], "  ".join(_notes(by_id[id]))
        names = f"({', '.join(marks[id])})" if marks.get(id) else ""
        if on_terminal:
            parts = ((f"{row}  ", ""), (f"{id[:SHORT]}  ", "yellow"), (f"{names}  " if names else "", "bold green"))
            show_text(*parts, (f"{ago(each.time)}  ", "dim"), (notes, ""))
        else:
            told = [f"{row}  {id}", f"{each.time:%Y-%m-%d %H:%M:%S}Z", plain(names), notes]
            line("  ".join(filter(None, told)))


def _notes(each: Checkpoint) -> Iterator[str]:
    if each.label:
        yield f"label {plain(each.label)}"
    if each.author:
        yield f"by {plain(each.author)}"
    if metadata := shown_metadata(each):
        yield to_text(metadata)


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
