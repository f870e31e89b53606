"""`shoal delete`: what cannot be taken back."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from shoal.cli.execution import execute
from shoal.cli.output import emit, line
from shoal.cli.target import Data, Json, SpaceName, Target, Url, chosen, opened
from shoal.cli.threads import PANEL, ThreadName


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(delete)


def delete(
    thread: ThreadName,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Delete a thread on every node: its checkpoints, branches and journal. It cannot be taken back.

    Example: shoal delete researcher-1 --yes --data ./state --space crew
    """
    target = chosen(data, url, environment=os.environ)
    if not yes:
        typer.confirm(f"Delete thread {thread} of space {space} on every node, for good?", abort=True)
    execute(_delete(target, space, thread, json=json))


async def _delete(target: Target, space: str, name: str, *, json: bool) -> None:
    async with opened(target) as store:
        existed = await store.space(space).thread(name).delete()
    if json:
        emit({"thread": name, "existed": existed})
    else:
        line(f"deleted {name}" if existed else f"there was no thread {name}")
