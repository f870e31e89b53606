"""`shoal save`, `edit`, `merge`, `undo`, `redo`, `mutations`: what changes a thread's newest state, and what changed in it."""

from __future__ import annotations

import json as jsonlib
import os
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from shoal import values
from shoal.cli.absence import check_thread
from shoal.cli.execution import execute
from shoal.cli.output import emit, line, to_text
from shoal.cli.target import Data, Json, SpaceName, Target, Url, chosen, opened
from shoal.cli.threads import PANEL, Branch, Reveal, ThreadName, described
from shoal.client.checkpoint import Checkpoint
from shoal.client.merging import UNRESOLVED
from shoal.client.thread import Thread
from shoal.errors import InvalidInput, InvalidValue

By = Annotated[str, typer.Option("--by", metavar="NAME", help="Who does it: the checkpoint's author.")]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Done twice under one key it is done once.")]
Count = Annotated[int, typer.Option("--count", "-n", min=1, metavar="N", help="So many.")]


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    for command in (save, edit, merge, undo, redo, mutations):
        app.command(rich_help_panel=PANEL)(command)


def parsed(text: str, what: str) -> Any:
    """
    Raises:
        InvalidValue: it is no JSON.
    """
    try:
        return values.from_json(jsonlib.loads(text))
    except ValueError as error:
        raise InvalidValue(f"{what} is not valid JSON ({error}). Nothing was written.") from None


def save(
    thread: ThreadName,
    state: Annotated[str, typer.Argument(metavar="JSON", help="The state: channels and their values.", show_default=False)],
    branch: Branch = "main",
    label: Annotated[str, typer.Option("--label", metavar="NAME", help="A name to find the checkpoint by.")] = "",
    by: By = "",
    key: Key = None,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Save a whole state on a branch. To change parts of one: `shoal edit`.

    Example: shoal save researcher-1 '{"plan": {"step": 1}}' --by me --data ./state --space crew
    """

    async def saved(handle: Thread) -> Checkpoint:
        found = parsed(state, "the state")
        if not isinstance(found, dict):
            raise InvalidInput("a state is a JSON object: channels and their values. Nothing was written.")
        return await handle.save(found, branch=branch, label=label, key=key)

    execute(_made(chosen(data, url, environment=os.environ), space, thread, by, saved, json=json))


def edit(
    thread: ThreadName,
    patch: Annotated[
        str, typer.Argument(metavar="JSON", help="New values of channels, or a JSON Patch of the state.", show_default=False)
    ],
    branch: Branch = "main",
    by: By = "",
    key: Key = None,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Change the newest state by hand; all that is not named stays as it is.

    Example: shoal edit researcher-1 '[{"op": "replace", "path": "/plan/step", "value": 2}]' --by me --data ./state --space crew
    """

    async def edited(handle: Thread) -> Checkpoint:
        return await handle.edit(parsed(patch, "the patch"), by=by, branch=branch, key=key)

    execute(_made(chosen(data, url, environment=os.environ), space, thread, by, edited, json=json, exists=True))


def merge(
    thread: ThreadName,
    heads: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]…", help="What to join with the branch; without it, all its heads.")
    ] = None,
    resolve: Annotated[
        list[str] | None,
        typer.Option(
            "--resolve", metavar="CHANNEL=JSON", help="What a channel shall be that does not fit together; repeatable."
        ),
    ] = None,
    branch: Branch = "main",
    by: By = "",
    key: Key = None,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Join a branch's heads in one checkpoint. Channels that do not fit together are named, and nothing is written.

    Example: shoal merge researcher-1 --resolve 'plan={"step": 2}' --data ./state --space crew
    """

    async def joined(handle: Thread) -> Checkpoint:
        resolved: dict[str, Any] = {}
        for field in resolve or []:
            name, found, text = field.partition("=")
            if not found or not name:
                raise InvalidInput(f"--resolve is CHANNEL=JSON; got {field!r}. Nothing was written.")
            resolved[name] = parsed(text, f"what {name!r} shall be")
        return await handle.merge(
            heads or None, lambda channel, _base, _sides: resolved.get(channel, UNRESOLVED), branch=branch, key=key
        )

    execute(_made(chosen(data, url, environment=os.environ), space, thread, by, joined, json=json, exists=True))


def undo(
    thread: ThreadName,
    count: Count = 1,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="ID", help="What this one changed, rather than the last.")
    ] = None,
    branch: Branch = "main",
    by: By = "",
    key: Key = None,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Take back what the last checkpoints of a branch changed, as a new checkpoint.

    Example: shoal undo researcher-1 -n 2 --by me --data ./state --space crew
    """

    async def undone(handle: Thread) -> Checkpoint:
        return await handle.undo(count, branch=branch, checkpoint=checkpoint, key=key)

    execute(_made(chosen(data, url, environment=os.environ), space, thread, by, undone, json=json, exists=True))


def redo(
    thread: ThreadName,
    count: Count = 1,
    branch: Branch = "main",
    by: By = "",
    key: Key = None,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Take back the last undos.

    Example: shoal redo researcher-1 --by me --data ./state --space crew
    """

    async def redone(handle: Thread) -> Checkpoint:
        return await handle.redo(count, branch=branch, key=key)

    execute(_made(chosen(data, url, environment=os.environ), space, thread, by, redone, json=json, exists=True))


async def _made(
    target: Target,
    space: str,
    name: str,
    author: str,
    make: Callable[[Thread], Awaitable[Checkpoint]],
    *,
    json: bool,
    exists: bool = False,
) -> None:
    async with opened(target) as store:
        if exists:
            await check_thread(store, space, name)
        made = await make(store.space(space).thread(name, author=author))
    if json:
        emit(described(made))
    else:
        line(f"{made.id}  on {to_text(made.branch)[1:-1]}" + (f"  {len(made.heads)} heads" if made.forked else ""))


def mutations(
    thread: ThreadName,
    branch: Branch = "main",
    after: Annotated[
        str | None, typer.Option("--after", metavar="ID", help="A mutation or a checkpoint: leave out all up to it.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, metavar="N", help="Show at most so many.")] = None,
    reveal: Reveal = False,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Print what changed in a thread's state, oldest first: each place, with who changed it and when.

    Example: shoal mutations researcher-1 --data ./state --space crew
    """
    execute(
        _mutations(chosen(data, url, environment=os.environ), space, thread, branch, after, limit, reveal=reveal, json=json)
    )


async def _mutations(
    target: Target, space: str, name: str, branch: str, after: str | None, limit: int | None, *, reveal: bool, json: bool
) -> None:
    async with opened(target) as store:
        await check_thread(store, space, name)
        thread = store.space(space).thread(name)
        async for found in thread.mutations(branch=branch, after=after, limit=limit, reveal=reveal):
            if json:
                fields = {field: getattr(found, field) for field in found.__struct_fields__}
                emit({**fields, "time": found.time.isoformat()})
                continue
            place = to_text(found.channel + found.path)[1:-1]
            by = f"  by {found.author}" if found.author else ""
            shown = "" if found.op == "remove" else f"  {to_text(found.after)}"
            line(f"{found.time:%Y-%m-%d %H:%M:%S}Z  {found.op:<7}  {place}{by}{shown}")
