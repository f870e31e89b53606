"""`shoal events`, `append`, `event`, `consumers`, `inbox`, `trim`, `retain`: a thread's journal and its messages."""

from __future__ import annotations

from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.api.http.headers import opaque, shown_opaque
from shoal.cli.absence import check_thread
from shoal.cli.arguments import age_of, bytes_of, json_of
from shoal.cli.command import Run, Work, in_store
from shoal.cli.commands.threads import event_cells, event_line
from shoal.cli.derived import add_derived
from shoal.cli.ids import event_id
from shoal.cli.options import PANEL, By, DryRun, Follow, KeepBytes, KeepLast, Key, LimitOrAll, OlderThan, ThreadName
from shoal.cli.output import emit, line, to_text
from shoal.cli.terminal import Listing, ago, shown_bytes
from shoal.kinds.thread.flows.export import event_record
from shoal.kinds.worklist.handle.worklist import Message
from shoal.records import NamedTuple

if TYPE_CHECKING:
    from shoal.client.store import Store

inbox = typer.Typer(no_args_is_help=True, help="Messages to a thread: list them, and send one.")


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(events)
    app.command(rich_help_panel=PANEL)(append)
    app.command(rich_help_panel=PANEL)(consumers)
    event = typer.Typer(no_args_is_help=True, help="Single events of a thread's journal: erase the value of one.")
    add_derived(event, "event")
    app.add_typer(event, name="event", rich_help_panel=PANEL)
    app.add_typer(inbox, name="inbox", rich_help_panel=PANEL)
    app.command(rich_help_panel=PANEL)(trim)
    app.command(rich_help_panel=PANEL)(retain)


@in_store
def events(
    run: Run,
    thread: ThreadName,
    after: Annotated[
        str, typer.Option("--after", metavar="CURSOR", help="Only events after this one; --json shows cursors.")
    ] = "",
    follow: Follow = False,
    limit: LimitOrAll = None,
) -> Work:
    """Print a thread's journal, oldest first.

    Example: shoal events researcher-1 --follow --url http://127.0.0.1:7400 --space crew
    """
    cursor = opaque(after, "--after")

    async def work(store: Store) -> None:
        if not follow:  # With --follow, waiting for the first event is normal.
            await check_thread(store, run.space, thread)
        journal = store.space(run.space).thread(thread).journal
        none = (
            ""
            if follow
            else f"the journal of {thread!r} has no such events."
            if after
            else f"the journal of {thread!r} is empty."
        )
        async with aclosing(journal.read(after=cursor, limit=limit, follow=follow)) as found:
            # With --follow events are shown line by line, because a table would wait for its end.
            with Listing("age", "key", "event", json=run.json, none=none, streams=follow) as rows:
                async for event in found:
                    fields = event_record(event) | {"cursor": shown_opaque(event.cursor)}
                    rows.add(fields, event_line(event), *event_cells(event))

    return work


@in_store
def append(
    run: Run,
    thread: ThreadName,
    event: Annotated[str, typer.Argument(metavar="JSON", help="The event, as JSON. - is standard input.", show_default=False)],
    key: Key = None,
) -> Work:
    """Append an event to a thread's journal.

    Example: shoal append researcher-1 '{"order": 17}' --key order-17 --data ./state --space crew
    """
    value = json_of(event, "the event")

    async def work(store: Store) -> None:
        appended = await store.space(run.space).thread(thread).journal.append(value, key=key)
        run.show(
            {"id": appended.id, "appended": appended.appended},
            appended.id if appended.appended else f"{appended.id}  was appended before under this key",
        )

    return work


@in_store
def consumers(
    run: Run,
    thread: ThreadName,
) -> Work:
    """List the consumers of a thread's journal, and how far behind they are.

    Example: shoal consumers researcher-1 --data ./state --space crew
    """

    async def work(store: Store) -> None:
        await check_thread(store, run.space, thread)
        with Listing(
            "name", "behind", "acknowledged", json=run.json, none=f"the journal of {thread!r} has no consumers."
        ) as rows:
            async for found in store.space(run.space).thread(thread).journal.consumers():
                acked = None if found.acked is None else found.acked.isoformat()
                fields = {"name": found.name, "behind": found.behind, "counted": found.counted, "acked": acked}
                behind = f"{'' if found.counted else 'at least '}{found.behind}"
                rows.add(
                    fields | {"cursor": shown_opaque(found.cursor)},
                    f"{to_text(found.name)[1:-1]}  {behind} behind",
                    *(found.name, behind, "" if found.acked is None else ago(found.acked)),
                )

    return work


