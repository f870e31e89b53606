"""`shoal branch`, `rollback`, `diff`, `why` and `graph`: a thread's branches, the differences between checkpoints and their
context, and a drawing of all checkpoints.

A drawing is a directed acyclic graph beside the lines that describe its nodes, as `git log --graph` has it.

    *    a    merges b and c
    ├─╮
    │ *  b
    * │  c
    ├─╯
    *    d

Between two nodes there are at most two rows: in one, the lines that end at the next node
join; in the other, the lines to the other parents of the last node part. A row of either
kind has one hub, and each of its other ends belongs to a line from or to the hub.

Laws:
- Children come before parents. A node has one column; a line runs down from it to each of its parents
  that is drawn. There are no other lines, so the graph can be read from the drawing.
- A column keeps its place as long as a line is in it, and is used again afterwards, so nothing shifts.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from msgspec import structs

from shoal.cli.arguments import Branch as BranchName
from shoal.cli.arguments import By, DryRun, Limit, Reason, Reveal, Run, ThreadName, Work, Yes, in_store
from shoal.cli.commands.threads import described, event_text, shown_metadata
from shoal.cli.execution import agreed
from shoal.cli.finding import SHORT, check_thread, checkpoint_id, checkpoint_or_branch, note_graph
from shoal.cli.output import Listing, ago, emit, is_terminal, line, note, pairs, plain, show_text, to_text
from shoal.errors import NotFound
from shoal.kinds.thread.flows.audit import event_record
from shoal.kinds.thread.flows.checkpoints import Checkpoint, ThreadCheckpoints
from shoal.kinds.thread.flows.merging import Difference
from shoal.kinds.thread.handle.history import Branch, Why
from shoal.records import NamedTuple
from shoal.values.difference import Change

if TYPE_CHECKING:
    from shoal.client.store import Store

PANEL = "Look into a store"


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(graph)
    app.command(rich_help_panel=PANEL)(diff)
    app.command(rich_help_panel=PANEL)(branch)
    app.command(rich_help_panel=PANEL)(rollback)
    app.command(rich_help_panel=PANEL)(why)


@in_store
def diff(
    run: Run,
    thread: ThreadName,
    before: Annotated[
        str, typer.Argument(metavar="A", help="A branch, or a checkpoint's id or its beginning.", show_default=False)
    ],
    after: Annotated[str, typer.Argument(metavar="[B]", help="Another one; by default the head of main.")] = "main",
    reveal: Reveal = False,
) -> Work:
    """Show the changes from one checkpoint to another, per channel and path.

    Example: shoal diff researcher-1 what-if main --data ./state --space crew
    """

    async def work(store: Store) -> None:
        handle = store.space(run.space).thread(thread)
        sides = [await checkpoint_or_branch(store, handle, side) for side in (before, after)]
        found = await handle.diff(*sides, reveal=reveal)
        if run.json:
            emit({"before": found.before, "after": found.after, "channels": _described(found)})
            return
        line(f"--- {found.before}")
        line(f"+++ {found.after}")
        for channel, changes in found.channels.items():
            line(to_text(channel)[1:-1])
            for change in changes:
                _print(change)
        if not found.channels:
            note("nothing differs.")

    return work


def _described(found: Difference) -> dict[str, list[dict[str, Any]]]:
    return {channel: [structs.asdict(change) for change in changes] for channel, changes in found.channels.items()}


def _print(change: Change) -> None:
    path = to_text(change.path)[1:-1]
    if change.op != "add":
        line(f"  - {path}  {to_text(change.before)}".replace("   ", "  "))
    if change.op != "remove":
        line(f"  + {path}  {to_text(change.after)}".replace("   ", "  "))


@in_store
def branch(
    run: Run,
    thread: ThreadName,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The new branch. If omitted, all branches are listed.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="ID", help="The checkpoint at which it begins; by default the head of main.")
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the branch. Its checkpoints stay until they are pruned.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> Work:
    """List a thread's branches, create one, or delete one.

    Example: shoal branch researcher-1 what-if --at ID --data ./state --space crew
    """
    if delete and (name is None or at is not None):
        raise typer.BadParameter("--delete needs the name of the branch, and no --at.")
    if delete and not dry_run:
        agreed(f"Delete branch {name} of thread {thread} of space {run.space} on every node?", yes=yes)

    async def work(store: Store) -> None:
        if name is None:
            await check_thread(store, run.space, thread)
        handle = store.space(run.space).thread(thread)
        if name is not None and delete:
            there = {each.name: each for each in await handle.branches()} if dry_run else {}
            gone = there.get(name) if dry_run else await handle.delete_branch(name)
            if gone is None:
                raise NotFound(
                    f"thread {thread!r} has no branch {name!r}. Nothing was written. List them with `shoal branch {thread}`."
                )
            _show(gone, json=run.json)
            return
        if name is not None:
            start = None if at is None else await checkpoint_id(store, handle, at)
            _show(await handle.branch(name, at=start), json=run.json)
            return
        with Listing("branch", "head", "others", json=run.json, none=f"thread {thread!r} has no branches.") as rows:
            for found in await handle.branches():
                heads = [head[:SHORT] for head in found.heads]
                rows.add(_fields_of(found), _line(found), found.name, heads[0], "  ".join(heads[1:]))

    return work


@in_store
def rollback(
    run: Run,
    thread: ThreadName,
    to: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="The checkpoint to move the branch to, or the beginning of its id.", show_default=False
        ),
    ],
    branch: BranchName = "main",
    reason: Reason = "",
    by: By = "",
) -> Work:
    """Move a branch to an earlier checkpoint, or to any other of its thread. Nothing is deleted.

    Example: shoal rollback researcher-1 ID --reason "wrong turn" --by me --data ./state --space crew
    """

    async def work(store: Store) -> None:
        handle = store.space(run.space).thread(thread)
        id = await checkpoint_id(store, handle, to)
        _show(await handle.rollback(id, branch=branch, reason=reason, by=by), json=run.json)
        await note_graph(store, run.space, thread, what="a rollback")

    return work


def _show(found: Branch, *, json: bool) -> None:
    emit(_fields_of(found)) if json else line(_line(found))


def _fields_of(found: Branch) -> dict[str, Any]:
    return {"branch": found.name, "heads": list(found.heads)}


def _line(found: Branch) -> str:
    return f"{to_text(found.name)[1:-1]}  {'  '.join(found.heads)}"


@in_store
def why(
    run: Run,
    thread: ThreadName,
    checkpoint: Annotated[
        str, typer.Argument(metavar="ID", help="The checkpoint, or the beginning of its id.", show_default=False)
    ],
    limit: Limit = 20,
) -> Work:
    """Show the context of a checkpoint: its base, its author's settings and reads, and the journal before it.

    Example: shoal why researcher-1 ID --data ./state --space crew
    """

    async def work(store: Store) -> None:
        handle = store.space(run.space).thread(thread)
        found = await handle.why(await checkpoint_id(store, handle, checkpoint), limit=limit)
        (_emit_why if run.json else _print_why)(found)

    return work


def _emit_why(found: Why) -> None:
    emit(
        described(found.checkpoint)
        | {
            "setting": found.setting,
            "seen": found.seen,
            "partitions": {str(number): count for number, count in found.partitions.items()},
            "earlier": [described(older) for older in found.earlier],
            "events": [event_record(event) for event in found.events],
        }
    )


def _print_why(found: Why) -> None:
    one = found.checkpoint
    had_read = ", ".join(f"{count} of partition {number}" for number, count in found.partitions.items())
    pairs(
        {
            "checkpoint": one.id,
            "saved": f"{one.time:%Y-%m-%d %H:%M:%S}Z on {to_text(one.branch)[1:-1]}",
            "author": to_text(one.author)[1:-1] or "(not said)",
            "metadata": to_text(one.metadata),
            "parents": "  ".join(one.parents) or "(none)",
            "ran with": to_text(found.setting) if found.setting else "(not said)",
            "had read": had_read or "(not said)",
        }
    )
    line("built on:" if found.earlier else "built on no checkpoint")
    for older in found.earlier:
        line(f"  {older.id}  {older.time:%Y-%m-%d %H:%M:%S}Z  {to_text(older.metadata) if older.metadata else ''}".rstrip())
    line("journal before it:" if found.events else "no journal before it")
    for event in found.events:
        line(f"  {event.time:%Y-%m-%d %H:%M:%S}Z  {event_text(event)}")


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
        _print_graph(shown, marks)
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


def _print_graph(shown: Sequence[Checkpoint], marks: Mapping[str, Sequence[str]]) -> None:
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
