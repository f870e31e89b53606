"""`shoal audit`: who did what in a thread, and proof that nothing was altered since a signed statement."""

from __future__ import annotations

import typer

from shoal.cli.commands.audit import proofs
from shoal.cli.commands.audit.threads import timeline
from shoal.cli.options import PANEL


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    group = typer.Typer(no_args_is_help=True, help="Show who did what, and prove that nothing was altered.")
    group.command(name="thread")(timeline)
    for command in (proofs.sign, proofs.export, proofs.verify):
        group.command()(command)
    app.add_typer(group, name="audit", rich_help_panel=PANEL)
