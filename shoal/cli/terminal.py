"""Output on a terminal: tables that fit it, colours, and ages.

Laws:
- All this is only for a terminal. A pipe gets the plain lines of `shoal.cli.output`, and
  `--json` its documents, so that the input of a program does not depend on a terminal.
- Stored text is never interpreted as markup, and no control character of it reaches the terminal.
- A table has at most `_ROWS_MAX` rows; further rows are another table, so that endless output is shown as it comes.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from shoal.cli.output import emit, line, note, plain, to_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

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


def _cell(heading: str, text: str) -> Text:
    from rich.text import Text

    return Text(plain(text), style=_WORDS.get(text, _STYLES.get(heading, "")))