@inbox.command(name="list")
@in_store
def list_messages(
    run: Run,
    thread: ThreadName,
    taken: Annotated[bool, typer.Option("--taken", help="List messages that were taken, instead of those that wait.")] = False,
) -> Work:
    """List the messages that wait, oldest first.

    Example: shoal inbox list writer --data ./state --space crew
    """

    async def work(store: Store) -> None:
        await check_thread(store, run.space, thread)
        box = store.space(run.space).thread(thread).inbox
        none = f"no message to {thread!r} {'was taken' if taken else 'waits'}."
        with Listing("age", "key", "from", "taken by", "message", json=run.json, none=none) as rows:
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

    return work


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
@in_store
def send(
    run: Run,
    thread: ThreadName,
    message: Annotated[
        str, typer.Argument(metavar="JSON", help="The message, as JSON. - is standard input.", show_default=False)
    ],
    key: Key = None,
    by: By = "",
) -> Work:
    """Send a message to a thread.

    Example: shoal inbox send writer '{"review": 17}' --key review-17 --url http://127.0.0.1:7400 --space crew
    """
    value = json_of(message, "the message")

    async def work(store: Store) -> None:
        sent = await store.space(run.space).thread(thread).inbox.send(value, key=key, by=by)
        run.show({"id": sent.id, "sent": sent.sent}, sent.id if sent.sent else f"{sent.id}  was sent before under this key")

    return work


class _Bounds(NamedTuple):
    older_than: timedelta | None
    bytes: int | None
    events: int | None


@in_store
def trim(
    run: Run,
    thread: ThreadName,
    before: Annotated[str | None, typer.Option("--before", metavar="EVENT", help="Only events before this one.")] = None,
    older_than: OlderThan = None,
    keep_last: KeepLast = None,
    keep_bytes: KeepBytes = None,
    dry_run: DryRun = False,
) -> Work:
    """Trim old events of a thread's journal, on every node: those that meet all the options.

    Example: shoal trim researcher-1 --older-than 30d --keep-last 1000 --dry-run --data ./state --space crew
    """
    size = None if keep_bytes is None else bytes_of(keep_bytes)
    age = None if older_than is None else age_of(older_than)

    async def work(store: Store) -> None:
        handle = store.space(run.space).thread(thread)
        event = None if before is None else await event_id(handle, before)
        report = await handle.journal.trim(event, older_than=age, keep=keep_last, keep_bytes=size, dry_run=dry_run)
        fields = {"events": report.events, "bytes": report.bytes, "dry_run": report.dry_run}
        run.show(fields, f"{report.events:,} events {'would go' if dry_run else 'went'}, {shown_bytes(report.bytes)}")

    return work


@in_store
def retain(
    run: Run,
    thread: ThreadName,
    older_than: OlderThan = None,
    keep_last: KeepLast = None,
    keep_bytes: KeepBytes = None,
    forever: Annotated[bool, typer.Option("--forever", help="Trim nothing automatically any more.")] = False,
) -> Work:
    """Show a journal's retention rule, or set it: events beyond any of these bounds are trimmed as the journal grows.

    Example: shoal retain researcher-1 --older-than 30d --keep-last 100000 --data ./state --space crew
    """
    size = None if keep_bytes is None else bytes_of(keep_bytes)
    bounds = _Bounds(None if older_than is None else age_of(older_than), size, keep_last)
    if forever and any(bound is not None for bound in bounds):
        raise typer.BadParameter("--forever cannot be combined with bounds.")
    setting = forever or any(bound is not None for bound in bounds)

    async def work(store: Store) -> None:
        journal = store.space(run.space).thread(thread).journal
        if setting:
            kept = await journal.retain(older_than=bounds.older_than, bytes=bounds.bytes, events=bounds.events)
        else:
            kept = await journal.retention()
        if run.json:
            age_s = None if kept.older_than is None else kept.older_than.total_seconds()
            trimmed = None if kept.trimmed is None else kept.trimmed.isoformat()
            emit({"older_than_s": age_s, "bytes": kept.bytes, "events": kept.events, "trimmed": trimmed})
            return
        bounded = [
            f"events of the last {kept.older_than}" if kept.older_than is not None else "",
            f"the last {shown_bytes(kept.bytes)}" if kept.bytes is not None else "",
            f"the last {kept.events:,} events" if kept.events is not None else "",
        ]
        since = "" if kept.trimmed is None else f"; trimmed up to {kept.trimmed:%Y-%m-%d %H:%M:%S}Z"
        line(f"keeps {' and of these '.join(filter(None, bounded)) or 'everything'}{since}")

    return work
