"""`shoal events`, `append`, `consumers`, `inbox`: what happens to a thread, who reads it, and what is sent to it."""

from __future__ import annotations

import os
from contextlib import aclosing
from typing import Annotated, Any

import typer

from shoal.api.opaque import opaque, shown_opaque
from shoal.cli.absence import check_thread
from shoal.cli.execution import execute
from shoal.cli.mutations import parsed
from shoal.cli.output import emit, line, to_text
from shoal.cli.target import Data, Json, SpaceName, Target, Url, chosen, opened
from shoal.cli.threads import PANEL, ThreadName
from shoal.client.export import event_record
from shoal.client.inbox import Message

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
        str, typer.Option("--after", metavar="CURSOR", help="Only what came after this; --json shows cursors.")
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, metavar="N", help="Show at most so many.")] = None,
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
        if not follow:  # Who follows may well wait for the first one.
            await check_thread(store, space, name)
        journal = store.space(space).thread(name).journal
        async with aclosing(journal.read(after=cursor, limit=limit, follow=follow)) as found:
            async for event in found:
                if json:
                    emit(event_record(event) | {"cursor": shown_opaque(event.cursor)})
                else:
                    key = "" if event.key is None else f"  [{event.key}]"
                    line(f"{event.time:%Y-%m-%d %H:%M:%S}Z{key}  {to_text(event.event)}")


def append(
    thread: ThreadName,
    event: Annotated[str, typer.Argument(metavar="JSON", help="The event, as JSON.", show_default=False)],
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Appended twice under one key it is one event.")
    ] = None,
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
    event = parsed(text, "the event")
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
        async for found in store.space(space).thread(name).journal.consumers():
            if json:
                acked = None if found.acked is None else found.acked.isoformat()
                cursor = shown_opaque(found.cursor)
                emit({"name": found.name, "behind": found.behind, "counted": found.counted, "acked": acked, "cursor": cursor})
            else:
                line(f"{to_text(found.name)[1:-1]}  {'' if found.counted else 'at least '}{found.behind} behind")


@inbox.command(name="list")
def list_messages(
    thread: ThreadName,
    taken: Annotated[bool, typer.Option("--taken", help="Those that were taken, rather than those that wait.")] = False,
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
        async for message in box.taken() if taken else box.pending():
            if json:
                emit(_described(message))
                continue
            key = "" if message.key is None else f"  [{message.key}]"
            by = f"  from {to_text(message.by)}" if message.by else ""
            takers = "".join(f"  taken by {to_text(finish.by)}" for finish in message.taken)
            line(f"{message.time:%Y-%m-%d %H:%M:%S}Z{key}{by}{takers}  {to_text(message.value)}")


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
    message: Annotated[str, typer.Argument(metavar="JSON", help="The message, as JSON.", show_default=False)],
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Sent twice under one key it is one message.")] = None,
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Who sends it.")] = "",
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
    value = parsed(text, "the message")
    async with opened(target) as store:
        sent = await store.space(space).thread(name).inbox.send(value, key=key, by=by)
        if json:
            emit({"id": sent.id, "sent": sent.sent})
        else:
            line(sent.id if sent.sent else f"{sent.id}  was sent before under this key")
