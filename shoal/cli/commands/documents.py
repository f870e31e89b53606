"""`shoal doc edit|watch|conflicts|compact|delete`: shared documents; `get` and `list` are with the other objects'."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import timedelta
from json import loads
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal import values
from shoal.cli.arguments import age_of, file_text, json_of_file
from shoal.cli.execution import execute
from shoal.cli.options import By, LimitOrAll, OlderThan, Yes
from shoal.cli.output import emit, line, to_text
from shoal.cli.target import Data, Json, SpaceName, Target, Url, chosen, opened
from shoal.cli.terminal import Listing, ago, show_value, shown_bytes
from shoal.client.document import compaction
from shoal.client.document.changes import DocumentChange
from shoal.protocol import requests

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


def extend(group: typer.Typer) -> None:
    """Add these commands to the group of documents."""
    for command in (edit, watch, conflicts, compact, delete):
        group.command()(command)


def edit(
    name: Name,
    source: Annotated[Path, typer.Argument(metavar="FILE", help="JSON; - is standard input.", show_default=False)],
    patch: Annotated[bool, typer.Option("--patch", help="FILE is a JSON Patch (RFC 6902).")] = False,
    by: By = "",
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Edit a document in place until it equals FILE, with small changes, and print it. --patch only changes the named places.

    Example: shoal doc edit plan plan.json --url http://127.0.0.1:7400
    """
    execute(_edit(chosen(data, url, environment=os.environ), space, name, source, by, patch=patch, json=json))


async def _edit(target: Target, space: str, name: str, source: Path, author: str, *, patch: bool, json: bool) -> None:
    given: Any = file_text(source) if patch else json_of_file(source)
    async with opened(target) as store:
        if patch:
            request = requests.Patch(space, name, given.encode(), author)
            reply = await store.connection.write(request, key=None, durability=None)
            content = values.from_json(loads(reply.json))
        else:
            async with await store.space(space).document(name, author=author) as document:
                document.replace(given)
                await document.flush()
                content = document.to_py()
        emit(content) if json else show_value(content)


def watch(
    name: Name,
    limit: LimitOrAll = None,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Print the changes of a document and their authors from now on, until Ctrl-C.

    Example: shoal doc watch plan --url http://127.0.0.1:7400
    """
    execute(_watch(chosen(data, url, environment=os.environ), space, name, limit, json=json))


async def _watch(target: Target, space: str, name: str, limit: int | None, *, json: bool) -> None:
    async with opened(target) as store, await store.space(space).document(name) as document:
        shown = 0
        async for change in document.changes():
            emit({**asdict(change), "path": list(change.path)}) if json else line(_told(change))
            shown += 1
            if shown == limit:
                return


def _told(change: DocumentChange) -> str:
    told = {"delete": [change.old], "set": [change.old, change.new], "conflict": [change.old, change.new]}
    what = " → ".join(map(to_text, told.get(change.kind, [change.new])))
    lost = f" (lost: {change.lost_by})" if change.lost_by else ""
    return f"{change.kind} /{'/'.join(map(str, change.path))}  {what}  {change.author}{lost}".rstrip()


def delete(
    name: Name,
    yes: Yes = False,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Delete a document on every node. Clients that still edit it, also offline, get an error. It can be created again.

    Example: shoal doc delete plan --url http://127.0.0.1:7400
    """
    target = chosen(data, url, environment=os.environ)
    if not yes:
        typer.confirm(f"Delete document {name!r} of space {space!r}? It cannot be taken back.", abort=True, err=True)
    execute(_delete(target, space, name, json=json))


async def _delete(target: Target, space: str, name: str, *, json: bool) -> None:
    async with opened(target) as store:
        reply = await store.connection.write(requests.DeleteDocument(space, name), key=None, durability=None)
        emit({"existed": reply.existed}) if json else line("deleted" if reply.existed else "there was none")


def compact(
    name: Name,
    older_than: OlderThan = None,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Replace a document's updates by one, without deleted content. Its content stays; its past states are gone.

    Example: shoal doc compact plan --older-than 1d --url http://127.0.0.1:7400
    """
    age = None if older_than is None else age_of(older_than)
    execute(_compact(chosen(data, url, environment=os.environ), space, name, age, json=json))


async def _compact(target: Target, space: str, name: str, age: timedelta | None, *, json: bool) -> None:
    async with opened(target) as store:
        done = await compaction.compact(
            lambda request: store.connection.write(request, key=None, durability=None), space, name, age
        )
        emit(asdict(done)) if json else line(f"{done.updates} updates are one of {shown_bytes(done.bytes)}")


def conflicts(name: Name, data: Data = None, url: Url = None, space: SpaceName = "default", json: Json = False) -> None:
    """Print values that concurrent assignments of one key overwrote, the latest first, with both authors.

    Example: shoal doc conflicts plan --data ./state
    """
    execute(_conflicts(chosen(data, url, environment=os.environ), space, name, json=json))


async def _conflicts(target: Target, space: str, name: str, *, json: bool) -> None:
    async with opened(target) as store, await store.space(space).document(name) as document:
        headings = ("age", "place", "lost", "of", "stands", "by")
        with Listing(*headings, json=json, none=f"no conflicts in document {name!r}.") as rows:
            for lost in await document.conflicts():
                was, now = to_text(lost.lost), to_text(lost.stands)
                when, by, over = f"{lost.time:%Y-%m-%d %H:%M:%S}Z", lost.lost_by or "?", lost.stands_by or "?"
                place = f"/{'/'.join(lost.path)}"
                rows.add(
                    {**asdict(lost), "path": list(lost.path), "time": lost.time.isoformat()},
                    f"{when}  {place}  {was} of {by}, now {now} of {over}",
                    *(ago(lost.time), place, was, lost.lost_by, now, lost.stands_by),
                )
