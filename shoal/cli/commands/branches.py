"""`shoal branch`, `rollback`, `diff` and `why`: a thread's branches, differences between checkpoints, and their context."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from shoal.cli.absence import check_thread
from shoal.cli.commands.threads import described
from shoal.cli.execution import execute
from shoal.cli.ids import SHORT, checkpoint_id, checkpoint_or_branch
from shoal.cli.options import Branch as BranchName
from shoal.cli.options import By, Limit, Reason, Reveal, ThreadName
from shoal.cli.output import emit, line, note, pairs, to_text
from shoal.cli.target import Data, Json, SpaceName, Target, Url, chosen, opened
from shoal.cli.terminal import Listing
from shoal.client.thread.branches import Branch
from shoal.client.thread.inspect import Why
from shoal.values.difference import Change
from shoal.workflows.differences import Difference
from shoal.workflows.events import Event

PANEL = "Look into a store"


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(diff)
    app.command(rich_help_panel=PANEL)(branch)
    app.command(rich_help_panel=PANEL)(rollback)
    app.command(rich_help_panel=PANEL)(why)


def diff(
    thread: ThreadName,
    before: Annotated[
        str, typer.Argument(metavar="A", help="A branch, or a checkpoint's id or its beginning.", show_default=False)
    ],
    after: Annotated[str, typer.Argument(metavar="[B]", help="Another one; by default the head of main.")] = "main",
    reveal: Reveal = False,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Show the changes from one checkpoint to another, per channel and path.

    Example: shoal diff researcher-1 what-if main --data ./state --space crew
    """
    execute(_diff(chosen(data, url, environment=os.environ), space, thread, before, after, reveal=reveal, json=json))


async def _diff(target: Target, space: str, name: str, before: str, after: str, *, reveal: bool, json: bool) -> None:
    async with opened(target) as store:
        thread = store.space(space).thread(name)
        sides = [await checkpoint_or_branch(store, thread, side) for side in (before, after)]
        found = await thread.diff(*sides, reveal=reveal)
    if json:
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


def _described(found: Difference) -> dict[str, list[dict[str, Any]]]:
    return {channel: [_fields(change) for change in changes] for channel, changes in found.channels.items()}


def _fields(change: Change) -> dict[str, Any]:
    fields: dict[str, Any] = {"op": change.op, "path": change.path}
    if change.op != "add":
        fields["before"] = change.before
    if change.op != "remove":
        fields["after"] = change.after
    return fields


def _print(change: Change) -> None:
    path = to_text(change.path)[1:-1]
    if change.op != "add":
        line(f"  - {path}  {to_text(change.before)}".replace("   ", "  "))
    if change.op != "remove":
        line(f"  + {path}  {to_text(change.after)}".replace("   ", "  "))


def branch(
    thread: ThreadName,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The new branch. If omitted, all branches are listed.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="ID", help="The checkpoint at which it begins; by default the head of main.")
    ] = None,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """List a thread's branches, or create one.

    Example: shoal branch researcher-1 what-if --at ID --data ./state --space crew
    """
    execute(_branch(chosen(data, url, environment=os.environ), space, thread, name, at, json=json))


async def _branch(target: Target, space: str, thread: str, name: str | None, at: str | None, *, json: bool) -> None:
    async with opened(target) as store:
        if name is None:
            await check_thread(store, space, thread)
        handle = store.space(space).thread(thread)
        if name is not None:
            start = None if at is None else await checkpoint_id(store, handle, at)
            _show(await handle.branch(name, at=start), json=json)
            return
        with Listing("branch", "head", "others", json=json, none=f"thread {thread!r} has no branches.") as rows:
            for found in await handle.branches():
                heads = [head[:SHORT] for head in found.heads]
                rows.add(_fields_of(found), _line(found), found.name, heads[0], "  ".join(heads[1:]))


def rollback(
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
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Move a branch to an earlier checkpoint, or to any other of its thread. Nothing is deleted.

    Example: shoal rollback researcher-1 ID --reason "wrong turn" --by me --data ./state --space crew
    """
    execute(_rollback(chosen(data, url, environment=os.environ), space, thread, to, branch, reason, by, json=json))


async def _rollback(target: Target, space: str, thread: str, to: str, branch: str, reason: str, by: str, *, json: bool) -> None:
    async with opened(target) as store:
        handle = store.space(space).thread(thread)
        to = await checkpoint_id(store, handle, to)
        _show(await handle.rollback(to, branch=branch, reason=reason, by=by), json=json)


def _show(found: Branch, *, json: bool) -> None:
    emit(_fields_of(found)) if json else line(_line(found))


def _fields_of(found: Branch) -> dict[str, Any]:
    return {"branch": found.name, "heads": list(found.heads)}


def _line(found: Branch) -> str:
    return f"{to_text(found.name)[1:-1]}  {'  '.join(found.heads)}"


def why(
    thread: ThreadName,
    checkpoint: Annotated[
        str, typer.Argument(metavar="ID", help="The checkpoint, or the beginning of its id.", show_default=False)
    ],
    limit: Limit = 20,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Show the context of a checkpoint: its base, its author's settings and reads, and the journal before it.

    Example: shoal why researcher-1 ID --data ./state --space crew
    """
    execute(_why(chosen(data, url, environment=os.environ), space, thread, checkpoint, limit, json=json))


async def _why(target: Target, space: str, thread: str, checkpoint: str, limit: int, *, json: bool) -> None:
    async with opened(target) as store:
        handle = store.space(space).thread(thread)
        found = await handle.why(await checkpoint_id(store, handle, checkpoint), limit=limit)
    (_emit_why if json else _print_why)(found)


def _emit_why(found: Why) -> None:
    emit(
        described(found.checkpoint)
        | {
            "setting": found.setting,
            "seen": found.seen,
            "partitions": {str(number): count for number, count in found.partitions.items()},
            "earlier": [described(older) for older in found.earlier],
            "events": [_event(event) for event in found.events],
        }
    )


def _event(event: Event) -> dict[str, Any]:
    return {"id": event.id, "key": event.key, "time": event.time.isoformat(), "event": event.event}


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
        line(f"  {event.time:%Y-%m-%d %H:%M:%S}Z  {to_text(event.event)}")
