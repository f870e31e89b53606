"""`shoal events`, `append`, `consumers`, `inbox`: a thread's journal, its consumers, and its messages."""

from __future__ import annotations

import os
from contextlib import aclosing
from typing import Annotated, Any

import typer

from shoal.api.http.opaque import opaque, shown_opaque
from shoal.cli.absence import check_thread
from shoal.cli.arguments import json_of
from shoal.cli.commands.threads import event_cells, event_line
from shoal.cli.execution import execute
from shoal.cli.options import PANEL, By, Follow, Key, LimitOrAll, ThreadName
from shoal.cli.output import emit, line, to_text
from shoal.cli.target import Data, Json, SpaceName, Target, Url, chosen, opened
from shoal.cli.terminal import Listing, ago
from shoal.client.thread.inbox import Message
from shoal.workflows.export import event_record

inbox = typer.Typer(no_args_is_help=True, help="Messages to a thread: list them, and send one.")


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(events)
    app.command(rich_help_panel=PANEL)(append)
    app.command(rich_help_panel=PANEL)(consumers)
    app.add_typer(inbox, name="inbox", rich_help_panel=PANEL)


def events(
    thread: ThreadName,
    after: Annotated[
        str, typer.Option("--after", metavar="CURSOR", help="Only events after this one; --json shows cursors.")
    ] = "",
    follow: Follow = False,
    limit: LimitOrAll = None,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Print a thread's journal, oldest first.

    Example: shoal events researcher-1 --follow --url http://127.0.0.1:7400 --space crew
    """
    execute(_events(chosen(data, url, environment=os.environ), space, thread, after, follow, limit, json=json))


async def _events(target: Target, space: str, name: str, after: str, follow: bool, limit: int | None, *, json: bool) -> None:
    cursor = opaque(after, "--after")
    async with opened(target) as store:
        if not follow:  # With --follow, waiting for the first event is normal.
            await check_thread(store, space, name)
        journal = store.space(space).thread(name).journal
        none = (
            "" if follow else f"the journal of {name!r} has no such events." if after else f"the journal of {name!r} is empty."
        )
        async with aclosing(journal.read(after=cursor, limit=limit, follow=follow)) as found:
            # With --follow events are shown line by line, because a table would wait for its end.
            with Listing("age", "key", "event", json=json, none=none, streams=follow) as rows:
                async for event in found:
                    fields = event_record(event) | {"cursor": shown_opaque(event.cursor)}
                    rows.add(fields, event_line(event), *event_cells(event))


def append(
    thread: ThreadName,
    event: Annotated[str, typer.Argument(metavar="JSON", help="The event, as JSON. - is standard input.", show_default=False)],
    key: Key = None,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Append an event to a thread's journal.

    Example: shoal append researcher-1 '{"order": 17}' --key order-17 --data ./state --space crew
    """
    execute(_append(chosen(data, url, environment=os.environ), space, thread, event, key, json=json))


async def _append(target: Target, space: str, name: str, text: str, key: str | None, *, json: bool) -> None:
    event = json_of(text, "the event")
    async with opened(target) as store:
        appended = await store.space(space).thread(name).journal.append(event, key=key)
    if json:
        emit({"id": appended.id, "appended": appended.appended})
    else:
        line(appended.id if appended.appended else f"{appended.id}  was appended before under this key")


def consumers(thread: ThreadName, data: Data = None, url: Url = None, space: SpaceName = "default", json: Json = False) -> None:
    """List the consumers of a thread's journal, and how far behind they are.

    Example: shoal consumers researcher-1 --data ./state --space crew
    """
    execute(_consumers(chosen(data, url, environment=os.environ), space, thread, json=json))


async def _consumers(target: Target, space: str, name: str, *, json: bool) -> None:
    async with opened(target) as store:
        await check_thread(store, space, name)
        with Listing("name", "behind", "acknowledged", json=json, none=f"the journal of {name!r} has no consumers.") as rows:
            async for found in store.space(space).thread(name).journal.consumers():
                acked = None if found.acked is None else found.acked.isoformat()
                fields = {"name": found.name, "behind": found.behind, "counted": found.counted, "acked": acked}
                behind = f"{'' if found.counted else 'at least '}{found.behind}"
                rows.add(
                    fields | {"cursor": shown_opaque(found.cursor)},
                    f"{to_text(found.name)[1:-1]}  {behind} behind",
                    *(found.name, behind, "" if found.acked is None else ago(found.acked)),
                )


@inbox.command(name="list")
def list_messages(
    thread: ThreadName,
    taken: Annotated[bool, typer.Option("--taken", help="List messages that were taken, instead of those that wait.")] = False,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """List the messages that wait, oldest first.

    Example: shoal inbox list writer --data ./state --space crew
    """
    execute(_list(chosen(data, url, environment=os.environ), space, thread, taken=taken, json=json))


async def _list(target: Target, space: str, name: str, *, taken: bool, json: bool) -> None:
    async with opened(target) as store:
        await check_thread(store, space, name)
        box = store.space(space).thread(name).inbox
        none = f"no message to {name!r} {'was taken' if taken else 'waits'}."
        with Listing("age", "key", "from", "taken by", "message", json=json, none=none) as rows:
            async for message in box.taken() if taken else box.pending():
                key = "" if message.key is None else f"  [{message.key}]"
                by = f"  from {to_text(message.by)}" if message.by else ""
                takers = "".join(f"  taken by {to_text(finish.by)}" for finish in message.taken)
                value, names = to_text(message.value), ", ".join(finish.by for finish in message.taken)
                rows.add(
                    _described(message),
                    f"{message.time:%Y-%m-%d %H:%M:%S}Z{key}{by}{takers}  {value}",
                    *(ago(message.time), message.key or "", message.by, names, value),
                )


def _described(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "key": message.key,
        "by": message.by,
        "time": message.time.isoformat(),
        "message": message.value,
        "taken": [{"by": finish.by, "time": finish.time.isoformat()} for finish in message.taken],
        "others": message.others,
    }


@inbox.command(name="send")
def send(
    thread: ThreadName,
    message: Annotated[
        str, typer.Argument(metavar="JSON", help="The message, as JSON. - is standard input.", show_default=False)
    ],
    key: Key = None,
    by: By = "",
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Send a message to a thread.

    Example: shoal inbox send writer '{"review": 17}' --key review-17 --url http://127.0.0.1:7400 --space crew
    """
    execute(_send(chosen(data, url, environment=os.environ), space, thread, message, key, by, json=json))


async def _send(target: Target, space: str, name: str, text: str, key: str | None, by: str, *, json: bool) -> None:
    value = json_of(text, "the message")
    async with opened(target) as store:
        sent = await store.space(space).thread(name).inbox.send(value, key=key, by=by)
        if json:
            emit({"id": sent.id, "sent": sent.sent})
        else:
            line(sent.id if sent.sent else f"{sent.id}  was sent before under this key")
