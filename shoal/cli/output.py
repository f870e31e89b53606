"""Output for people and for machines.

For machines: JSON, one document per line, with types in the tagged form of
`shoal.values.to_json`, or the same as documents of YAML. For people: lines that are never cut to a width, so that they
can be piped. Control characters of stored text are escaped, so that it cannot move
the cursor or set a title.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Literal

import typer

from shoal import values

Form = Literal["table", "json", "yaml"]

form: ContextVar[Form | None] = ContextVar("form", default=None)
"""How a command is to print, as `-o` says; None: nothing was said."""


def _choose(given: Form | None) -> Form | None:
    form.set(given)
    return given


Output = Annotated[
    Form | None,
    typer.Option(
        "--output",
        "-o",
        is_eager=True,  # Before `--json`, whose default it is.
        callback=_choose,
        expose_value=False,
        show_default=False,
        help="How to print: as a table or text for people, or as json or yaml.",
        rich_help_panel="Output",
    ),
]
"""The option of every command that has `--json`, which is short for `-o json`."""


def is_for_machines() -> bool:
    """Whether `-o` says to print JSON or YAML."""
    return form.get() in ("json", "yaml")


@cache
def option() -> Any:
    """`Output`, as typer makes it of a command's parameter."""
    alone = typer.Typer(add_completion=False)

    @alone.command()
    def takes(output: Output = None) -> None:
        """A command that only has the option."""

    return next(each for each in typer.main.get_command(alone).params if each.name == "output")


# JSON escapes the control characters below a space, but not these.
_CONTROL = re.compile("[\x7f-\x9f]")
_EVERY_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def to_text(value: Any, *, indent: int | None = None) -> str:
    """`value` as JSON text.

    Raises:
        InvalidValue: it contains a value without a JSON form.
    """
    text = json.dumps(values.to_json(value), ensure_ascii=False, indent=indent)
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def plain(text: str) -> str:
    """The text with its control characters, and nothing else, escaped as in JSON."""
    return _EVERY_CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def emit(value: Any) -> None:
    """Print a document, of JSON on one line, and flush it, so that a watcher's reader need not wait for a full buffer."""
    if form.get() == "yaml":
        _emit_yaml(value)
        return
    typer.echo(to_text(value))


def _emit_yaml(value: Any) -> None:
    import yaml  # An extra.

    document = yaml.safe_dump(values.to_json(value), allow_unicode=True, sort_keys=False)
    typer.echo(f"---\n{document}", nl=False)


def line(text: str = "") -> None:
    """Print one line for people."""
    typer.echo(text)


def note(text: str) -> None:
    """Print a note on standard error, because a program may read the output."""
    typer.echo(f"shoal: {text}", err=True)


def pairs(rows: dict[str, object]) -> None:
    """Print names and values in two columns."""
    width = max(map(len, rows))
    for name, value in rows.items():
        line(f"{name:<{width}}  {value}")


def table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of equal length in aligned columns; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        line("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def moment(wall_ms: int) -> str:
    """A time for people, in UTC."""
    return f"{datetime.fromtimestamp(wall_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
