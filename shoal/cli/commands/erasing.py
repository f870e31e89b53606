"""`shoal prune` and `shoal delete`: deletions, which cannot be undone."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Annotated, NamedTuple

import msgspec
import typer

from shoal.cli.arguments import age_of
from shoal.cli.execution import execute
from shoal.cli.options import PANEL, DryRun, KeepLast, OlderThan, ThreadName, Yes
from shoal.cli.output import emit, line
from shoal.cli.target import Data, Json, SpaceName, Target, Url, chosen, opened
from shoal.cli.terminal import shown_bytes


class _Wanted(NamedTuple):
    keep_last: int
    older_than: timedelta | None
    branch: str | None


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(prune)
    app.command(rich_help_panel=PANEL)(delete)


def prune(
    thread: ThreadName,
    keep_last: KeepLast = 10,
    older_than: OlderThan = None,
    branch: Annotated[
        str | None, typer.Option("--branch", metavar="NAME", help="The thread's branch. \\[default: all]")
    ] = None,
    dry_run: DryRun = False,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Prune a thread's old checkpoints. The last of each branch stay, and heads, labelled ones, and those where branches part.

    Example: shoal prune researcher-1 --keep-last 20 --older-than 30d --dry-run --data ./state --space crew
    """
    age = None if older_than is None else age_of(older_than)
    target = chosen(data, url, environment=os.environ)
    execute(
        _prune(
            target, (space, thread), _Wanted(10 if keep_last is None else keep_last, age, branch), dry_run=dry_run, json=json
        )
    )


async def _prune(target: Target, place: tuple[str, str], wanted: _Wanted, *, dry_run: bool, json: bool) -> None:
    space, name = place
    async with opened(target) as store:
        thread = store.space(space).thread(name)
        report = await thread.prune(
            keep_last=wanted.keep_last, older_than=wanted.older_than, branch=wanted.branch, dry_run=dry_run
        )
    if json:
        emit(msgspec.structs.asdict(report))
        return
    stays = ", ".join(f"{count:,} {reason}" for reason, count in report.stays.items())
    line(
        f"{report.count:,} checkpoints {'would go' if dry_run else 'went'}, {shown_bytes(report.bytes)}; {stays or 'none'} stay"
    )


def delete(
    thread: ThreadName,
    yes: Yes = False,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Delete a thread on every node: its checkpoints, branches and journal. This cannot be undone.

    Example: shoal delete researcher-1 --yes --data ./state --space crew
    """
    target = chosen(data, url, environment=os.environ)
    if not yes:
        typer.confirm(f"Delete thread {thread} of space {space} on every node, for good?", abort=True, err=True)
    execute(_delete(target, space, thread, json=json))


async def _delete(target: Target, space: str, name: str, *, json: bool) -> None:
    async with opened(target) as store:
        existed = await store.space(space).thread(name).delete()
    if json:
        emit({"thread": name, "existed": existed})
    else:
        line(f"deleted {name}" if existed else f"there was no thread {name}")
