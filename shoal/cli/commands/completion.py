"""`shoal completion` and `shoal context`: what a user sets up once, a script for the shell and names of servers."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer
from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script

from shoal.cli.access import contexts
from shoal.cli.output import is_terminal, line, note

PANEL = "Run"
_VARIABLE = "_SHOAL_COMPLETE"  # The variable with which the script asks `shoal` for completions.
_INSTALLED = {
    "bash": "mkdir -p ~/.local/share/bash-completion/completions && "
    "shoal completion bash > ~/.local/share/bash-completion/completions/shoal",
    "zsh": "mkdir -p ~/.zfunc && shoal completion zsh > ~/.zfunc/_shoal   # with this in ~/.zshrc: "
    "fpath+=~/.zfunc; autoload -Uz compinit; compinit",
    "fish": "mkdir -p ~/.config/fish/completions && shoal completion fish > ~/.config/fish/completions/shoal.fish",
}


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(completion)
    app.add_typer(contexts.group, name="context", rich_help_panel=PANEL)


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish", show_default=False)],
) -> None:
    """Print the script with which a shell completes commands and options; on a terminal, also how to install it.

    Example: shoal completion bash > ~/.local/share/bash-completion/completions/shoal
    """
    line(get_completion_script(prog_name="shoal", complete_var=_VARIABLE, shell=shell))
    if is_terminal():
        note(f"to install it: {_INSTALLED[shell]}")


def answer_shell() -> None:
    """Prepare to answer a shell that asks for completions, if one runs this process."""
    if _VARIABLE in os.environ:
        completion_init()
