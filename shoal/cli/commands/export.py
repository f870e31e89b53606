"""`shoal export`: threads as JSON lines, for backups, searches, or other programs.

Law: a line holds one record of `shoal.workflows.export`, and is written as soon as it is read. Values are in the
tagged form of `shoal.values.to_json`, so that `from_json` returns the saved values with their types.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from shoal.cli.execution import execute
from shoal.cli.options import PANEL
from shoal.cli.output import emit
from shoal.cli.target import Data, SpaceName, Target, Url, chosen, opened
from shoal.workflows.export import export as exported


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(export)


def export(
    thread: Annotated[str | None, typer.Argument(metavar="[THREAD]", help="The thread's name.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All threads of the space.")] = False,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Annotated[bool, typer.Option("--json", help="The output is always JSON lines.", rich_help_panel="Output")] = True,
) -> None:
    """Print a thread, or all of a space, as JSON lines: branches, checkpoints with their states, events, steps.

    Example: shoal export researcher-1 --data ./state --space crew > researcher-1.jsonl
    """
    if (thread is None) != everything:
        raise typer.BadParameter("give either a THREAD or --all.")
    execute(_export(chosen(data, url, environment=os.environ), space, thread))


async def _export(target: Target, space: str, thread: str | None) -> None:
    async with opened(target) as store:
        async for record in exported(store.connection, space, thread):
            emit(record)
