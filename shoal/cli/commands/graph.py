"""A thread as a whole: `shoal graph` draws its checkpoints, `shoal export` prints it as JSON lines.

Law: a line of an export holds one record of `shoal.kinds.thread.flows.export`, and is written as soon as it is read. Values are
in the tagged form of `shoal.values.to_json`, so that `from_json` returns the saved values with their types.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.absence import check_thread
from shoal.cli.command import Run, Work, in_store
from shoal.cli.commands.threads import described, shown_metadata
from shoal.cli.drawing import ASCII, BOXES, drawn, newest_first
from shoal.cli.execution import execute
from shoal.cli.ids import SHORT
from shoal.cli.options import PANEL, Limit, ThreadName
from shoal.cli.output import emit, line, note, plain, to_text
from shoal.cli.target import Data, SpaceName, Target, Url, chosen, opened
from shoal.cli.terminal import ago, is_terminal, show_text
from shoal.kinds.thread.flows.checkpoints import Checkpoint, ThreadCheckpoints
from shoal.kinds.thread.flows.export import export as exported

if TYPE_CHECKING:
    from shoal.client.store import Store


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(graph)
    app.command(rich_help_panel=PANEL)(export)


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


def export(
    thread: Annotated[str | None, typer.Argument(metavar="[THREAD]", help="The thread's name.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All threads of the space.")] = False,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Annotated[bool, typer.Option("--json", help="The output is always JSON lines.", rich_help_panel="Output")] = True,
) -> None:
    """Print a thread, or all of a space, as JSON lines: branches, checkpoints with their states, events, steps.

    Example: shoal export researcher-1 --data ./state --space crew > researcher-1.jsonl
    """
    if (thread is None) != everything:
        raise typer.BadParameter("give either a THREAD or --all.")
    execute(_export(chosen(data, url, environment=os.environ), space, thread))


async def _export(target: Target, space: str, thread: str | None) -> None:
    async with opened(target) as store:
        async for record in exported(store.connection, space, thread):
            emit(record)
