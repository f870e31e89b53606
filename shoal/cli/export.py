"""`shoal export`: threads as JSON lines, to keep, to search, or to read elsewhere.

Laws:
- A line holds one thing, and is written as soon as it is read: whatever a store
  holds, one checkpoint's state is in memory at a time, and the ids of one thread.
- Values are in the tagged form of `shoal.values.to_json`, so that `from_json` gives
  back what was saved, types included. docs/EXPORT.md describes the lines.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer

from shoal.cli.execution import execute
from shoal.cli.journals import described_event
from shoal.cli.output import emit
from shoal.cli.steps import described
from shoal.cli.target import Data, SpaceName, Target, Url, chosen, opened
from shoal.cli.threads import PANEL
from shoal.client.checkpoint import Checkpoint
from shoal.client.store import Space
from shoal.client.thread import Thread
from shoal.errors import NotFound
from shoal.version import __version__

FORMAT = 1


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(export)


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
        raise typer.BadParameter("give a THREAD, or --all, and not both.")
    execute(_export(chosen(data, url, environment=os.environ), space, thread))


async def _export(target: Target, name: str, thread: str | None) -> None:
    async with opened(target) as store:
        space = store.space(name)
        if thread is not None and not await _exists(space, thread):
            raise NotFound(f"there is no thread {thread!r} in space {name!r}. `shoal threads` lists those there are.")
        emit({"type": "export", "format": FORMAT, "shoal": __version__, "space": name})
        names = space.threads() if thread is None else _only(thread)
        async for found in names:
            async for record in records(space.thread(found)):
                emit(record)


async def _exists(space: Space, thread: str) -> bool:
    async for name in space.threads(thread):
        return name == thread  # In byte order the name itself is the first.
    return False


async def _only(name: str) -> AsyncIterator[str]:
    yield name


async def records(thread: Thread) -> AsyncIterator[dict[str, Any]]:
    """A thread's lines."""
    branches = await thread.heads()
    for name, heads in branches.items():
        yield {"type": "branch", "thread": thread.name, "name": name, "heads": heads}
    starts = [head for heads in branches.values() for head in heads]
    async for label, id in thread.labels():
        yield {"type": "label", "thread": thread.name, "label": label, "checkpoint": id}
        starts.append(id)
    async for checkpoint in _checkpoints(thread, starts):
        yield _described(thread.name, checkpoint)
    async for event in thread.journal.read():
        yield {"type": "event", "thread": thread.name, **described_event(event)}
    async for record in thread.steps():
        yield {"type": "step", "thread": thread.name, **described(record)}


async def _checkpoints(thread: Thread, starts: list[str]) -> AsyncIterator[Checkpoint]:
    """Those that lead to these, each once; a child before its parents, where they are on one line."""
    seen: set[str] = set()
    while starts:
        start = starts.pop()
        if start in seen:
            continue
        found = await thread.load(start)
        seen.add(start)
        starts.extend(found.parents[1:])
        yield found
        async for older in thread.history(before=start, states=True):
            if older.id in seen:
                break
            seen.add(older.id)
            starts.extend(older.parents[1:])
            yield older


def _described(thread: str, checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "type": "checkpoint",
        "thread": thread,
        "id": checkpoint.id,
        "parents": list(checkpoint.parents),
        "branch": checkpoint.branch,
        "time": checkpoint.time.isoformat(),
        "author": checkpoint.author,
        "label": checkpoint.label,
        "schema": checkpoint.schema,
        "schema_version": checkpoint.schema_version,
        "metadata": checkpoint.metadata,
        "state": checkpoint.redacted,
    }
