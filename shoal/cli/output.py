"""Output for people and for machines, and the replies of the protocol in it.

For machines: JSON, one document per line, with types in the tagged form of
`shoal.values.to_json`, or the same as documents of YAML. For people: lines that are never cut to a width, so that they
can be piped; on a terminal tables that fit it, colours, and ages.

Laws:
- Tables and colours are only for a terminal. A pipe gets plain lines, and `--json` its documents, so that the input of a
  program does not depend on a terminal.
- Stored text is never interpreted as markup, and no control character of it reaches the terminal: it cannot move the cursor
  or set a title. Nor does one that reorders what stands around it (CVE-2021-42574): what is shown is what is stored.
- A table has at most `_ROWS_MAX` rows; further rows are another table, so that endless output is shown as it comes.

Replies of the protocol for machines, as HTTP has them, and for people, as cells of tables.

Laws:
- A document has the fields of the reply and its properties, by their names over HTTP; packed values are JSON, cursors are text.
- In a cell a packed value is JSON and other text is as it is, so that `1` and `"1"` differ.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union, get_args, get_origin, get_type_hints

import msgspec
import typer
from msgspec import Struct

from shoal import values
from shoal.api.http.headers import shown_opaque
from shoal.protocol.base import Named, Shape
from shoal.records import NamedTuple
from shoal.values import forms as vectors

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


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


# JSON escapes the control characters below a space, but not these. Those from U+2028 on end a line, or reorder text.
_MORE = r"\x7f-\x9f\u2028-\u202e\u2066-\u2069"
_CONTROL = re.compile(f"[{_MORE}]")
_EVERY_CONTROL = re.compile(rf"[\x00-\x1f{_MORE}]")


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
    if _CONTROL.search(document):  # YAML takes these for printable. Only a text in quotes can escape them.
        document = yaml.safe_dump(values.to_json(value), sort_keys=False)
    typer.echo(f"---\n{document}", nl=False)


def line(text: str = "") -> None:
    """Print one line for people."""
    typer.echo(text)


def note(text: str) -> None:
    """Print a note on standard error, because a program may read the output."""
    typer.echo(f"shoal: {text}", err=True)


def note_empty(space: str) -> None:
    """Print a note that nothing is in a space, where one is named that may be meant to be another."""
    note(f"nothing is in space {space!r}: check its name. `shoal spaces` lists the spaces that hold something.")


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


def moment(wall_ms: int, *, later: bool = False) -> str:
    """A time for people, in UTC: the second in which it is, or that which is not before it."""
    return f"{datetime.fromtimestamp(-(-wall_ms // 1000) if later else wall_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


_ROWS_MAX = 200
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_DAYS_TOLD = 30  # Older things are shown with their date.
_STYLES = {
    **dict.fromkeys(("head", "others", "checkpoint", "knowing"), "yellow"),
    **dict.fromkeys(("age", "saved", "begun", "updated"), "dim"),
    **dict.fromkeys(("thread", "name", "branch", "label", "space"), "bold"),
    **dict.fromkeys(("key", "place", "namespace", "field"), "cyan"),
}
_WORDS = {
    **dict.fromkeys(("done", "ready", "linked", "self", "built"), "green"),
    **dict.fromkeys(("failed", "unreachable", "read-only", "abandoned"), "bold red"),
    **dict.fromkeys(("waiting", "paused", "open", "stopping"), "yellow"),
}


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


class Listing:
    """Rows of one kind: a table on a terminal, plain lines in a pipe, or JSON documents if `json`.

    Use: `with Listing("id", "age", json=json, none="no events") as rows: rows.add(...)`.
    """

    def __init__(self, *headings: str, json: bool, none: str = "", streams: bool = False) -> None:
        self._headings = headings
        self._json = json
        self._none = none  # The note if there are no rows.
        self._streams = streams  # Whether rows come one by one, so that a table would wait for the last of them.
        self._rows: list[tuple[str, ...]] = []
        self._is_empty = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            return
        self._print_table()
        if self._is_empty and self._none and not self._json:
            note(self._none)

    @property
    def is_empty(self) -> bool:
        """Whether no row was added."""
        return self._is_empty

    def add(self, document: Any, text: str, *cells: str) -> None:
        """Add a row in its three forms: JSON document, line, and a cell for each heading."""
        self._is_empty = False
        if self._json:
            emit(document)
        elif self._streams or not is_terminal():
            line(text)
        else:
            self._rows.append(cells)
            if len(self._rows) == _ROWS_MAX:
                self._print_table()

    def _print_table(self) -> None:
        if not self._rows:
            return
        from rich.table import Table

        # Leave out columns that are empty in all rows.
        used = [nth for nth in range(len(self._headings)) if any(row[nth] for row in self._rows)]
        table = Table(box=None, pad_edge=False, header_style="dim")
        for nth in used:
            table.add_column(self._headings[nth], overflow="fold")
        for row in self._rows:
            table.add_row(*(_cell(self._headings[nth], row[nth]) for nth in used))
        console().print(table)
        self._rows.clear()


def show_value(value: Any) -> None:
    """Print a value as JSON on several lines, coloured on a terminal."""
    text = to_text(value, indent=2)
    if not is_terminal():
        line(text)
        return
    from rich.highlighter import JSONHighlighter
    from rich.text import Text

    shown = Text(text)
    JSONHighlighter().highlight(shown)
    console().print(shown, soft_wrap=True)


def show_text(*parts: tuple[str, str]) -> None:
    """Print one line on a terminal, from pieces of text with styles."""
    from rich.text import Text

    console().print(Text.assemble(*((plain(text), style) for text, style in parts)), soft_wrap=True, highlight=False)


def console() -> Console:
    """A console on the current standard output; it obeys NO_COLOR and TERM=dumb."""
    from rich.console import Console

    return Console(highlight=False)


def ago(moment: datetime, *, now: datetime | None = None) -> str:
    """How long ago a time was, in the largest unit; for old times the date."""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    if abs(seconds) >= _DAYS_TOLD * _DAY:
        return f"{moment:%Y-%m-%d}"
    length = abs(seconds)
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if length >= unit:
            return f"{int(length // unit)} {name} ago" if seconds > 0 else f"in {int(length // unit)} {name}"
    return f"{int(length)} s ago" if seconds >= 1 else "now" if seconds > -1 else f"in {int(length)} s"


def size(count: int) -> str:
    """Bytes in the largest unit in which the number is at least one."""
    if count < 1024:
        return f"{count} B"
    amount, unit = float(count), 0
    while amount >= 1023.95 and unit < len(_UNITS) - 1:  # 1024.0 of a unit is shown as 1.0 of the next.
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}"


def shown_bytes(count: int) -> str:
    """A size with a unit on a terminal, and as a plain number in a pipe."""
    return size(count) if is_terminal() else f"{count:,} bytes"


def span(ms: int) -> str:
    """A duration as an option takes it."""
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m")):
        if ms and ms % unit_ms == 0:
            return f"{ms // unit_ms:,}{unit}"
    return f"{ms / 1000:,g}s"


def _cell(heading: str, text: str) -> Text:
    from rich.text import Text

    return Text(plain(text), style=_WORDS.get(text, _STYLES.get(heading, "")))


class Field(NamedTuple):
    """A field or a property of a reply, or of a part of one."""

    name: str  # In the protocol.
    shown: str  # Over HTTP.
    kind: Any


class Column(NamedTuple):
    """A column of a table: the way to it, of fields of the row, and its heading."""

    path: tuple[str, ...]
    heading: str


def document(reply: Struct) -> dict[str, Any]:
    """A reply, or a part of one, for machines."""
    return {field.shown: shown(getattr(reply, field.name), field.kind) for field in fields(type(reply))}


@cache  # As many as there are replies, and parts of them.
def fields(kind: Any) -> tuple[Field, ...]:
    """The fields of a reply that callers see, and its properties."""
    found = []
    for field in msgspec.structs.fields(kind):
        marks = marks_of(field.type)
        if Shape.INTERNAL not in marks:
            name = next((mark.name for mark in marks if isinstance(mark, Named)), field.name)
            found.append(Field(field.name, name, field.type))
    computed = ((name, each.fget) for name, each in vars(kind).items() if isinstance(each, property))
    return (*found, *(Field(name, name, get_type_hints(get, include_extras=True)["return"]) for name, get in computed))


def marks_of(kind: Any) -> tuple[Any, ...]:
    """The marks of a type, also of one that may be None."""
    return get_args(kind)[1:] if get_origin(kind) is Annotated else ()


def bare(kind: Any) -> Any:
    """A type without its marks."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def present(kind: Any) -> Any:
    """A type without None."""
    if get_origin(kind) in (Union, UnionType) and NoneType in get_args(kind):
        [found] = (each for each in get_args(kind) if each is not NoneType)
        return found
    return kind


