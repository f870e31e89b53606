"""`shoal trim` and `shoal retain`: trimming of a thread's journal, and its retention rule."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from shoal.cli.arguments import age_of, bytes_of
from shoal.cli.command import Run, Work, in_store
from shoal.cli.ids import event_id
from shoal.cli.options import PANEL, DryRun, KeepBytes, KeepLast, OlderThan, ThreadName
from shoal.cli.output import emit, line
from shoal.cli.terminal import shown_bytes

if TYPE_CHECKING:
    from shoal.client.store import Store


class _Bounds(NamedTuple):
    older_than: timedelta | None
    bytes: int | None
    events: int | None


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(trim)
    app.command(rich_help_panel=PANEL)(retain)


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
