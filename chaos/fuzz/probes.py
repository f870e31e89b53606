"""What is sent: requests and frames that are nearly right, and bytes that are not.

Law: of one seed the probes are the same, in the same order. They are made from the declarations of requests and routes, so that
a new one is probed without being named here.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints
from urllib.parse import quote

import msgspec
from msgspec import NODEFAULT, Raw, Struct

from shoal.api.glossary import BODIES, PARTS
from shoal.api.routes import ROUTES
from shoal.api.streams.headers import REQUEST_HEADERS
from shoal.api.yjs.door import YJS_PATH
from shoal.protocol.frames import encode_call, encode_cancel, encode_observe
from shoal.protocol.requests import AnyRequest, Subscription
from shoal.protocol.requests.families import operations
from shoal.protocol.requests.status import ObjectKind

SPACE = "crew"
_JUNK: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1 << 62,
    1.5,
    float("nan"),
    "",
    "x",
    "«secret»",
    "a" * 3000,
    "\u202e\x00",
    b"",
    b"\xc1",
    b"\x93\x01",
    b"\xdd\xff\xff\xff\xff",
    [],
    [[]],
    {},
    {"": None},
    [[[[[[[[]]]]]]]],
)
_NAMES = (*PARTS.values(), "{crew}%2Ft", "%C3%A9", "..", "%00", "a" * 2000, "%zz", "%ff", ".shoal", "*")
_QUERIES = ("", "?", "?limit=0", "?limit=5", "?stale=true", "?durability=no", "?after=%00", "?reveal=true", "?prefix=a", "?a=b")
_HEADERS = (
    "",
    "Idempotency-Key: k\r\n",
    f"Idempotency-Key: {'x' * 300}\r\n",
    'If-Match: "a"\r\n',
    "Shoal-Bookmark: junk\r\n",
    "Shoal-Lease: junk\r\n",
    "Content-Encoding: gzip\r\n",
    "Origin: http://evil.example\r\n",
    "Expect: tea\r\n",
    "X: \xff\r\n",
)
_OPENINGS = (
    b"GET /v1/spaces HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n\x82\x85\x00\x00\x00\x00hello",
    b"POST /v1/spaces/crew/batch HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x00" * 64,
)
_STREAMS = {route.path for route in ROUTES if route.content_type == "text/event-stream"}


_WATCH = "/v1/spaces/{space}/watch"
_WATCHED = (*["GET"] * 18, "HEAD", "POST")
_STREAMED = ("PUT", "PUT", *["POST"] * 6, *["GET"] * 8, "HEAD", "DELETE", "PATCH")
_SAID = ("0", "1", "-1", "true", "a", "/v1/streams/crew/a", "2030-01-01T00:00:00Z", "x" * 2000, "\xff")
_SUBSCRIBED = 8  # The ids of subscriptions are few, so that some are used twice, and some are cancelled.
_YJS = (  # Messages of y-websocket: steps 1 and 2, an update, awareness, a question for it, acknowledgements.
    b"\x00\x00\x01\x00",
    b"\x00\x01\x02\x00\x00",
    b"\x00\x02\x0b\x01\x01\x01\x00\x04\x01\x01t\x01a\x00",
    b"\x01\x06\x01\x07\x01\x02{}",
    b"\x03",
    b"\x64",
)


class Asked(NamedTuple):
    """An HTTP request as bytes."""

    what: str  # Its method and path, for people.
    raw: bytes


class Probes:
    """An endless supply of probes."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._kinds = [(kind, get_type_hints(kind, include_extras=True)) for kind in operations()]
        self._subscriptions = [(kind, get_type_hints(kind, include_extras=True)) for kind in get_args(Subscription)]
        self._id = 0

    def wrong_bytes(self) -> bytes:
        """Bytes of a connection that say nothing, or nearly something."""
        draw = self._random
        if draw.random() < 0.3:
            return draw.randbytes(draw.randrange(300))
        return self._flipped(draw.choice(_OPENINGS))

    def request(self, token: str | None) -> Asked:
        """A request for any route, with this token, or with none or one that does not count."""
        draw = self._random
        route = draw.choice(ROUTES)
        while route.path in _STREAMS:  # They do not end.
            route = draw.choice(ROUTES)
        path = re.sub(r"{(\w+)}", self._part, route.path)
        body = b"" if route.body is None else self._body(route.body)
        credential = f"Authorization: Bearer {token}\r\n" if token is not None else self._wrong_credential()
        query, more = (draw.choice(each) if draw.random() < 0.4 else "" for each in (_QUERIES, _HEADERS))
        head = (
            f"{route.method} {path}{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n{credential}"
            f"Content-Type: {route.body_type}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        )
        return Asked(f"{route.method} {path[:100]}", head.encode("latin-1") + body)

    def frame(self) -> bytes:
        """A message of a session: a call that is nearly right; rarely, bytes that are no frame."""
        draw = self._random
        packed = self._packed(*draw.choice(self._kinds))
        self._id += 1
        if draw.random() < 0.004:
            return self._flipped(msgspec.msgpack.encode([Raw(encode_cancel(self._id))]))
        call = encode_call(self._id, Raw(packed), key=draw.choice((None, None, "k", "")))  # type: ignore[arg-type]
        message = b"\x91" + call
        return self._flipped(message) if draw.random() < 0.004 else message

    def watching(self) -> bytes:
        """A message of a session that watches: subscriptions, cancellations, bookmarks, calls that change something."""
        draw = self._random
        if draw.random() < 0.3:
            return self.frame()
        frames = []
        for _ in range(draw.randrange(1, 4)):
            id = (1 << 30) + draw.randrange(_SUBSCRIBED)
            match draw.randrange(8):
                case 0 | 1:
                    frames.append(encode_cancel(id))
                case 2:
                    frames.append(encode_observe(draw.choice((b"", b"\x01\x90", draw.randbytes(9)))))
                case _:
                    packed = self._packed(*draw.choice(self._subscriptions))
                    frames.append(msgspec.msgpack.encode((1, id, Raw(packed))))
        message = bytes([0x90 | len(frames)]) + b"".join(frames)
        return self._flipped(message) if draw.random() < 0.004 else message

    def watch(self, token: str | None, seen: Sequence[str]) -> Asked:
        """A request for a stream of server-sent events, perhaps after the id of an event that was seen."""
        draw = self._random
        given = {name: self._watched(name, seen) for name in ("kind", "kinds", "prefix", "after") if draw.random() < 0.25}
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in given.items())
        path = re.sub(r"{(\w+)}", self._part, _WATCH) + (f"?{query}" if query else "")
        credential = f"Authorization: Bearer {token}\r\n" if token is not None else self._wrong_credential()
        last = self._watched("after", seen).replace("\r", "").replace("\n", "") if draw.random() < 0.4 else ""
        after = f"Last-Event-ID: {last}\r\n" if last else ""
        more = draw.choice(_HEADERS) if draw.random() < 0.2 else ""
        head = f"{draw.choice(_WATCHED)} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{credential}{after}{more}\r\n"
        return Asked(head[:120].partition("\r")[0], head.encode("latin-1", "replace"))

    def durable(self, token: str | None, seen: Sequence[str]) -> Asked:
        """A request of the Durable Streams protocol to one of few streams, perhaps at an offset that was answered."""
        draw = self._random
        method = draw.choice(_STREAMED)
        offset = draw.choice(("-1", "now", *seen) if draw.random() < 0.9 else _NAMES)
        if draw.random() < 0.1:
            offset = self._flipped(offset.encode("latin-1", "replace")).decode("latin-1")
        query = {
            "offset": offset,
            "live": draw.choice((*["sse"] * 6, "long-poll", "long-poll", "x")),
            "cursor": draw.choice(_NAMES),
        }
        asked = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items() if draw.random() < 0.7)
        path = f"/v1/streams/{SPACE}/{draw.choice(('a', 'b', 'c/d', *_NAMES) if draw.random() < 0.2 else ('a', 'b', 'c/d'))}"
        given = [f"{name}: {draw.choice(_SAID)}\r\n" for name in REQUEST_HEADERS if draw.random() < 0.03]
        if draw.random() < 0.3:
            given += [f"Producer-{name}: {draw.randrange(3)}\r\n" for name in ("Id", "Epoch", "Seq")]
        body = (
            draw.choice((b"[]", b'{"a": 1}', b"[1, 2]", b"[[]]", b"text", draw.randbytes(9)))
            if method in ("POST", "PUT")
            else b""
        )
        kind = draw.choice((*["application/json"] * 9, "text/plain", "no", ""))
        credential = f"Authorization: Bearer {token}\r\n" if token is not None else self._wrong_credential()
        head = (
            f"{method} {path}?{asked} HTTP/1.1\r\nHost: 127.0.0.1\r\n{credential}{''.join(given)}"
            f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return Asked(head[:120].partition("\r")[0], head.encode("latin-1", "replace") + body)

    def upgrade(self, token: str | None) -> Asked:
        """A request to open a WebSocket, of a session or of a Yjs client, with frames right behind it."""
        draw = self._random
        path = draw.choice(("/v1/session", re.sub(r"{(\w+)}", self._part, YJS_PATH)))
        credential = f"Authorization: Bearer {token}\r\n" if token is not None else self._wrong_credential()
        offered = draw.choice(("", "Sec-WebSocket-Protocol: shoal\r\n", "Sec-WebSocket-Protocol: shoal, shoal.token.x, \r\n"))
        head = (
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{offered}{credential}\r\n"
        )
        frames = b"".join(self._masked(draw.choice((self.watching, self.yjs))()) for _ in range(draw.randrange(4)))
        return Asked(f"an upgrade of {path[:100]}", head.encode("latin-1", "replace") + frames)

    def yjs(self) -> bytes:
        """A message of a Yjs client."""
        draw = self._random
        message = b"".join(draw.choice(_YJS) for _ in range(draw.randrange(1, 3)))
        return self._flipped(message) if draw.random() < 0.03 else message

    def choice(self, *chances: float) -> int:
        """An index, with these chances."""
        return self._random.choices(range(len(chances)), chances)[0]

    def _watched(self, name: str, seen: Sequence[str]) -> str:
        draw = self._random
        kinds: tuple[str, ...] = get_args(ObjectKind)
        match name:
            case "kind":
                return draw.choice((*kinds, "", "x", "\x00"))
            case "kinds":
                return ",".join(draw.choice((*kinds, *kinds, *kinds, "", "no")) for _ in range(draw.randrange(6)))
            case "after" if seen and draw.random() < 0.7:
                id = draw.choice(seen)
                return id if draw.random() < 0.6 else self._flipped(id.encode()).decode("latin-1")
            case _:
                return draw.choice(_NAMES)

    def _masked(self, message: bytes) -> bytes:
        """A frame of a WebSocket; some are none."""
        draw, size = self._random, len(message)
        kind = 0x82 if draw.random() < 0.8 else draw.randrange(256)
        length = bytes([0x80 | size]) if size < 126 else b"\xfe" + min(size, 0xFFFF).to_bytes(2, "big")
        return bytes([kind]) + (length if draw.random() < 0.95 else b"\xff" + draw.randbytes(8)) + bytes(4) + message

    def _packed(self, kind: type[Any], hints: dict[str, Any]) -> bytes:
        """A request that is nearly right."""
        draw = self._random
        fields = [self._value(name, hints[name], field) for name, field in self._fields_of(kind)]
        if draw.random() < 0.5 and fields:
            fields[draw.randrange(len(fields))] = draw.choice(_JUNK)
        del fields[len(fields) - int(draw.random() * 2) :]
        try:
            return msgspec.msgpack.encode([kind.__struct_config__.tag, *fields])
        except (TypeError, ValueError, OverflowError):
            return b"\x90"

    def _fields_of(self, kind: type[AnyRequest]) -> list[tuple[str, Any]]:
        return [(field.name, field) for field in msgspec.structs.fields(kind)]

    def _value(self, name: str, kind: Any, field: Any) -> Any:
        if name == "space":
            return SPACE
        has_default = field.default is not NODEFAULT or field.default_factory is not NODEFAULT
        if has_default and self._random.random() < 0.7:
            return field.default if field.default is not NODEFAULT else field.default_factory()
        return self._of(kind)

    def _of(self, kind: Any) -> Any:
        draw, origin, inner = self._random, get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self._of(inner[0])
        if origin is Literal:
            return draw.choice(inner)
        if origin in (Union, UnionType):
            return None if NoneType in inner and draw.random() < 0.5 else self._of(draw.choice(inner))
        if origin in (list, tuple):
            return [self._of(inner[0]) for _ in range(draw.randrange(3))]
        if origin is dict:
            return {self._of(inner[0]): self._of(inner[1]) for _ in range(draw.randrange(2))}
        if isinstance(kind, type) and issubclass(kind, Struct):
            hints = get_type_hints(kind, include_extras=True)
            return [self._of(hints[field.name]) for field in msgspec.structs.fields(kind)]
        return _PLAIN[kind](draw) if kind in _PLAIN else None

    def _part(self, match: re.Match[str]) -> str:
        if match[1] == "space":
            return SPACE
        return PARTS.get(match[1], "n") if self._random.random() < 0.7 else self._random.choice(_NAMES)

    def _body(self, kind: Any) -> bytes:
        draw, body = self._random, msgspec.to_builtins(BODIES[kind])
        if isinstance(body, dict) and body and draw.random() < 0.7:
            junk = draw.choice([each for each in _JUNK if not isinstance(each, bytes)])
            body = {**body, draw.choice(list(body)): junk}
        raw = msgspec.json.encode(body)
        return self._flipped(raw) if draw.random() < 0.1 else raw

    def _wrong_credential(self) -> str:
        draw = self._random
        junk = "".join(chr(draw.randrange(33, 127)) for _ in range(draw.randrange(80)))
        return draw.choice(
            ("", f"Authorization: Bearer {junk}\r\n", f"Authorization: {junk}\r\n", f"Cookie: __Host-shoal={junk}\r\n")
        )

    def _flipped(self, octets: bytes) -> bytes:
        draw, changed = self._random, bytearray(octets)
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(changed) + 1)
            match draw.randrange(3):
                case 0:
                    changed[at:at] = draw.randbytes(draw.randrange(1, 5))
                case 1:
                    del changed[at : at + draw.randrange(1, 5)]
                case _:
                    changed[at : at + 1] = draw.randbytes(1)
        return bytes(changed)


_PLAIN: dict[Any, Callable[[random.Random], Any]] = {
    str: lambda draw: draw.choice(("n", "main", "planner", "", "0" * 64, "é", "x" * 200)),
    int: lambda draw: draw.choice((0, 1, 7, -1, 1 << 31, 1 << 53)),
    float: lambda draw: draw.choice((0.0, 0.01, -1.0)),
    bool: lambda draw: draw.random() < 0.5,
    bytes: lambda draw: draw.choice((b"\x01", b"\x80", b"\xa1n", b"", draw.randbytes(8))),
}
