"""`shoal branch`, `rollback`, `diff` and `why`: a thread's branches, differences between checkpoints, and their context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.arguments import Branch as BranchName
from shoal.cli.arguments import By, DryRun, Limit, Reason, Reveal, ThreadName, Yes
from shoal.cli.command import Run, Work, in_store
from shoal.cli.commands.threads import described, event_text
from shoal.cli.execution import agreed
from shoal.cli.finding import SHORT, check_thread, checkpoint_id, checkpoint_or_branch
from shoal.cli.output import Listing, emit, line, note, pairs, to_text
from shoal.errors import NotFound
from shoal.kinds.thread.flows.audit import event_record
from shoal.kinds.thread.flows.merging import Difference
from shoal.kinds.thread.handle.history import Branch, Why
from shoal.values.difference import Change

if TYPE_CHECKING:
    from shoal.client.store import Store

PANEL = "Look into a store"


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
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
