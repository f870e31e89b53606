"""`shoal demo`."""

from __future__ import annotations

import time
from random import SystemRandom
from typing import Annotated

import typer
from rich.console import Console

from shoal.cli.execution import FAILED, execute, failure, interruptible, tls_ca, token_file

PANEL = "Run"
AGENTS_MAX = 64
MODULES_MIN = 3  # One at each node.


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
        bool, typer.Option("--embedded", help="Use one embedded store without nodes; it is killed with all agents.")
    ] = False,
    url: Annotated[
        str,
        typer.Option("--url", metavar="URLS", help="Use these running nodes, separated by commas, and kill none of them."),
    ] = "",
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Leave the nodes running (or keep the embedded store), and print commands to inspect them."
        ),
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Leave the nodes running until Ctrl-C, to look at them in a browser.")
    ] = False,
) -> None:
    """Kill one of three nodes under nine working agents, and check that nothing was lost.

    The agents, three at each node, survey Python's standard library together: each saves a checkpoint after every
    module, keeps a journal, and shares one document and six counters with the others. Part-way one node is killed with
    kill -9: its agents fail over to the others and resume. Later it is started again, and catches up. At the end all
    nodes must hold the same, and an independent recount must agree with every figure.

    The address that it prints shows all of that in a browser while it happens. docs/PAGE.md.

    With --url it works at your own nodes: kill one yourself. A second run resumes there, and has nothing left to do.

    Example: shoal demo --limit 300 --keep
    """
    # Imported here, because no other command needs them, and all would start more slowly.
    from shoal.demo.course import Access
    from shoal.demo.nodes import DemoFailed
    from shoal.demo.run import Options, run_demo

    urls = [each.strip().rstrip("/") for each in url.split(",") if each.strip()]
    if urls and (embedded or keep or watch):
        raise typer.BadParameter(
            "--url names nodes that run already: leave out --embedded, --keep and --watch. Nothing was written."
        )
    if embedded and watch:
        raise typer.BadParameter("--watch is for nodes. With --embedded use --keep, and then `shoal ui`.")
    token = token_file.get()
    access = Access(None if token is None else str(token), tls_ca.get())
    options = Options(agents=agents, limit=limit, embedded=embedded, urls=urls, keep=keep, watch=watch, access=access)
    work = run_demo(options, console=Console(), random=SystemRandom(), now_s=time.monotonic)
    try:
        agreed = execute(interruptible(work))
    except DemoFailed as error:
        raise failure(f"the demo failed: {error}") from None
    if not agreed:
        raise typer.Exit(FAILED)
