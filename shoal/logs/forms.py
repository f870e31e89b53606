"""The forms of a line on standard error: an object of JSON, or text for people.

Laws:
- One event is one line: what a peer or a client chose as a name can neither end a line nor move the cursor.
- An error that nobody expected is shown by its type and the places where it was raised; its text may hold what users wrote. Of
  a line that a library wrote only the first one is shown, for the same reason.
"""

from __future__ import annotations

import logging
import traceback
from datetime import UTC, datetime
from typing import Any

import msgspec

from shoal.errors import ShoalError
from shoal.logs.event import Line, told
from shoal.logs.events import LIBRARY

_FRAMES_MAX = 64
_CAUSES_MAX = 4
_UNPRINTABLE = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


_ESCAPED = {code: f"\\u{code:04x}" for code in _UNPRINTABLE if code > 0x7E}  # In JSON, where they stand in strings alone.


class JsonForm(logging.Formatter):
    """An object of JSON for each line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line, level = _line_of(record)
        shown: dict[str, Any] = {
            "timestamp": _moment(record),
            "level": level,
            "event": line.event.name,
            "text": line.text,
            **({"request": line.request} if line.request else {}),
            **line.fields,
        }
        if line.bug is not None:
            shown |= {"error": _kinds(line.bug), "frames": _frames(line.bug)}
        return msgspec.json.encode(_clean(shown)).decode().translate(_ESCAPED)


class TextForm(logging.Formatter):
    """A line for people: when, how grave, the event's name, its text, and the request that it belongs to."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line, level = _line_of(record)
        parts = [_moment(record), f"{level:<7}", f"{line.event.name}:", line.text]
        parts += [f"{name}={told(line.fields[name])}" for name in line.event.also if line.fields.get(name)]
        parts += [f"request={line.request}"] if line.request else []
        if line.bug is not None:
            parts += [f"error={' < '.join(_kinds(line.bug))}", f"frames={' < '.join(_frames(line.bug))}"]
        return _written(" ".join(parts)).translate(_UNPRINTABLE)


def _line_of(record: logging.LogRecord) -> tuple[Line, str]:
    line = getattr(record, "line", None)
    if isinstance(line, Line):
        return line, line.event.level
    first, *_ = record.getMessage().splitlines() or [""]
    bug = record.exc_info[1] if record.exc_info else None
    return Line(LIBRARY, {"library": record.name, "says": first}, "", bug), record.levelname.lower()


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _kinds(bug: BaseException) -> list[str]:
    """The types of an error and of what caused it; the texts of Shoal's own errors hold names, and no content."""
    found: list[str] = []
    cause: BaseException | None = bug
    while cause is not None and len(found) < _CAUSES_MAX:
        found.append(f"{type(cause).__name__}: {cause.message}" if isinstance(cause, ShoalError) else type(cause).__name__)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return found


def _frames(bug: BaseException) -> list[str]:
    """Where it was raised, the innermost place first."""
    frames = traceback.extract_tb(bug.__traceback__, limit=-_FRAMES_MAX)
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in reversed(frames)]


def _written(text: str) -> str:
    """Text that can be written as UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def _clean(value: Any) -> Any:
    """A value of JSON whose texts can be written."""
    match value:
        case str():
            return _written(value)
        case dict():
            return {name: _clean(each) for name, each in value.items()}
        case list():
            return [_clean(each) for each in value]
        case _:
            return value
