"""`shoal save`, `edit`, `merge`, `undo`, `redo`, `mutations`: changes of a thread's newest state, and their log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from shoal.cli.arguments import PANEL, Branch, By, Key, Label, LimitOrAll, Reveal, Run, ThreadName, Work, in_store, json_of
from shoal.cli.commands.threads import described
from shoal.cli.finding import check_thread, checkpoint_id, mutation_id
from shoal.cli.output import Listing, ago, to_text
from shoal.client.store import Store
from shoal.errors import HeadMoved, InvalidInput
from shoal.kinds.thread.flows.checkpoints import Checkpoint
from shoal.kinds.thread.flows.merging import UNRESOLVED
from shoal.kinds.thread.handle.thread import Thread

Count = Annotated[int, typer.Option("--count", min=1, metavar="N", help="How many of them.")]


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    for command in (save, edit, merge, undo, redo, mutations):
        app.command(rich_help_panel=PANEL)(command)


@in_store
def save(
    run: Run,
    thread: ThreadName,
    state: Annotated[
        str,
        typer.Argument(metavar="JSON", help="The state: channels and their values. - is standard input.", show_default=False),
    ],
    branch: Branch = "main",
    label: Label = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the branch's newest state.")] = False,
    by: By = "",
    key: Key = None,
) -> Work:
    """Save a whole state on a new branch, or with --overwrite on an existing one. Use `shoal edit` to change parts of a state.

    Example: shoal save researcher-1 '{"plan": {"step": 1}}' --by me --data ./state --space crew
    """

    async def saved(_: Store, handle: Thread) -> Checkpoint:
        found = json_of(state, "the state")
        if not isinstance(found, dict):
            raise InvalidInput("a state must be a JSON object of channels and their values. Nothing was written.")
        try:
            return await handle.save(found, branch=branch, overwrite=overwrite, label=label or "", key=key)
        except HeadMoved as moved:
            raise _unseen(moved, thread, branch) from None

    return _made(run, thread, by, saved)


def _unseen(moved: HeadMoved, thread: str, branch: str) -> HeadMoved:
    return HeadMoved(
        f"branch {branch!r} of thread {thread!r} has a state already. Nothing was written. "
        "Change parts of it with `shoal edit`, or replace it with --overwrite.",
        **moved.detail,
    )


@in_store
def edit(
    run: Run,
    thread: ThreadName,
    patch: Annotated[
        str,
        typer.Argument(
            metavar="JSON", help="New values of channels, or a JSON Patch. - is standard input.", show_default=False
        ),
    ],
    branch: Branch = "main",
    by: By = "",
    key: Key = None,
) -> Work:
    """Change parts of the newest state; everything else stays as it is.

    Example: shoal edit researcher-1 '[{"op": "replace", "path": "/plan/step", "value": 2}]' --by me --data ./state --space crew
    """

    async def edited(_: Store, handle: Thread) -> Checkpoint:
        return await handle.edit(json_of(patch, "the patch"), by=by, branch=branch, key=key)

    return _made(run, thread, by, edited, exists=True)


@in_store
def merge(
    run: Run,
    thread: ThreadName,
    heads: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]…", help="Checkpoints to merge into the branch; by default all its heads."),
    ] = None,
    resolve: Annotated[
        list[str] | None,
        typer.Option("--resolve", metavar="CHANNEL=JSON", help="The value of a channel in conflict; may be repeated."),
    ] = None,
    branch: Branch = "main",
    by: By = "",
    key: Key = None,
) -> Work:
    """Merge a branch's heads into one checkpoint. If channels are in conflict, they are listed, and nothing is written.

    Example: shoal merge researcher-1 --resolve 'plan={"step": 2}' --data ./state --space crew
    """

    async def joined(store: Store, handle: Thread) -> Checkpoint:
        resolved: dict[str, Any] = {}
        for field in resolve or []:
            name, found, text = field.partition("=")
            if not found or not name:
                raise InvalidInput(f"--resolve must be CHANNEL=JSON; got {field!r}. Nothing was written.")
            resolved[name] = json_of(text, f"the value of {name!r}")
        ids = [await checkpoint_id(store, handle, head) for head in heads or []]
        return await handle.merge(
            ids or None, lambda channel, _base, _sides: resolved.get(channel, UNRESOLVED), branch=branch, key=key
        )

    return _made(run, thread, by, joined, exists=True)


@in_store
def undo(
    run: Run,
    thread: ThreadName,
    count: Count = 1,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="ID", help="Undo this checkpoint, instead of the last ones."),
    ] = None,
    branch: Branch = "main",
    by: By = "",
    key: Key = None,
) -> Work:
    """Undo the changes of the last checkpoints of a branch, in a new checkpoint.

    Example: shoal undo researcher-1 --count 2 --by me --data ./state --space crew
    """

    async def undone(store: Store, handle: Thread) -> Checkpoint:
        id = None if checkpoint is None else await checkpoint_id(store, handle, checkpoint)
        return await handle.undo(count, branch=branch, checkpoint=id, key=key)

    return _made(run, thread, by, undone, exists=True)


@in_store
def redo(
    run: Run,
    thread: ThreadName,
    count: Count = 1,
    branch: Branch = "main",
    by: By = "",
    key: Key = None,
) -> Work:
    """Redo the last undos.

    Example: shoal redo researcher-1 --by me --data ./state --space crew
    """

    async def redone(_: Store, handle: Thread) -> Checkpoint:
        return await handle.redo(count, branch=branch, key=key)

    return _made(run, thread, by, redone, exists=True)


def _made(
    run: Run, name: str, author: str, make: Callable[[Store, Thread], Awaitable[Checkpoint]], *, exists: bool = False
) -> Work:
    async def work(store: Store) -> None:
        if exists:
            await check_thread(store, run.space, name)
        made = await make(store, store.space(run.space).thread(name, author=author))
        forked = f"  {len(made.heads)} heads" if made.forked else ""
        run.show(described(made), f"{made.id}  on {to_text(made.branch)[1:-1]}{forked}")

    return work


@in_store
def mutations(
    run: Run,
    thread: ThreadName,
    branch: Branch = "main",
    after: Annotated[
        str | None, typer.Option("--after", metavar="ID", help="Only changes after this mutation or checkpoint.")
    ] = None,
    limit: LimitOrAll = None,
    reveal: Reveal = False,
) -> Work:
    """Print the changes of a thread's state, oldest first: each place with its author and time.

    Example: shoal mutations researcher-1 --data ./state --space crew
    """

    async def work(store: Store) -> None:
        await check_thread(store, run.space, thread)
        handle = store.space(run.space).thread(thread)
        since = None if after is None else await mutation_id(store, handle, after)
        headings = ("age", "change", "place", "by", "value")
        with Listing(*headings, json=run.json, none=f"nothing changed in thread {thread!r}.") as rows:
            async for found in handle.mutations(branch=branch, after=since, limit=limit, reveal=reveal):
                fields = {field: getattr(found, field) for field in found.__struct_fields__}
                place = to_text(found.channel + found.path)[1:-1]
                by = f"  by {found.author}" if found.author else ""
                value = "" if found.op == "remove" else to_text(found.after)
                rows.add(
                    {**fields, "time": found.time.isoformat()},
                    f"{found.time:%Y-%m-%d %H:%M:%S}Z  {found.op:<7}  {place}{by}{f'  {value}' if value else ''}",
                    *(ago(found.time), found.op, place, found.author, value),
                )

    return work
