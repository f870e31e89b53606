"""Writes the lines of the log, each of them an event of the table in `shoal.logs.events`, and their forms on standard error: an
object of JSON, or text for people.

A line is a record of Python's `logging`, so a program that opens a store sees it as it has set that up: its logger is `shoal.`
and the event's area, its message the event's text. The clock here bounds real output, so it is the real one.

Laws:
- A line is an event of the table with all of its fields, and belongs to the request that is under way.
- Of one event there are at most `EVENT_LINES_MAX` lines in `EVENT_INTERVAL_S`. How many more there were is told by a line of
  its own once that time is over.
- A value is as long as `VALUE_CHARS_MAX` at most, and a list as `VALUES_MAX`.
- Writing a line raises nothing, and changes nothing but the log.
- One event is one line: what a peer or a client chose as a name can neither end a line nor move the cursor.
- An error that nobody expected is shown by its type and the places where it was raised; its text may hold what users wrote. Of
  a line that a library wrote only the first one is shown, for the same reason.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import msgspec

from shoal.errors import ShoalError
from shoal.logs.event import Event, Line, Value, told
from shoal.logs.events import LIBRARY, LINES_LEFT_OUT

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


EVENT_LINES_MAX = 60
EVENT_INTERVAL_S = 60.0
VALUE_CHARS_MAX = 2000
VALUES_MAX = 64

_request: ContextVar[str] = ContextVar("shoal_request", default="")


class Limits:
    """Counts the lines of each event. `now_s` never goes back, but where it does all begins anew."""

    def __init__(self) -> None:
        self._begun: dict[str, tuple[float, int]] = {}  # Event → since when it is counted, and how many there were.

    def admits(self, name: str, now_s: float) -> bool:
        """Whether one more line of an event may be written; if not, it counts as left out."""
        since, count = self._begun.get(name, (now_s, 0))
        if not 0 <= now_s - since < EVENT_INTERVAL_S:
            since, count = now_s, 0
        self._begun[name] = since, count + 1
        return count < EVENT_LINES_MAX

    def left_out(self, now_s: float) -> dict[str, int]:
        """How many lines of each event were left out in the times that are over. Each is told once."""
        over = [name for name, (since, _) in self._begun.items() if not 0 <= now_s - since < EVENT_INTERVAL_S]
        counts = {name: self._begun.pop(name)[1] - EVENT_LINES_MAX for name in over}
        return {name: count for name, count in counts.items() if count > 0}


_limits = Limits()
_captured: list[Line] | None = None


def log(event: Event, /, *, bug: BaseException | None = None, **fields: Value) -> None:
    """Write the line of an event, unless there were too many of it, or nobody wants its level."""
    line = Line(event, {name: _bounded(value) for name, value in fields.items()}, _request.get(), bug)
    if _captured is not None:
        _captured.append(line)
        return
    logger, level = logging.getLogger(f"shoal.{event.area}"), logging.getLevelNamesMapping()[event.level.upper()]
    if not logger.isEnabledFor(level):
        return
    tell_left_out()
    if _limits.admits(event.name, time.monotonic()):
        _hand_on(logger, level, line)


def tell_left_out(*, is_over: bool = False) -> None:
    """Write how many lines were left out, of each event whose time is over. `is_over`: of all, because the process ends."""
    for name, count in _limits.left_out(float("inf") if is_over else time.monotonic()).items():
        _hand_on(logging.getLogger("shoal.log"), logging.WARNING, Line(LINES_LEFT_OUT, {"of": name, "count": count}, "", None))


@contextmanager
def of_request(id: str) -> Iterator[None]:
    """Within, lines belong to this request, also those of tasks that begin within."""
    token = _request.set(id)
    try:
        yield
    finally:
        _request.reset(token)


def request_id() -> str:
    """The request under way; empty if there is none."""
    return _request.get()


@contextmanager
def captured() -> Iterator[list[Line]]:
    """Within, lines are kept in the list and written nowhere, without a limit. For tests and simulations."""
    global _captured
    before, kept = _captured, list[Line]()
    _captured = kept
    try:
        yield kept
    finally:
        _captured = before


@contextmanager
def counting_anew() -> Iterator[None]:
    """Within, lines are counted as if there had been none. For tests."""
    global _limits
    before, _limits = _limits, Limits()
    try:
        yield
    finally:
        _limits = before


def _hand_on(logger: logging.Logger, level: int, line: Line) -> None:
    logger.log(level, "%s", line.text, exc_info=line.bug, extra={"line": line})


def _bounded(value: Value) -> Value:
    if isinstance(value, str):
        return value if len(value) <= VALUE_CHARS_MAX else value[:VALUE_CHARS_MAX] + "…"
    if isinstance(value, (int, float)):
        return value
    return [str(_bounded(str(each))) for each in list(value)[:VALUES_MAX]]
