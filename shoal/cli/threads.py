"""`shoal threads`, `shoal log`, `shoal show`: agents' lines of work."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from json import loads
from typing import Annotated, Any, cast

import typer

from shoal import values
from shoal.cli.absence import check_thread, other_spaces, print_names
from shoal.cli.execution import execute
from shoal.cli.output import emit, line, to_text
from shoal.cli.target import Data, Json, SpaceName, Target, Url, chosen, opened
from shoal.client.checkpoint import Checkpoint
from shoal.client.store import Store
from shoal.client.thread import Thread
from shoal.errors import InvalidInput, NotFound
from shoal.values.foreign import LANGGRAPH

PANEL = "Look into a store"

# What LangGraph alone needs of a checkpoint: its own bytes.
_OTHERS_FIELD = (LANGGRAPH, "langgraph")

ThreadName = Annotated[str, typer.Argument(metavar="THREAD", help="The thread's name.", show_default=False)]
Reveal = Annotated[bool, typer.Option("--reveal", help="Show secret fields too.")]
Branch = Annotated[str, typer.Option("--branch", metavar="NAME", help="The branch to follow.")]


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(threads)
    app.command(rich_help_panel=PANEL)(log)
    app.command(rich_help_panel=PANEL)(show)
    app.command(rich_help_panel=PANEL)(labels)


def threads(
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only names that begin so.")] = "",
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="STATUS", help="Only: running, paused, waiting, done or failed."),
    ] = None,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """List a space's threads, one name a line.

    Example: shoal threads --data ./state --space crew --prefix researcher-
    """
    execute(_threads(chosen(data, url, environment=os.environ), space, prefix, status, json=json))


async def _threads(target: Target, space: str, prefix: str, status: str | None, *, json: bool) -> None:
    async with opened(target) as store:
        names = store.space(space).threads(prefix, status=cast("Any", status))
        await print_names(names, store, space, what="such threads" if prefix or status else "threads", json=json)


def log(
    thread: ThreadName,
    branch: Branch = "main",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="Show at most so many.")] = 20,
    filter: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="KEY=VALUE", help="Only those with this metadata; repeatable."),
    ] = None,
    author: Annotated[str | None, typer.Option("--author", metavar="NAME", help="Only theirs.")] = None,
    journal: Annotated[bool, typer.Option("--journal", help="Show the journal's events, oldest first, instead.")] = False,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """List a thread's checkpoints, newest first; heads are marked *, and forks are named.

    Example: shoal log researcher-1 --data ./state --space crew -n 5
    """
    target = chosen(data, url, environment=os.environ)
    if journal:
        execute(_journal(target, space, thread, limit, json=json))
    else:
        execute(_log(target, space, thread, branch, limit, _wanted(filter or []), author, json=json))


def _wanted(fields: list[str]) -> dict[str, Any]:
    """
    Raises:
        InvalidInput: a field has no name.
    """
    wanted = {}
    for field in fields:
        name, found, text = field.partition("=")
        if not found or not name:
            raise InvalidInput(f"--filter is KEY=VALUE; got {field!r}.")
        try:
            wanted[name] = values.from_json(loads(text))
        except ValueError:
            wanted[name] = text
    return wanted


async def _log(
    target: Target, space: str, name: str, branch: str, limit: int, wanted: dict[str, Any], author: str | None, *, json: bool
) -> None:
    async with opened(target) as store:
        thread = store.space(space).thread(name)
        heads = await thread.heads()
        if branch not in heads:
            raise await _no_branch(store, space, name, branch, heads)
        if not json:
            _print_heads(heads)
        async for checkpoint in thread.history(branch=branch, limit=limit, filter=wanted, author=author):
            marks = [head for head, ids in heads.items() if checkpoint.id in ids]
            emit(described(checkpoint) | {"head_of": marks}) if json else _print_checkpoint(checkpoint, marks)


async def _no_branch(store: Store, space: str, name: str, branch: str, heads: Mapping[str, Sequence[str]]) -> NotFound:
    if heads:
        return NotFound(f"thread {name!r} has no branch {branch!r}. It has {', '.join(heads)}.")
    return NotFound(
        f"there is no checkpoint of a thread {name!r} in space {space!r}. `shoal threads` lists those there are."
        + await other_spaces(store, space)
    )


def _print_heads(heads: Mapping[str, Sequence[str]]) -> None:
    for branch, ids in heads.items():
        if len(ids) > 1:
            line(f"branch {branch} is forked, it has {len(ids)} heads:")
            for head in ids:
                line(f"    {head}")


def _print_checkpoint(checkpoint: Checkpoint, marks: Sequence[str]) -> None:
    sign = "*" if marks else " "
    notes = [f"head of {', '.join(marks)}"] if marks else []
    notes += [f"joins {len(checkpoint.parents)}"] if len(checkpoint.parents) > 1 else []
    notes += [f"label {checkpoint.label}"] if checkpoint.label else []
    metadata = {name: value for name, value in checkpoint.metadata.items() if (checkpoint.schema, name) != _OTHERS_FIELD}
    notes += [to_text(metadata)] if metadata else []
    line(f"{sign} {checkpoint.id}  {checkpoint.time:%Y-%m-%d %H:%M:%S}Z  {'  '.join(notes)}".rstrip())


def described(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "id": checkpoint.id,
        "parents": list(checkpoint.parents),
        "branch": checkpoint.branch,
        "heads": list(checkpoint.heads),
        "time": checkpoint.time.isoformat(),
        "schema": checkpoint.schema,
        "schema_version": checkpoint.schema_version,
        "author": checkpoint.author,
        "label": checkpoint.label,
        "metadata": checkpoint.metadata,
    }


async def _journal(target: Target, space: str, name: str, limit: int, *, json: bool) -> None:
    async with opened(target) as store:
        await check_thread(store, space, name)
        async for event in store.space(space).thread(name).journal.read(limit=limit):
            if json:
                emit(
                    {"id": event.id, "key": event.key, "time": event.time.isoformat(), "late": event.late, "event": event.event}
                )
            else:
                key = "" if event.key is None else f"  [{event.key}]"
                line(f"{event.time:%Y-%m-%d %H:%M:%S}Z{key}  {to_text(event.event)}")


def labels(
    thread: ThreadName,
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only labels that begin so.")] = "",
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="LABEL", help="Take this label from its checkpoint; repeatable.")
    ] = None,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """List a thread's labels, and the checkpoints that have them; or take some away.

    Example: shoal labels researcher-1 --data ./state --space crew
    """
    execute(_labels(chosen(data, url, environment=os.environ), space, thread, prefix, remove or [], json=json))


async def _labels(target: Target, space: str, name: str, prefix: str, remove: list[str], *, json: bool) -> None:
    async with opened(target) as store:
        await check_thread(store, space, name)
        thread = store.space(space).thread(name)
        if remove:
            removed = await thread.unlabel(*remove)
            emit({"removed": removed}) if json else line(f"{removed} removed")
            return
        async for label, id in thread.labels(prefix):
            emit({"label": label, "checkpoint": id}) if json else line(f"{id}  {to_text(label)[1:-1]}")


def show(
    thread: ThreadName,
    checkpoint: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A checkpoint; without it, the branch's head.")
    ] = None,
    branch: Branch = "main",
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="TIME", help="Where the branch was at a time: ISO 8601, with its zone.")
    ] = None,
    label: Annotated[str | None, typer.Option("--label", metavar="NAME", help="The checkpoint that has this label.")] = None,
    reveal: Reveal = False,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Print a checkpoint's state as JSON; with --json also its id, parents, heads and metadata. Secret fields are hidden.

    Example: shoal show researcher-1 --data ./state --space crew
    """
    target = chosen(data, url, environment=os.environ)
    execute(_show(target, space, thread, checkpoint, branch, _moment(as_of), label, reveal=reveal, json=json))


def _moment(text: str | None) -> datetime | None:
    """
    Raises:
        InvalidInput: it is no time.
    """
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"--as-of is a time as in 2026-01-01T12:00:00+00:00; got {text!r}.") from None


async def _show(
    target: Target,
    space: str,
    name: str,
    checkpoint: str | None,
    branch: str,
    as_of: datetime | None,
    label: str | None,
    *,
    reveal: bool,
    json: bool,
) -> None:
    async with opened(target) as store:
        thread: Thread = store.space(space).thread(name)
        found = await thread.load(checkpoint, branch=branch, as_of=as_of, label=label)
        state = found.state if reveal else found.redacted
        emit(described(found) | {"state": state}) if json else line(to_text(state, indent=2))
