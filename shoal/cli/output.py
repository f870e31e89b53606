"""Print for people, or for machines.

For machines: JSON, one document a line, with a value's own types in the tagged
form of `shoal.values.to_json`. For people: lines that survive a pipe, never cut
to a width. Nothing that came out of a store can move a cursor or set a title:
control characters are escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import typer

from shoal import values

# JSON escapes the control characters below a space by itself, but not these.
_CONTROL = re.compile("[\x7f-\x9f]")
_EVERY_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def to_text(value: Any, *, indent: int | None = None) -> str:
    """`value` as JSON text.

    Raises:
        InvalidValue: it holds something that has no JSON form.
    """
    text = json.dumps(values.to_json(value), ensure_ascii=False, indent=indent)
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def plain(text: str) -> str:
    """Text without its control characters: they are escaped as JSON does, and nothing else is."""
    return _EVERY_CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def emit(value: Any) -> None:
    """One JSON document on a line of its own, at once: a watcher's reader must not wait for a full buffer."""
    typer.echo(to_text(value))


def line(text: str = "") -> None:
    typer.echo(text)


def note(text: str) -> None:
    """Beside the output, which a program may be reading."""
    typer.echo(f"shoal: {text}", err=True)


def pairs(rows: dict[str, object]) -> None:
    """Names and values in two columns."""
    width = max(map(len, rows))
    for name, value in rows.items():
        line(f"{name:<{width}}  {value}")


def table(rows: Sequence[Sequence[str]]) -> None:
    """Rows of equal length, their columns aligned; the first is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        line("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def moment(wall_ms: int) -> str:
    return f"{datetime.fromtimestamp(wall_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
