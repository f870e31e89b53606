"""An event of the log, and a line of it.

Law: an event is what happened, under a name that stays; what differs from one time to the next is in its fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Formatter

from shoal.records import NamedTuple

Value = str | int | float | Sequence[str]


class Event(NamedTuple):
    """A row of the table. `text` is what people read, with all fields in braces but those in `also`."""

    area: str
    name: str  # Stable: alerts and searches rely on it.
    level: str  # One of `shoal.config.LOG_LEVELS`.
    text: str
    meaning: str
    also: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of its fields, in the order of the text."""
        named = (field for _, field, _, _ in Formatter().parse(self.text) if field is not None)
        return (*dict.fromkeys(named), *self.also)


class Line(NamedTuple):
    """One event that happened. `bug` is an error that nobody expected."""

    event: Event
    fields: Mapping[str, Value]
    request: str
    bug: BaseException | None

    @property
    def text(self) -> str:
        """The line as people read it."""
        try:
            return self.event.text.format_map({name: told(value) for name, value in self.fields.items()})
        except (KeyError, ValueError):  # A field is missing: a test looks at each place, and a line raises nothing.
            return self.event.text


def told(value: Value) -> str | int | float:
    """A value as people read it."""
    return value if isinstance(value, (str, int, float)) else ", ".join(value)
