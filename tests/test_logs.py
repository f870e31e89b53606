"""The log: events of one table, with their fields, bounded, in lines that can be read, without what users wrote."""

from __future__ import annotations

import ast
import contextlib
import json
import logging
import os
import re
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.config import LOG_LEVELS
from shoal.errors import Conflict
from shoal.logs import events
from shoal.logs.event import Event, Line
from shoal.logs.events import EVENTS, FIELDS
from shoal.logs.lines import (
    EVENT_INTERVAL_S,
    EVENT_LINES_MAX,
    VALUE_CHARS_MAX,
    VALUES_MAX,
    JsonForm,
    Limits,
    TextForm,
    captured,
    log,
    of_request,
    tell_left_out,
)

SHOAL = Path(__file__).parents[1] / "shoal"
FIXED = {"timestamp", "level", "event", "text", "request", "error", "frames"}
MOVES = (
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"  # Ends a line, moves the cursor, or turns text around.
)
# What sets levels of loggers, and writes no lines.
SET_LEVELS = {"shoal/integrations/mcp/http.py", "shoal/testing/machines.py"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SHOAL.rglob("*.py")):
        name = str(path.relative_to(SHOAL.parent))
        if not name.startswith("shoal/logs/"):
            yield name, ast.parse(path.read_text())


def event_of(node: ast.expr) -> list[Event]:
    """The events that an argument may be."""
    if isinstance(node, ast.IfExp):
        return event_of(node.body) + event_of(node.orelse)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "events":
        return [event] if isinstance(event := getattr(events, node.attr, None), Event) else []
    if isinstance(node, ast.Name) and node.id == "LINES_LEFT_OUT":
        return [events.LINES_LEFT_OUT]
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "_STANDS":
        return [events.CONDITION_PAGE, events.CONDITION_TICKET, events.CONDITION_NOTE]
    return []


def written() -> Iterator[tuple[str, Event, set[str]]]:
    """Each place where a line is written: its event, and its fields."""
    for name, tree in modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            found = [event for argument in node.args[:1] for event in event_of(argument)]
            called = ast.unparse(node.func)
            if called == "log":
                assert found, f"{name}:{node.lineno} logs what is no event of the table"
            fields = {keyword.arg or "**" for keyword in node.keywords} - {"bug"}
            if called.endswith("_warn") and found and found != [events.LINES_LEFT_OUT]:
                fields.add("reason")  # `Warnings` tells that of its error.
            for event in found:
                yield f"{name}:{node.lineno}", event, fields


def test_each_line_is_an_event_of_the_table_with_its_fields() -> None:
    told = list(written())
    assert [(at, event.name, sorted(fields)) for at, event, fields in told if fields != {*event.fields}] == []
    used = {event.name for _, event, _ in told}
    assert set(EVENTS) - used == {"library"}, "what nothing logs does not belong into the table"


def test_nothing_is_logged_past_the_table() -> None:
    past = [
        f"{name}:{node.lineno}"
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        and {"logging", "structlog"} & {*(alias.name for alias in node.names), getattr(node, "module", None)}
        and name not in {*SET_LEVELS, "shoal/cli/node.py"}
    ]
    assert past == []


def test_the_table_is_whole() -> None:
    constants = {name: event for name, event in vars(events).items() if isinstance(event, Event)}
    assert len(EVENTS) == len(constants), "a name is once in the table"
    for event in EVENTS.values():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", event.name)
        assert event.level in LOG_LEVELS
        assert event.meaning.endswith(".")
        assert {*event.fields} <= FIELDS.keys()
        assert not {*event.fields} & FIXED
    assert {field for event in EVENTS.values() for field in event.fields} == FIELDS.keys()


# ── forms ─────────────────────────────────────────────────────────────────────


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    kept: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = kept.append  # type: ignore[method-assign, assignment]
    logger = logging.getLogger("shoal")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel("DEBUG")
    yield kept
    logger.removeHandler(handler)
    logger.setLevel(before)


def values() -> st.SearchStrategy[Any]:
    text = st.text(st.characters(), max_size=40)
    return st.one_of(
        text, st.integers(-(2**60), 2**60), st.floats(allow_nan=False, allow_infinity=False), st.lists(text, max_size=3)
    )


