"""Answers of the Durable Streams protocol: headers, cursors for caches, and server-sent events."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping

import msgspec
from aiohttp import web

from shoal.api.http import problems
from shoal.errors import ShoalError
from shoal.workflows.streams.record import Offset, State, media_type

EVENTS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
SHOWN = frozenset(
    {"text/plain", "application/json", "application/octet-stream", "image/png", "image/jpeg", "image/gif", "image/webp"}
)
"""Media types that a browser may show by itself: none of them runs or loads anything. All others are offered as a file."""

_CURSOR_EPOCH_S = 1_728_432_000  # 2024-10-09, as the protocol has it.
_CURSOR_INTERVAL_S = 20
_LINE_END = re.compile(rb"\r\n|\r|\n")


def cursor_after(given: str, now_s: float) -> str:
    """The cursor of a live answer: greater than the one that the client has, so that no cache repeats an answer for ever."""
    current = max(0, int(now_s - _CURSOR_EPOCH_S) // _CURSOR_INTERVAL_S)
    if given.isdecimal() and len(given) <= 15:
        current = max(current, int(given) + 1)
    return str(current)


def problem(error: ShoalError, headers: Mapping[str, str]) -> web.Response:
    """The answer to a request that failed."""
    response = problems.response(error)
    response.headers.update({name: text for name, text in headers.items() if name != "Content-Type"})
    response.headers["Cache-Control"] = "no-store"
    return response


def data_headers(state: State) -> dict[str, str]:
    """The headers of an answer that consists of a stream's data, of which a user chose the type and every byte."""
    shown = media_type(state.content_type) in SHOWN
    return {"Content-Type": state.content_type, **({} if shown else {"Content-Disposition": "attachment"})}


def is_text(state: State) -> bool:
    """Whether the stream's data can be sent in server-sent events as it is."""
    kind = media_type(state.content_type)
    return kind.startswith("text/") or kind == "application/json"


def data_event(state: State, body: bytes) -> bytes:
    """Data as a server-sent event. Each line of it begins with `data:`, so that it cannot pretend to be another event."""
    shown = body if is_text(state) else base64.b64encode(body)
    lines = b"".join(b"data:" + (b" " if line.startswith(b" ") else b"") + line + b"\n" for line in _LINE_END.split(shown))
    return b"event: data\n" + lines + b"\n"


def control_event(offset: Offset, *, cursor: str, up_to_date: bool, closed: bool) -> bytes:
    """Where a reader is after the data before it."""
    said: dict[str, object] = {"streamNextOffset": str(offset)}
    if closed:
        said["streamClosed"] = True
    else:
        said["streamCursor"] = cursor
    if up_to_date:
        said["upToDate"] = True
    return b"event: control\ndata:" + msgspec.json.encode(said) + b"\n\n"
