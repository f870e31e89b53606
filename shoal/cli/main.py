"""The `shoal` command: its groups, its version, and a summary of each command.

Exit codes are those of `shoal.cli.execution`.

Law: a command imports only its own module. `summary.json`, which is generated
from the modules, names the module of each command; `shoal --help` needs nothing else.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shoal import __version__
from shoal.cli import execution
from shoal.cli.execution import Commands
from shoal.records import NamedTuple

MODULES = (
    "serve",
    "demo",
    "directories",
    "backup",
    "contexts",
    "threads",
    "transfer",
    "mutations",
    "branches",
    "objects",
    "following",
    "crews",
    "erasing",
    "retention",
    "redaction",
    "status",
    "doctor",
    "audit",
)
"""In the order of `shoal --help`."""

SUMMARY = Path(__file__).parent / "summary.json"


class Summary(NamedTuple):
    """The line of `shoal --help` for a command or group, and its module."""

    name: str
    module: str
    panel: str
    help: str


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shoal {__version__}")
        raise typer.Exit


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
            help="Wait so many seconds for a node that is starting, as in `shoal --wait 30 status --url URL`.",
        ),
    ] = 0.0,
    tls_ca: Annotated[
        str | None,
        typer.Option(
            "--tls-ca",
            envvar="SHOAL_TLS_CA",
            metavar="FILE",
            show_default=False,
            help="The CA of the nodes' certificates, for https:// URLs. \\[default: those that the system trusts]",
        ),
    ] = None,
    encryption_key: Annotated[
        str,
        typer.Option(
            "--encryption-key",
            envvar="SHOAL_ENCRYPTION_KEY",
            metavar="SOURCE",
            show_default=False,
            help="The master key of an encrypted directory: file:PATH, env:NAME, command:COMMAND or plugin:MODULE:NAME.",
        ),
    ] = "",
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            envvar="SHOAL_TOKEN_FILE",
            metavar="FILE",
            show_default=False,
            help="The token to show to nodes that ask for one. \\[default: SHOAL_TOKEN]",
        ),
    ] = None,
    context: Annotated[
        str,
        typer.Option(
            "--context",
            envvar="SHOAL_CONTEXT",
            metavar="NAME",
            show_default=False,
            help="The named server to use, as `shoal context list` shows. \\[default: the one in use]",
        ),
    ] = "",
    durability: Annotated[
        Literal["memory", "local", "quorum", "all"],
        typer.Option(
            "--durability",
            envvar="SHOAL_DURABILITY",
            metavar="LEVEL",
            show_default=False,
            help="When a write is acknowledged: memory, local, quorum or all. \\[default: local]",
        ),
    ] = "local",
) -> None:
    """A durable, replicated state layer for AI agents.

    Commands that use a store take [bold]--data DIR[/] for one on this machine, or [bold]--url URL[/] for a running node.
    """
    execution.wait_s.set(wait)
    execution.tls_ca.set(tls_ca or None)
    execution.encryption_key.set(encryption_key)
    execution.token_file.set(token_file)
    execution.context.set(context)
    execution.durability.set(durability)


def _empty() -> typer.Typer:
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
    app.callback()(root)
    return app


def app_of(modules: Iterable[str]) -> typer.Typer:
    """The application with the commands of these modules of `shoal.cli`."""
    app = _empty()
    for module in modules:
        import_module(f"shoal.cli.commands.{module}").register(app)
    return app


def _listing(summaries: Iterable[Summary]) -> typer.Typer:
    """The application that can only list its commands."""
    app = _empty()
    for each in summaries:
        app.command(each.name, help=each.help, rich_help_panel=each.panel)(lambda: None)
    return app


def _needed(arguments: list[str]) -> typer.Typer:
    """The application with the commands that these arguments may need."""
    summaries = [Summary(*each) for each in json.loads(SUMMARY.read_text())]
    modules = {each.name: each.module for each in summaries}
    if "_SHOAL_COMPLETE" in os.environ:
        return app_of(MODULES)
    if not arguments or arguments[0] in ("-h", "--help", "-V", "--version"):
        return _listing(summaries)
    # The error for a mistyped command lists the existing ones.
    return app_of([modules[arguments[0]]]) if arguments[0] in modules else app_of(MODULES)


if TYPE_CHECKING:
    app: typer.Typer
else:

    def __getattr__(name: str) -> Any:
        """`app`, with all commands, for importers of this module."""
        if name != "app":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        found = globals()["app"] = app_of(MODULES)
        return found


def main() -> None:
    """The entry point of the console script."""
    _open_streams()
    if "_SHOAL_COMPLETE" in os.environ:
        from shoal.cli.commands.contexts import answer_shell

        answer_shell()
    execution.is_process = True
    gc.disable()  # What a command imports stays. `execute` has one that lasts collect again.
    try:
        _needed(sys.argv[1:])(prog_name="shoal")
    finally:
        gc.enable()


def _open_streams() -> None:
    """Open on nothing each standard stream that was closed: its number would be that of the next file or socket."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        with suppress(OSError):
            os.fstat(number)
            continue
        opened = os.open(os.devnull, os.O_RDWR)  # The lowest number that is free, which is this one.
        os.set_inheritable(opened, True)
        setattr(sys, name, os.fdopen(opened, "w" if number else "r", closefd=False))
