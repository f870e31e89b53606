"""The options and arguments of more than one command: one name, one spelling and one help text for each idea.

`tests/cli/test_options.py` checks every command.
"""

from __future__ import annotations

from typing import Annotated

import typer

PANEL = "Look into a store"
"""The heading of these commands in `shoal --help`."""

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="The maximal number to show.")]
LimitOrAll = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, metavar="N", help="The maximal number to show. \\[default: all]")
]
Prefix = Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only names that begin with this.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")]

ThreadName = Annotated[str, typer.Argument(metavar="THREAD", help="The thread's name.", show_default=False)]
Branch = Annotated[str, typer.Option("--branch", metavar="NAME", help="The thread's branch.")]
Label = Annotated[str | None, typer.Option("--label", metavar="NAME", help="The name of a checkpoint within its thread.")]
Reveal = Annotated[bool, typer.Option("--reveal", help="Show secret fields too.")]

By = Annotated[
    str, typer.Option("--by", envvar="SHOAL_AUTHOR", metavar="NAME", help="Your name, which is kept with the change.")
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="The reason, which is kept.")]
Key = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="A command that is repeated with the same key is applied once.")
]
Expect = Annotated[
    str | None, typer.Option("--expect", metavar="VERSION", help="Only if this is its version; '' if it must not exist.")
]
Wait = Annotated[float, typer.Option("--wait", metavar="SECONDS", help="How long to wait for it.")]
Result = Annotated[str, typer.Option("--result", metavar="JSON", help="The result, as JSON. - is standard input.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

OlderThan = Annotated[str | None, typer.Option("--older-than", metavar="AGE", help="Only what is older: 30d, 12h, 90m or 45s.")]
KeepLast = Annotated[int | None, typer.Option("--keep-last", min=0, metavar="N", help="The last N stay.")]
KeepBytes = Annotated[
    str | None, typer.Option("--keep-bytes", metavar="SIZE", help="The last ones with this size in all stay: 4096, 64MiB.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")]
