"""What people see on a terminal: tables that fit it, colours, and how long ago a thing was.

Laws:
- All this is for a terminal alone. A pipe gets the plain lines of `shoal.cli.output`, and
  `--json` its documents: what a program reads does not depend on who is watching.
- Nothing that came out of a store is read as markup, or reaches the terminal as a control character.
- A table holds `_ROWS_MAX` rows; more are another table, so that what is endless is shown as it comes.
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
_DAYS_TOLD = 30  # What is older has its date.
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
    """Whether standard output is one."""
    return sys.stdout.isatty()


class Listing:
    """Rows of one kind: a table on a terminal, plain lines in a pipe, JSON documents if those were asked for.

    Use: `with Listing("id", "age", json=json, none="no events") as rows: rows.add(...)`.
    """

    def __init__(self, *headings: str, json: bool, none: str = "", streams: bool = False) -> None:
        self._headings = headings
        self._json = json
        self._none = none  # To be said, beside the output, if there are no rows.
        self._streams = streams  # Rows come one by one: a table would wait for the last of them.
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
        return self._is_empty

    def add(self, document: Any, text: str, *cells: str) -> None:
        """A row in its three forms: JSON document, line, and a cell for each heading."""
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

        # A column in which no row has anything only takes room.
        used = [nth for nth in range(len(self._headings)) if any(row[nth] for row in self._rows)]
        table = Table(box=None, pad_edge=False, header_style="dim")
        for nth in used:
            table.add_column(self._headings[nth], overflow="fold")
        for row in self._rows:
            table.add_row(*(_cell(self._headings[nth], row[nth]) for nth in used))
        console().print(table)
        self._rows.clear()


def show_value(value: Any) -> None:
    """A value as JSON on several lines, coloured on a terminal."""
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
    """One line of a terminal: pieces of text, each with its style."""
    from rich.text import Text

    console().print(Text.assemble(*((plain(text), style) for text, style in parts)), soft_wrap=True, highlight=False)


def console() -> Console:
    """Standard output as it is now; NO_COLOR and TERM=dumb are obeyed."""
    from rich.console import Console

    return Console(highlight=False)


def ago(moment: datetime, *, now: datetime | None = None) -> str:
    """How long ago that was, in its largest unit; of what is long ago, the date."""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    if abs(seconds) >= _DAYS_TOLD * _DAY:
        return f"{moment:%Y-%m-%d}"
    length = abs(seconds)
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if length >= unit:
            return f"{int(length // unit)} {name} ago" if seconds > 0 else f"in {int(length // unit)} {name}"
    return f"{int(length)} s ago" if seconds >= 1 else "now" if seconds > -1 else f"in {int(length)} s"


def size(count: int) -> str:
    """Bytes, in the largest unit of which there is one at least."""
    if count < 1024:
        return f"{count} B"
    amount, unit = float(count), 0
    while amount >= 1023.95 and unit < len(_UNITS) - 1:  # What would be shown as 1024.0 is one of the next.
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}"


def shown_bytes(count: int) -> str:
    """A size for people on a terminal, and all its digits in a pipe."""
    return size(count) if is_terminal() else f"{count:,} bytes"


def _cell(heading: str, text: str) -> Text:
    from rich.text import Text

    return Text(plain(text), style=_WORDS.get(text, _STYLES.get(heading, "")))
