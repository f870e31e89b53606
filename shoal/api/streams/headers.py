"""The headers and the query of a request of the Durable Streams protocol, checked.

Answers of the Durable Streams protocol: headers, cursors for caches, and server-sent events.

Streams by the Durable Streams protocol: its path and its methods.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import datetime
from urllib.parse import unquote, urlsplit

import msgspec
from aiohttp import hdrs, web
from multidict import CIMultiDictProxy

from shoal.api.http import problems
from shoal.errors import InvalidInput, ShoalError
from shoal.records import NamedTuple
from shoal.workflows.streams.decisions import ProducerHeaders
from shoal.workflows.streams.record import BEGINNING, Offset, State, media_type

_NATURAL = re.compile(r"0|[1-9][0-9]{0,15}")
_NUMBER_MAX = 2**53 - 1  # What every client can hold.
_CONTENT_TYPE = re.compile(r"[\w!#$&^.+*'`|~-]+/[\w!#$&^.+*'`|~-]+\s*(;.*)?")
_PRODUCER = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
_TEXT_MAX = 1024

REQUEST_HEADERS = (
    "Stream-Closed",
    "Stream-Expires-At",
    "Stream-Fork-Offset",
    "Stream-Fork-Sub-Offset",
    "Stream-Forked-From",
    "Stream-Seq",
    "Stream-TTL",
    *_PRODUCER,
)
ANSWER_HEADERS = (
    "Producer-Epoch",
    "Producer-Expected-Seq",
    "Producer-Received-Seq",
    "Producer-Seq",
    "Stream-Closed",
    "Stream-Cursor",
    "Stream-Expires-At",
    "Stream-Next-Offset",
    "Stream-SSE-Data-Encoding",
    "Stream-TTL",
    "Stream-Up-To-Date",
)


class Lifetime(NamedTuple):
    """When a stream expires: after some time without reads and writes, or at a time."""

    ttl_s: int | None = None
    expires_ms: int | None = None


class Source(NamedTuple):
    """The stream from which a stream is to be forked, and the offset."""

    stream: str
    at: Offset | None  # None: its end.
    sub: int


class ReadingQuery(NamedTuple):
    """The query of a reader."""

    offset: Offset | None  # None: `now`.
    live: str  # "long-poll", "sse", or empty.
    cursor: str


def content_type_of(request: web.Request) -> str | None:
    """The Content-Type that the request names; None if there is none.

    Raises:
        InvalidInput: it is none.
    """
    said = request.headers.get(hdrs.CONTENT_TYPE, "").strip()
    if not said:
        return None
    if len(said) > _TEXT_MAX or not said.isascii() or not _CONTENT_TYPE.fullmatch(said):
        raise InvalidInput(f"{said[:80]!r} is no content type. Nothing was written.", field="Content-Type")
    return said


def closes(request: web.Request) -> bool:
    """Whether the stream is to be closed."""
    return request.headers.get("Stream-Closed", "").strip().lower() == "true"


def lifetime_of(request: web.Request) -> Lifetime:
    """The lifetime that the request names.

    Raises:
        InvalidInput: it is not one number of seconds, or one time.
    """
    ttl, at = request.headers.get("Stream-TTL"), request.headers.get("Stream-Expires-At")
    if ttl is not None and at is not None:
        raise InvalidInput("Stream-TTL and Stream-Expires-At exclude each other. Nothing was written.", field="Stream-TTL")
    return Lifetime(None if ttl is None else _natural(ttl, "Stream-TTL"), None if at is None else _time_ms(at))


def producer_of(request: web.Request) -> ProducerHeaders | None:
    """The idempotent producer of an append; None if it has none.

    Raises:
        InvalidInput: some of its headers are missing, or not numbers.
    """
    given = [request.headers.get(name) for name in _PRODUCER]
    if given == [None, None, None]:
        return None
    id, epoch, sequence = given
    if not id or epoch is None or sequence is None:
        raise InvalidInput(f"{', '.join(_PRODUCER)} come together. Nothing was written.", field="Producer-Id")
    return ProducerHeaders(_text(id, "Producer-Id"), _natural(epoch, "Producer-Epoch"), _natural(sequence, "Producer-Seq"))


def sequence_of(request: web.Request) -> str | None:
    """The `Stream-Seq` of an append."""
    given = request.headers.get("Stream-Seq")
    return None if given is None else _text(given, "Stream-Seq")


def source_of(request: web.Request, prefix: str) -> Source | None:
    """The stream that is to be forked; None if it is none. `prefix` is the path of the space's streams.

    Raises:
        InvalidInput: its name, its offset or the number beside it is malformed.
    """
    said = request.headers.get("Stream-Forked-From")
    at, sub = request.headers.get("Stream-Fork-Offset"), request.headers.get("Stream-Fork-Sub-Offset")
    number = 0 if sub is None else _natural(sub, "Stream-Fork-Sub-Offset")
    if said is None:
        if at is not None or sub is not None:
            raise InvalidInput("Stream-Fork-Offset needs Stream-Forked-From. Nothing was written.", field="Stream-Forked-From")
        return None
    if number and at is None:
        raise InvalidInput("Stream-Fork-Sub-Offset needs Stream-Fork-Offset. Nothing was written.", field="Stream-Fork-Offset")
    stream = _source(said, prefix)
    if not stream:
        raise InvalidInput(f"{said[:80]!r} is no stream. Nothing was written.", field="Stream-Forked-From")
    return Source(stream, None if at is None else BEGINNING if at == "-1" else Offset.parse(at), number)


def reading(query: CIMultiDictProxy[str] | web.BaseRequest) -> ReadingQuery:
    """The query of a read; parameters that are not known are ignored, as the protocol asks.

    Raises:
        InvalidInput: the offset is missing, malformed or given twice, or the mode is unknown.
    """
    given = query.query if isinstance(query, web.BaseRequest) else query
    offsets, live = given.getall("offset", []), given.get("live", "")
    if len(offsets) > 1:
        raise InvalidInput("the query has `offset` more than once. Nothing was written.", field="offset")
    if "live" in given and live not in ("long-poll", "sse"):
        raise InvalidInput(f"`live` is long-poll or sse, not {live[:80]!r}. Nothing was written.", field="live")
    if live and not offsets:
        raise InvalidInput("a live read names an `offset`: one that was answered, -1 or now.", field="offset")
    said = offsets[0] if offsets else "-1"
    offset = BEGINNING if said == "-1" else None if said == "now" else Offset.parse(said)
    return ReadingQuery(offset, live, given.get("cursor", ""))


def _source(said: str, prefix: str) -> str:
    """The stream at an address or a path; empty if it is none."""
    try:
        path = urlsplit(said).path
        return unquote(path.removeprefix(prefix) if path.startswith(prefix) else path.lstrip("/"), errors="strict")
    except ValueError:
        return ""


def _natural(said: str, name: str) -> int:
    if not _NATURAL.fullmatch(said) or int(said) > _NUMBER_MAX:
        raise InvalidInput(
            f"{name} is a whole number from 0 without further signs, not {said[:80]!r}. Nothing was written.", field=name
        )
    return int(said)


def _text(said: str, name: str) -> str:
    if len(said.encode(errors="surrogateescape")) > _TEXT_MAX or any(0xD800 <= ord(letter) < 0xE000 for letter in said):
        raise InvalidInput(f"{name} is text of at most {_TEXT_MAX} bytes. Nothing was written.", field=name)
    return said


def _time_ms(said: str) -> int:
    try:
        time = datetime.fromisoformat(said)
        if time.tzinfo is None or "T" not in said.upper():
            raise ValueError
        return int(time.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"Stream-Expires-At is a time as in RFC 3339, not {said[:80]!r}. Nothing was written.", field="Stream-Expires-At"
        ) from None


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


STREAMS_PATH = "/v1/streams/{space}/{stream}"
"""The stream is the whole rest of the path."""

SUMMARIES = {
    "GET": "Read a stream from an offset on, now or live",
    "PUT": "Create a stream, or a fork of one",
    "POST": "Append to a stream, or close it",
    "DELETE": "Delete a stream",
}
METHODS = (*SUMMARIES, "HEAD")
