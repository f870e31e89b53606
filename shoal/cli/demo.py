"""`shoal demo`."""

from __future__ import annotations

import time
from pathlib import Path
from random import SystemRandom
from typing import Annotated

import typer
from rich.console import Console

from shoal.cli.execution import FAILED, execute, failure, interruptible
from shoal.demo.embedded import run_embedded
from shoal.demo.stage import Options
from shoal.demo.supervisor import MODULES_MIN, WorkerFailed

PANEL = "Run"
AGENTS_MAX = 64


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(rich_help_panel=PANEL)(demo)


def demo(
    agents: Annotated[
        int, typer.Option("--agents", min=1, max=AGENTS_MAX, metavar="N", help="How many agents share the work.")
    ] = 9,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=MODULES_MIN, metavar="N", help="Survey so many modules, spread evenly; all without it."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the store, and say how to look at it.")] = False,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Put the store there, and keep it. It must be empty or new.")
    ] = None,
) -> None:
    """Kill nine working agents twice, and check that nothing was lost.

    They survey Python's standard library together: each saves a checkpoint after every module, keeps a journal, and
    shares one document and six counters with the others. Twice, all of them are killed with kill -9 while they write,
    and resume. In the end a recount that knows no store must agree with every one of their figures.

    Example: shoal demo --limit 300 --keep
    """
    options = Options(agents=agents, limit=limit, keep=keep, data=data)
    work = run_embedded(options, console=Console(), random=SystemRandom(), now_s=time.monotonic)
    try:
        agreed = execute(interruptible(work))
    except WorkerFailed as error:
        raise failure(f"the demo's worker failed: {error}") from None
    if not agreed:
        raise typer.Exit(FAILED)
