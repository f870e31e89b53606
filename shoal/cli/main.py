"""The `shoal` command: its groups, its version, and what each command is for.

Exit codes are those of `shoal.cli.execution`.
"""

from __future__ import annotations

from typing import Annotated

import typer

import shoal
from shoal.cli import (
    branches,
    completion,
    demo,
    erasing,
    export,
    graph,
    items,
    journals,
    mutations,
    objects,
    presence,
    retention,
    schemas,
    serve,
    steps,
    target,
    threads,
    verify,
    worklists,
)
from shoal.cli.execution import Commands

app = typer.Typer(
    name="shoal",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    add_completion=False,
    epilog="[bold]First steps[/]:  shoal demo  ·  shoal serve --data ./state  ·  shoal threads --url http://127.0.0.1:7400",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shoal {shoal.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version, and exit.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            envvar="SHOAL_WAIT",
            metavar="SECONDS",
            min=0.0,
            show_default=False,
            help="Give a node that is about to come so many seconds, as in `shoal --wait 30 status --url URL`.",
        ),
    ] = 0.0,
) -> None:
    """A durable, replicated state layer for AI agents.

    Commands that look into a store take [bold]--data DIR[/] for one on this machine, or [bold]--url URL[/] for a running node.
    """
    target.wait_s.set(wait)


for commands in (
    *(serve, demo, verify, completion),
    *(threads, graph, mutations, branches, journals, worklists, retention, erasing),
    *(objects, presence, items, steps, schemas, export),
):
    commands.register(app)


def main() -> None:
    """The console script's entry."""
    completion.answer_shell()
    app(prog_name="shoal")
