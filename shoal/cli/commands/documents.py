"""`shoal doc edit|watch|conflicts|compact`: shared documents; `get` and `list` are with the other objects'."""

from __future__ import annotations

from dataclasses import asdict
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal import values
from shoal.cli.arguments import age_of, file_text, json_of_file
from shoal.cli.command import Run, Work, in_store
from shoal.cli.options import By, LimitOrAll, OlderThan
from shoal.cli.output import emit, to_text
from shoal.cli.terminal import Listing, ago, show_value, shown_bytes
from shoal.kinds.document.handle import changes as compaction
from shoal.kinds.document.handle.changes import DocumentChange
from shoal.protocol import requests

if TYPE_CHECKING:
    from shoal.client.store import Store

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


def extend(group: typer.Typer) -> None:
    """Add these commands to the group of documents."""
    for command in (edit, watch, conflicts, compact):
        group.command()(command)


@in_store
def edit(
    run: Run,
    name: Name,
    source: Annotated[Path, typer.Argument(metavar="FILE", help="JSON; - is standard input.", show_default=False)],
    patch: Annotated[bool, typer.Option("--patch", help="FILE is a JSON Patch (RFC 6902).")] = False,
    by: By = "",
) -> Work:
    """Edit a document in place until it equals FILE, with small changes, and print it. --patch only changes the named places.

    Example: shoal doc edit plan plan.json --url http://127.0.0.1:7400
    """
    given: Any = file_text(source) if patch else json_of_file(source)

    async def work(store: Store) -> None:
        if patch:
            request = requests.Patch(run.space, name, given.encode(), by)
            reply = await store.connection.write(request, key=None, durability=None)
            content = values.from_json(loads(reply.json))
        else:
            async with await store.space(run.space).document(name, author=by) as document:
                document.replace(given)
                await document.flush()
                content = document.to_py()
        emit(content) if run.json else show_value(content)

    return work


@in_store
def watch(
    run: Run,
    name: Name,
    limit: LimitOrAll = None,
) -> Work:
    """Print the changes of a document and their authors from now on, until Ctrl-C.

    Example: shoal doc watch plan --url http://127.0.0.1:7400
    """

    async def work(store: Store) -> None:
        async with await store.space(run.space).document(name) as document:
            shown = 0
            async for change in document.changes():
                run.show({**asdict(change), "path": list(change.path)}, _told(change))
                shown += 1
                if shown == limit:
                    return

    return work


def _told(change: DocumentChange) -> str:
    told = {"delete": [change.old], "set": [change.old, change.new], "conflict": [change.old, change.new]}
    what = " → ".join(map(to_text, told.get(change.kind, [change.new])))
    lost = f" (lost: {change.lost_by})" if change.lost_by else ""
    return f"{change.kind} /{'/'.join(map(str, change.path))}  {what}  {change.author}{lost}".rstrip()


@in_store
def compact(
    run: Run,
    name: Name,
    older_than: OlderThan = None,
) -> Work:
    """Replace a document's updates by one, without deleted content. Its content stays; its past states are gone.

    Example: shoal doc compact plan --older-than 1d --url http://127.0.0.1:7400
    """
    age = None if older_than is None else age_of(older_than)

    async def work(store: Store) -> None:
        done = await compaction.compact(
            lambda request: store.connection.write(request, key=None, durability=None), run.space, name, age
        )
        run.show(asdict(done), f"{done.updates} updates are one of {shown_bytes(done.bytes)}")

    return work


@in_store
def conflicts(
    run: Run,
    name: Name,
) -> Work:
    """Print values that concurrent assignments of one key overwrote, the latest first, with both authors.

    Example: shoal doc conflicts plan --data ./state
    """

    async def work(store: Store) -> None:
        async with await store.space(run.space).document(name) as document:
            headings = ("age", "place", "lost", "of", "stands", "by")
            with Listing(*headings, json=run.json, none=f"no conflicts in document {name!r}.") as rows:
                for lost in await document.conflicts():
                    was, now = to_text(lost.lost), to_text(lost.stands)
                    when, by, over = f"{lost.time:%Y-%m-%d %H:%M:%S}Z", lost.lost_by or "?", lost.stands_by or "?"
                    place = f"/{'/'.join(lost.path)}"
                    rows.add(
                        {**asdict(lost), "path": list(lost.path), "time": lost.time.isoformat()},
                        f"{when}  {place}  {was} of {by}, now {now} of {over}",
                        *(ago(lost.time), place, was, lost.lost_by, now, lost.stands_by),
                    )

    return work