def shown(value: Any, kind: Any) -> Any:
    """A field's value for machines."""
    if value is None:
        return None
    for mark in marks_of(kind):
        if mark in _SHOWN:
            return _SHOWN[mark](value)
    kind = present(bare(kind))
    if marks_of(kind):
        return shown(value, kind)
    if isinstance(value, Struct):
        return document(value)
    if isinstance(value, list | tuple) and get_args(kind):
        return [shown(each, get_args(kind)[0]) for each in value]
    if isinstance(value, dict):
        return {name: shown(each, get_args(kind)[1]) for name, each in value.items()}
    return value


_SHOWN: dict[Any, Callable[[Any], Any]] = {
    Shape.VALUE: lambda kept: values.decode(kept) if kept else None,
    Shape.VALUES: lambda kept: values.decode(kept) if kept else None,
    Shape.STATE: lambda kept: {name: values.decode(each) for name, each in kept.items()},
    Shape.CURSOR: shown_opaque,
    Shape.JSON: lambda kept: json.loads(kept),
    Shape.SECONDS: lambda kept: kept / 1000,
    Shape.MOMENT: lambda kept: kept or None,
    Shape.TIME: lambda kept: datetime.fromtimestamp(kept / 1000, UTC).isoformat(),
    Shape.VECTOR: lambda kept: list(vectors.unpack(kept)),
}


