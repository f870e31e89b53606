"""Writes the lines of the log, each of them an event of the table in `shoal.logs.events`.

Laws:
- A line is an event of the table with all of its fields, and belongs to the request that is under way.
- Of one event there are at most `EVENT_LINES_MAX` lines in `EVENT_INTERVAL_S`. How many more there were is told by a line of
  its own once that time is over.
- A value is as long as `VALUE_CHARS_MAX` at most, and a list as `VALUES_MAX`.
- Writing a line raises nothing, and changes nothing but the log.

A line is a record of Python's `logging`, so a program that opens a store sees it as it has set that up: its logger is `shoal.`
and the event's area, its message the event's text. The clock here bounds real output, so it is the real one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from shoal.logs.event import Event, Line, Value
from shoal.logs.events import LINES_LEFT_OUT

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
        _written(logger, level, line)


def tell_left_out(*, is_over: bool = False) -> None:
    """Write how many lines were left out, of each event whose time is over. `is_over`: of all, because the process ends."""
    for name, count in _limits.left_out(float("inf") if is_over else time.monotonic()).items():
        _written(logging.getLogger("shoal.log"), logging.WARNING, Line(LINES_LEFT_OUT, {"of": name, "count": count}, "", None))


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


def _written(logger: logging.Logger, level: int, line: Line) -> None:
    logger.log(level, "%s", line.text, exc_info=line.bug, extra={"line": line})


def _bounded(value: Value) -> Value:
    if isinstance(value, str):
        return value if len(value) <= VALUE_CHARS_MAX else value[:VALUE_CHARS_MAX] + "…"
    if isinstance(value, (int, float)):
        return value
    return [str(_bounded(str(each))) for each in list(value)[:VALUES_MAX]]
