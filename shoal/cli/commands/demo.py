"""`shoal demo`."""

from __future__ import annotations

import time
from pathlib import Path
from random import SystemRandom
from typing import Annotated

import typer
from rich.console import Console

from shoal.cli.execution import FAILED, execute, failure, interruptible
from shoal.demo.supervisor import MODULES_MIN
from shoal.demo.workers import WorkerFailed

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
        typer.Option("--limit", min=MODULES_MIN, metavar="N", help="Survey so many modules, spread evenly; by default all."),
    ] = None,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Use one embedded store without nodes; all agents are killed twice.")
    ] = False,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Leave the nodes running (or keep the embedded store), and print commands to inspect them."
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="A directory for the stores, which are kept. It must be empty or new."),
    ] = None,
) -> None:
    """Kill one of three nodes under nine working agents, and check that nothing was lost.

    The agents, three at each node, survey Python's standard library together: each saves a checkpoint after every
    module, keeps a journal, and shares one document and six counters with the others. Part-way one node is killed with
    kill -9: its agents fail over to the others and resume. Later it is started again, and catches up. At the end all
    nodes must hold the same, and an independent recount must agree with every figure.

    Example: shoal demo --limit 300 --keep
    """
    # Imported here, because no other command needs them, and all would start more slowly.
    from shoal.demo.cluster import run_cluster
    from shoal.demo.embedded import run_embedded
    from shoal.demo.nodes import NodeFailed
    from shoal.demo.stage import Options

    options = Options(agents=agents, limit=limit, keep=keep, data=data)
    form = run_embedded if embedded else run_cluster
    work = form(options, console=Console(), random=SystemRandom(), now_s=time.monotonic)
    try:
        agreed = execute(interruptible(work))
    except WorkerFailed as error:
        raise failure(f"the demo's worker failed: {error}") from None
    except NodeFailed as error:
        raise failure(f"a node of the demo failed: {error}") from None
    if not agreed:
        raise typer.Exit(FAILED)