@given(st.sampled_from(sorted(EVENTS)), st.data())
def test_any_values_make_one_line_that_can_be_read(name: str, data: st.DataObject) -> None:
    event = EVENTS[name]
    fields = {field: data.draw(values()) for field in event.fields}
    record = logging.LogRecord("shoal.x", logging.INFO, __file__, 1, "%s", ("",), None)
    record.line = Line(event, fields, "r-1", None)
    shown = JsonForm().format(record)
    assert len(shown.splitlines()) == 1
    assert not re.search(MOVES, shown)
    told = json.loads(shown)
    assert {*told} == {*event.fields, "timestamp", "level", "event", "text", "request"}
    assert (told["event"], told["level"], told["request"]) == (name, event.level, "r-1")
    text = TextForm().format(record)
    assert len(text.splitlines()) == 1
    assert not re.search(MOVES, text)


@pytest.mark.parametrize("form", [JsonForm(), TextForm()])
def test_a_name_moves_no_cursor(form: logging.Formatter) -> None:
    record = logging.LogRecord("shoal.x", logging.INFO, __file__, 1, "%s", ("",), None)
    record.line = Line(events.PEER_LEFT, {"peer": "n\x9b2J", "reason": "\u202egone\x85", "remote": "\x7f\u2028"}, "", None)
    shown = form.format(record)
    assert not re.search(MOVES, shown)
    if isinstance(form, JsonForm):
        assert json.loads(shown)["reason"] == "\u202egone\x85"


def test_a_bug_is_shown_without_what_it_says(records: list[logging.LogRecord]) -> None:
    def raises() -> None:
        try:
            raise ValueError("CANARY in the cause")
        except ValueError as cause:
            raise KeyError("CANARY") from cause

    with pytest.raises(KeyError) as raised:
        raises()
    log(events.BUG, where="add", bug=raised.value)
    shown = json.loads(JsonForm().format(records[0]))
    assert shown["error"] == ["KeyError", "ValueError"]
    assert "test_logs.py" in shown["frames"][0]
    assert shown["frames"][0].endswith(" raises")
    for form in (JsonForm(), TextForm()):
        assert "CANARY" not in form.format(records[0])


def test_of_a_library_only_the_first_line_is_shown() -> None:
    bug = RuntimeError("CANARY")
    message = "Task exception was never retrieved\nfuture: <Task exception=RuntimeError('CANARY')>"
    record = logging.LogRecord("asyncio", logging.ERROR, __file__, 1, message, (), (RuntimeError, bug, None))
    shown = json.loads(JsonForm().format(record))
    assert (shown["event"], shown["level"], shown["library"]) == ("library", "error", "asyncio")
    assert shown["says"] == "Task exception was never retrieved"
    assert "CANARY" not in JsonForm().format(record) + TextForm().format(record)


def test_shoals_own_error_is_shown_by_its_text(records: list[logging.LogRecord]) -> None:
    log(events.BUG, where="add", bug=Conflict("the head has moved on."))
    assert json.loads(JsonForm().format(records[0]))["error"] == ["Conflict: the head has moved on."]


def test_a_line_belongs_to_the_request_under_way(records: list[logging.LogRecord]) -> None:
    with of_request("t-1"):
        log(events.STOPPED)
    log(events.STOPPED)
    told = [json.loads(JsonForm().format(record)) for record in records]
    assert [each.get("request") for each in told] == ["t-1", None]
    assert " request=t-1" in TextForm().format(records[0])


def test_values_are_bounded() -> None:
    with captured() as lines:
        log(events.MEMBERS_FOUND, members=["m"] * 1000)
        log(events.ENVIRONMENT, reason="x" * 100_000)
    assert len(lines[0].fields["members"]) == VALUES_MAX  # type: ignore[arg-type]
    assert len(str(lines[1].fields["reason"])) == VALUE_CHARS_MAX + 1


def test_a_line_raises_nothing(records: list[logging.LogRecord]) -> None:
    log(Event("serve", "x", "info", "{reason} {count:d}", "."), reason="r")
    assert records[0].getMessage() == "{reason} {count:d}"


# ── bounds ────────────────────────────────────────────────────────────────────


