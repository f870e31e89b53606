"""`shoal trim` and `shoal retain`: trimming of a thread's journal, and its retention rule."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Annotated, NamedTuple

import typer

from shoal.cli.arguments import age_of, bytes_of
from shoal.cli.execution import execute
from shoal.cli.ids import event_id
from shoal.cli.options import PANEL, DryRun, KeepBytes, KeepLast, OlderThan, ThreadName
from shoal.cli.output import emit, line
from shoal.cli.target import Data, Json, SpaceName, Target, Url, chosen, opened
from shoal.cli.terminal import shown_bytes


class _Wanted(NamedTuple):
    before: str | None
    older_than: timedelta | None
    keep: int | None
    keep_bytes: int | None


class _Bounds(NamedTuple):
    older_than: timedelta | None
    bytes: int | None
    events: int | None


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(trim)
    app.command(rich_help_panel=PANEL)(retain)


def trim(
    thread: ThreadName,
    before: Annotated[str | None, typer.Option("--before", metavar="EVENT", help="Only events before this one.")] = None,
    older_than: OlderThan = None,
    keep_last: KeepLast = None,
    keep_bytes: KeepBytes = None,
    dry_run: DryRun = False,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Trim old events of a thread's journal, on every node: those that meet all the options.

    Example: shoal trim researcher-1 --older-than 30d --keep-last 1000 --dry-run --data ./state --space crew
    """
    size = None if keep_bytes is None else bytes_of(keep_bytes)
    wanted = _Wanted(before, None if older_than is None else age_of(older_than), keep_last, size)
    execute(_trim(chosen(data, url, environment=os.environ), (space, thread), wanted, dry_run=dry_run, json=json))


async def _trim(target: Target, place: tuple[str, str], wanted: _Wanted, *, dry_run: bool, json: bool) -> None:
    space, name = place
    async with opened(target) as store:
        thread = store.space(space).thread(name)
        before = None if wanted.before is None else await event_id(thread, wanted.before)
        report = await thread.journal.trim(
            before, older_than=wanted.older_than, keep=wanted.keep, keep_bytes=wanted.keep_bytes, dry_run=dry_run
        )
    if json:
        emit({"events": report.events, "bytes": report.bytes, "dry_run": report.dry_run})
    else:
        line(f"{report.events:,} events {'would go' if dry_run else 'went'}, {shown_bytes(report.bytes)}")


def retain(
    thread: ThreadName,
    older_than: OlderThan = None,
    keep_last: KeepLast = None,
    keep_bytes: KeepBytes = None,
    forever: Annotated[bool, typer.Option("--forever", help="Trim nothing automatically any more.")] = False,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Show a journal's retention rule, or set it: events beyond any of these bounds are trimmed as the journal grows.

    Example: shoal retain researcher-1 --older-than 30d --keep-last 100000 --data ./state --space crew
    """
    size = None if keep_bytes is None else bytes_of(keep_bytes)
    bounds = _Bounds(None if older_than is None else age_of(older_than), size, keep_last)
    if forever and any(bound is not None for bound in bounds):
        raise typer.BadParameter("--forever cannot be combined with bounds.")
    target = chosen(data, url, environment=os.environ)
    execute(_retain(target, (space, thread), bounds, setting=forever or any(bound is not None for bound in bounds), json=json))


async def _retain(target: Target, place: tuple[str, str], bounds: _Bounds, *, setting: bool, json: bool) -> None:
    space, name = place
    async with opened(target) as store:
        journal = store.space(space).thread(name).journal
        if setting:
            kept = await journal.retain(older_than=bounds.older_than, bytes=bounds.bytes, events=bounds.events)
        else:
            kept = await journal.retention()
    if json:
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