_NIL = values.encode(None)

# ── for people ────────────────────────────────────────────────────────────────


def columns_of(kind: Any, chosen: Sequence[str], name: str) -> list[Column]:
    """The columns of rows of this type; of those that are no structs, one of this name."""
    if not (isinstance(kind, type) and issubclass(kind, Struct)):
        return [Column((), name)]
    paths = chosen or [field.name for field in fields(kind) if Shape.CURSOR not in marks_of(field.kind)]
    return [Column(tuple(path.split(".")), _heading(path)) for path in paths]


def cell(row: Any, kind: Any, path: Sequence[str], *, told: Callable[[int], str]) -> str:
    """The text of a row in a column; `told` shows a time."""
    return ", ".join(_texts(row, kind, path, told))


def age(wall_ms: int) -> str:
    """A time in a table on a terminal."""
    return ago(datetime.fromtimestamp(wall_ms / 1000, UTC))


def date(wall_ms: int) -> str:
    """A time in a line of a pipe."""
    return moment(wall_ms)


def _heading(path: str) -> str:
    return "age" if path == "wall_ms" else path.removesuffix("_ms").removesuffix(".id").replace(".", " ").replace("_", " ")


def _texts(value: Any, kind: Any, path: Sequence[str], told: Callable[[int], str]) -> Iterator[str]:
    """The texts that a cell has, with commas between them."""
    if value is None or value in (b"", [], {}):
        return
    if Shape.VALUE in marks_of(kind):
        yield to_text(shown(value, kind))
    elif isinstance(value, list):
        within = get_args(present(bare(kind)))[0]
        for each in value:
            yield from _texts(each, within, path, told)
    elif path and isinstance(value, Struct):
        [field] = (each for each in fields(type(value)) if each.name == path[0])
        found = getattr(value, field.name)
        if len(path) == 1 and (path[0].endswith("_ms") or Shape.TIME in marks_of(field.kind)):
            yield from [told(found)] if found else []
        elif found == _NIL:
            return
        elif isinstance(found, bool):
            yield from [field.shown] if found else []
        else:
            yield from _texts(found, field.kind, path[1:], told)
    elif isinstance(value, str):
        yield plain(value)
    else:
        yield to_text(shown(value, kind))