def test_of_each_event_there_are_so_many_lines_and_the_rest_is_counted(records: list[logging.LogRecord]) -> None:
    for _ in range(EVENT_LINES_MAX + 17):
        log(events.PEER_LEFT, peer="n2", reason="it went", remote="")
    log(events.STOPPED)
    tell_left_out()
    assert [record.getMessage() for record in records[EVENT_LINES_MAX:]] == ["the node has stopped"], "its time is not over"
    tell_left_out(is_over=True)
    line = records[-1].line  # type: ignore[attr-defined]
    assert (line.event, line.fields) == (events.LINES_LEFT_OUT, {"of": "peer-left", "count": 17})
    tell_left_out(is_over=True)
    assert len(records) == EVENT_LINES_MAX + 2, "a count is told once"


def test_an_interval_begins_anew() -> None:
    limits = Limits()
    assert [limits.admits("a", 0.0) for _ in range(EVENT_LINES_MAX + 2)].count(True) == EVENT_LINES_MAX
    assert limits.admits("b", 0.0)
    assert limits.left_out(EVENT_INTERVAL_S - 1) == {}
    assert limits.left_out(EVENT_INTERVAL_S) == {"a": 2}
    assert limits.admits("a", EVENT_INTERVAL_S)


def test_lines_that_nobody_wants_are_not_counted(records: list[logging.LogRecord]) -> None:
    logging.getLogger("shoal").setLevel("WARNING")
    for _ in range(EVENT_LINES_MAX + 1):
        log(events.STOPPED)
    tell_left_out(is_over=True)
    assert records == []


@pytest.mark.parametrize(
    ("form", "is_terminal", "is_text"),
    [("auto", True, True), ("auto", False, False), ("text", False, True), ("json", True, False)],
)
def test_the_form_follows_the_setting_and_the_terminal(
    form: str, is_terminal: bool, is_text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.cli.node import configure
    from shoal.config import Config

    made: list[logging.Handler] = []
    monkeypatch.setattr(logging, "basicConfig", lambda **given: made.extend(given["handlers"]))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    configure(Config(log_format=form))
    assert isinstance(made[0].formatter, TextForm if is_text else JsonForm)


@pytest.fixture
def unread() -> Iterator[tuple[int, logging.Logger]]:
    """A pipe that nobody reads, which is full, and a logger that writes to it."""
    from shoal.cli.node import UnreadHandler

    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"." * select.PIPE_BUF)
    os.set_blocking(writing, True)
    os.set_blocking(reading, False)
    logger = logging.getLogger("shoal")
    before, propagate = logger.level, logger.propagate
    with open(writing, "w") as stream:
        handler = UnreadHandler(stream)
        handler.setFormatter(JsonForm())
        logger.addHandler(handler)
        logger.setLevel("INFO")
        logger.propagate = False
        yield reading, logger
        logger.removeHandler(handler)
        logger.setLevel(before)
        logger.propagate = propagate
        with contextlib.suppress(OSError):
            os.close(reading)


def drained(reading: int) -> bytes:
    """All that is in a pipe."""
    found = bytearray()
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(reading, 1 << 20):
            found += piece
    return bytes(found)


def test_a_process_does_not_wait_for_whoever_reads_its_lines(unread: tuple[int, logging.Logger]) -> None:
    reading, _ = unread
    for _ in range(3):
        log(events.STOPPED)
    drained(reading)
    log(events.STOPPED)
    told = [json.loads(line) for line in drained(reading).splitlines()]
    assert [(each["event"], each.get("count")) for each in told] == [("lines-unread", 3), ("stopped", None)]


def test_a_line_that_was_torn_is_ended_before_the_next(unread: tuple[int, logging.Logger]) -> None:
    reading, logger = unread
    os.read(reading, select.PIPE_BUF)  # There is room for a part.
    logger.warning("x" * 3 * select.PIPE_BUF)
    drained(reading)
    log(events.STOPPED)
    ended, *whole = drained(reading).splitlines()
    assert ended == b""
    assert [json.loads(line)["event"] for line in whole] == ["lines-unread", "stopped"]


def test_a_line_that_nobody_can_read_any_more_is_no_error(
    unread: tuple[int, logging.Logger], capsys: pytest.CaptureFixture[str]
) -> None:
    os.close(unread[0])
    log(events.STOPPED)
    assert capsys.readouterr() == ("", "")
