"""What is no request that a route could answer: on raw sockets, as a hostile client sends it."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from http.client import HTTPResponse
from io import BytesIO
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest

from shoal.api.http.bodies import Bodies
from shoal.api.http.origins import SEALED
from shoal.api.watching import WATCH_ID_BYTES_MAX
from shoal.config import Config
from shoal.errors import Overloaded
from shoal.logs.lines import captured

Served = Any  # Of conftest.py.
Serve = Callable[..., Awaitable[Any]]

COUNTER = b"/v1/spaces/crew/counters/c"
REGISTER = b"/v1/spaces/crew/registers/r"
DOCUMENT = b"/v1/spaces/crew/documents/d"
JSON = b"Content-Type: application/json\r\n"
GZIP, DEFLATE = (JSON + b"Content-Encoding: %s\r\n" % name for name in (b"gzip", b"deflate"))
ADD = b'{"add": 1}'
BOMB = b" " * (50 << 20) + ADD


def http1(method: bytes, path: bytes, headers: bytes = b"", body: bytes = b"") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body) if body else b""
    return b"%s %s HTTP/1.1\r\nHost: localhost\r\n%s%s\r\n%s" % (method, path, headers, length, body)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def problem(self) -> dict[str, Any]:
        """The problem document; that it is one is asserted here."""
        assert self.headers["content-type"] == "application/problem+json", self
        problem: dict[str, Any] = msgspec.json.decode(self.body)
        assert problem["status"] == self.status
        assert problem["type"] == f"urn:shoal:error:{problem['code']}"
        assert problem["written"] == "no"
        assert "othing was written" in problem["detail"]
        return problem


class _Received:
    def __init__(self, octets: bytes) -> None:
        self._octets = octets

    def makefile(self, _mode: str) -> BytesIO:
        return BytesIO(self._octets)


@asynccontextmanager
async def connected(served: Served) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 10)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def send(served: Served, octets: bytes, *, method: str = "GET") -> Answer:
    """Send bytes on a connection of its own, and read one answer, to the end that it declares."""
    async with connected(served) as (reader, writer), asyncio.timeout(30):
        writer.write(octets)
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
        body = await reader.readexactly(int(lengths[0])) if lengths and method != "HEAD" else b""
    answer = HTTPResponse(_Received(head + body), method=method)  # type: ignore[arg-type]
    answer.begin()
    return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, body)


@pytest.fixture(autouse=True)
def no_bug() -> Iterator[None]:
    """Nothing that a client sends is an unexpected error of the node."""
    with captured() as logs:
        yield
    assert [each for each in logs if each.event.level == "error"] == []


# ── requests that are none ────────────────────────────────────────────────────

MALFORMED = {
    "a URL that is too long": (http1(b"GET", b"/" + b"a" * 9000), 414, "uri-too-long"),
    "a query that is too long": (http1(b"GET", COUNTER + b"?stale=" + b"a" * 9000), 414, "uri-too-long"),
    "a header that is too long": (http1(b"GET", COUNTER, b"X: " + b"a" * 20_000 + b"\r\n"), 431, "headers-too-large"),
    "too many headers": (http1(b"GET", COUNTER, b"".join(b"X%d: a\r\n" % n for n in range(300))), 431, "headers-too-large"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "malformed-request"),
    "HTTP of another version": (b"GET / HTTP/3.0\r\n\r\n", 400, "malformed-request"),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "malformed-request"),
    "a method that nobody knows": (http1(b"BREW", COUNTER), 501, "unknown-method"),
    "a method of another protocol": (http1(b"PROPFIND", COUNTER), 405, "method-not-allowed"),
    "a tunnel": (b"CONNECT a.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, "not-found"),
    "a URL that is none": (http1(b"GET", b"http://[/healthz"), 400, "malformed-request"),
    "a byte that is not percent-encoded": (http1(b"GET", b"/v1/spaces/\xff/counters/c"), 400, "malformed-request"),
    "a bad percent-encoding": (http1(b"GET", b"/v1/spaces/%zz/counters/c"), 400, "malformed-request"),
    "a percent sign at the end": (http1(b"GET", b"/v1/spaces/crew/counters/c%"), 400, "malformed-request"),
    "a bad percent-encoding in the query": (http1(b"GET", COUNTER + b"?stale=%4"), 400, "malformed-request"),
    "a path that is no UTF-8": (http1(b"GET", b"/v1/spaces/%ff/counters/c"), 400, "invalid-name"),
    "a query that is no UTF-8": (http1(b"GET", COUNTER + b"?stale=%ff"), 400, "invalid-name"),
    "no host": (b"GET %s HTTP/1.1\r\n\r\n" % COUNTER, 400, "malformed-request"),
    "an expectation": (http1(b"POST", COUNTER, JSON + b"Expect: tea\r\n", ADD), 417, "expectation-failed"),
    "an expectation on no route": (http1(b"POST", b"/no", JSON + b"Expect: tea\r\n", ADD), 417, "expectation-failed"),
    "an expectation in other bytes": (http1(b"GET", COUNTER, b"Expect: \xff\r\n"), 400, "malformed-request"),
    "a chunk that is none": (http1(b"POST", COUNTER, JSON + b"Transfer-Encoding: chunked\r\n") + b"zz\r\n", 400, None),
    "two lengths": (http1(b"POST", COUNTER, JSON + b"Content-Length: 3\r\n", ADD), 400, "malformed-request"),
    "a parameter that is given twice": (http1(b"GET", COUNTER + b"?stale=true&stale=false"), 400, "invalid-input"),
    "a WebSocket of another version": (
        http1(b"GET", b"/v1/session", b"Upgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Version: 3\r\n"),
        400,
        "invalid-input",
    ),
    "a WebSocket of a version in other bytes": (
        http1(b"GET", b"/v1/session", b"Upgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Version: \xdd3\r\n"),
        400,
        "malformed-request",
    ),
    "an origin in other bytes": (http1(b"GET", COUNTER, b"Origin: http://\xff\r\n"), 403, "cross-origin"),
    "no WebSocket": (http1(b"GET", b"/v1/yjs/crew/board"), 426, "upgrade-required"),
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_every_refusal_is_a_problem_document(served: Served, case: str) -> None:
    octets, status, code = MALFORMED[case]
    answer = await send(served, octets)
    problem = answer.problem()
    assert problem["status"] == status
    assert code in (None, problem["code"])
    assert served.session.asked == []
    assert {name.lower(): value for name, value in SEALED.items()}.items() <= answer.headers.items()


async def test_the_longest_bookmark_and_event_id_that_are_given_are_taken(served: Served) -> None:
    headers = b"Last-Event-ID: %s\r\n" % (b"a" * WATCH_ID_BYTES_MAX)
    assert (await send(served, http1(b"GET", COUNTER, headers))).status == 200


# ── bodies ────────────────────────────────────────────────────────────────────

WHOLE = gzip.compress(ADD)
BODIES = {
    "gzip that is none": (GZIP, b"no gzip at all", 400, "invalid-value"),
    "gzip that ends early": (GZIP, WHOLE[:-9], 400, "invalid-value"),
    "gzip whose checksum is wrong": (GZIP, WHOLE[:-8] + b"\0" * 8, 400, "invalid-value"),
    "gzip and more": (GZIP, WHOLE + WHOLE, 400, "invalid-value"),
    "a bomb in gzip": (GZIP, gzip.compress(BOMB, 1), 413, "too-large"),
    "no gzip at all": (GZIP, b"\0", 400, "invalid-value"),
    "deflate that is none": (DEFLATE, b"\xff\xff\xff\xff junk", 400, "invalid-value"),
    "deflate that ends early": (DEFLATE, zlib.compress(ADD)[:-5], 400, "invalid-value"),
    "a bomb in deflate": (DEFLATE, zlib.compress(BOMB, 1), 413, "too-large"),
    "brotli": (JSON + b"Content-Encoding: br\r\n", ADD, 415, "unsupported-encoding"),
    "zstandard": (JSON + b"Content-Encoding: zstd\r\n", ADD, 415, "unsupported-encoding"),
    "gzip within gzip": (JSON + b"Content-Encoding: gzip, gzip\r\n", gzip.compress(WHOLE), 415, "unsupported-encoding"),
    "an encoding that nobody knows": (JSON + b"Content-Encoding: rot13\r\n", ADD, 415, "unsupported-encoding"),
    "a body that is too large": (JSON, b" " * (2 << 20), 413, "too-large"),
}


@pytest.mark.parametrize("case", BODIES)
async def test_a_body_that_cannot_be_taken_is_refused_and_nothing_is_written(served: Served, case: str) -> None:
    headers, body, status, code = BODIES[case]
    answer = await send(served, http1(b"POST", COUNTER, headers, body))
    assert (answer.problem()["status"], answer.problem()["code"]) == (status, code)
    assert served.session.asked == []
    assert (answer.headers.get("accept-encoding") == "gzip, deflate") is (code == "unsupported-encoding")


BARE = zlib.compressobj(wbits=-zlib.MAX_WBITS)
TAKEN = {
    "plain": (JSON, ADD),
    "identity": (JSON + b"Content-Encoding: identity\r\n", ADD),
    "gzip": (JSON + b"Content-Encoding: GZIP\r\n", WHOLE),
    "deflate": (DEFLATE, zlib.compress(ADD)),
    "bare deflate": (DEFLATE, BARE.compress(ADD) + BARE.flush()),
}


@pytest.mark.parametrize("case", TAKEN)
async def test_a_compressed_body_is_taken(served: Served, case: str) -> None:
    answer = await send(served, http1(b"POST", COUNTER, *TAKEN[case]))
    assert (answer.status, msgspec.json.decode(answer.body)) == (200, {"value": 1, "added": True})


async def test_an_upload_that_ends_midway_is_nobodys_bug(served: Served) -> None:
    for leaves in ("closes", "resets"):
        async with connected(served) as (_, writer):
            writer.write(http1(b"POST", COUNTER, JSON + b"Content-Length: 100\r\n") + b'{"add"')
            await writer.drain()
            if leaves == "resets":
                writer.transport.abort()
    assert (await send(served, http1(b"GET", COUNTER))).status == 200
    await served.listener.stop()  # Whatever was under way is done then.
    assert not any(key for _, key, _ in served.session.asked)


async def test_a_client_that_asks_for_a_websocket_and_leaves_is_nobodys_bug(served: Served) -> None:
    key = b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    for _ in range(20):
        async with connected(served) as (_, writer):
            writer.write(http1(b"GET", b"/v1/session", b"Upgrade: websocket\r\nConnection: upgrade\r\n" + key))
            writer.write_eof()
            writer.transport.abort()
    assert (await send(served, http1(b"GET", COUNTER))).status == 200


async def test_a_client_that_stops_in_the_middle_of_a_body_is_refused(serve: Serve) -> None:
    served = await serve(heartbeat_s=0.05)
    answer = await send(served, http1(b"POST", COUNTER, JSON + b"Content-Length: 100\r\n") + b'{"add"')
    assert (answer.problem()["status"], answer.problem()["code"]) == (408, "request-timeout")
    assert served.session.asked == []


async def test_all_bodies_together_are_bounded_and_make_place_again(serve: Serve, http: aiohttp.ClientSession) -> None:
    served = await serve(bodies_bytes_max=1000)
    body = b'{"add": 1, "key": "%s"}' % (b"k" * 200)
    for _ in range(20):  # Each makes place again.
        assert (await send(served, http1(b"POST", COUNTER, JSON, body))).status == 200
    answer = await send(served, http1(b"POST", COUNTER, JSON, body + b" " * 1000))
    assert (answer.problem()["status"], answer.problem()["code"]) == (429, "overloaded")
    assert answer.headers["retry-after"] == "1"
    assert (await send(served, http1(b"POST", COUNTER, GZIP, gzip.compress(body + b" " * 1000)))).status == 429


def test_bodies_of_one_author_leave_room_for_others() -> None:
    bodies = Bodies(Config(bodies_bytes_max=1000))
    with bodies.under_way("mallory") as first, bodies.under_way("mallory") as second:
        for receiving in (first, second):
            receiving.take(375)  # Three times the room that is left then.
        with pytest.raises(Overloaded, match="'mallory'"):
            first.take(1)
        with bodies.under_way("bob") as other, bodies.under_way(None) as unnamed:
            other.take(150)
            with pytest.raises(Overloaded, match="'bob'"):
                other.take(100)
            unnamed.take(100)  # Where nobody is asked who it is, no share is known.
    with bodies.under_way("mallory") as again:
        again.take(750)


async def test_a_body_that_drips_is_refused(serve: Serve) -> None:
    served = await serve(heartbeat_s=0.2)
    async with connected(served) as (reader, writer):
        writer.write(http1(b"POST", COUNTER, JSON + b"Content-Length: 200\r\n"))
        answer = asyncio.create_task(reader.readuntil(b"\r\n"))
        for byte in b"{" + b" " * 100:  # Never silent for as long as `heartbeat_s`.
            if answer.done():
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)
        assert answer.done()
        assert b" 408 " in answer.result()
    assert served.session.asked == []


# ── lone surrogates ───────────────────────────────────────────────────────────

SURROGATES = {
    "in a path": http1(b"GET", b"/v1/spaces/%ED%A0%80/counters/c"),
    "in a query": http1(b"GET", b"/v1/spaces/crew/counters?prefix=%ED%B0%80"),
    "in a value": http1(b"PUT", REGISTER, JSON, b'{"value": "\\ud800"}'),
    "in a key": http1(b"PUT", REGISTER, JSON, b'{"value": {"\\udc00a": 1}}'),
    "in a value, as bytes": http1(b"PUT", REGISTER, JSON, b'{"value": "\xed\xa0\x80"}'),
    "in a document": http1(b"PUT", DOCUMENT, JSON, b'{"root": {"a": "\\ud800"}}'),
    "in a patch": http1(b"PATCH", DOCUMENT, JSON, b'[{"op": "add", "path": "/\\ud800", "value": 1}]'),
    "in a field": http1(b"POST", COUNTER, JSON, b'{"add": 1, "key": "\\ud800"}'),
}


@pytest.mark.parametrize("case", SURROGATES)
async def test_a_lone_surrogate_is_told_as_what_it_is(served: Served, case: str) -> None:
    problem = (await send(served, SURROGATES[case])).problem()
    assert problem["status"] == 400
    assert "lone surrogate" in problem["detail"]
    assert served.session.asked == []


async def test_a_pair_of_surrogates_and_an_escaped_backslash_are_text(served: Served) -> None:
    body = b'{"value": ["\\ud83d\\ude00", "\\\\ud800"]}'
    assert (await send(served, http1(b"PUT", REGISTER, JSON, body))).status == 200


# ── HEAD and connections ──────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "path",
    [
        b"/healthz",
        b"/metrics",
        b"/v1/openapi.json",
        b"/v1/cluster",
        COUNTER,
        DOCUMENT,
        b"/v1/spaces/crew/watch",
        b"/v1/spaces/crew/threads/none/checkpoints/latest",
        b"/v1/session",
        b"/nothing",
    ],
)
async def test_head_is_answered_as_get_without_a_body(served: Served, path: bytes) -> None:
    get = await send(served, http1(b"GET", path))
    head = await send(served, http1(b"HEAD", path), method="HEAD")
    assert (head.status, head.body) == (get.status, b"")
    volatile = {"date", "transfer-encoding", "x-request-id", *({"content-length"} if path == b"/metrics" else ())}
    assert {k: v for k, v in head.headers.items() if k not in volatile} == {
        k: v for k, v in get.headers.items() if k not in volatile
    }


async def test_past_their_bound_a_connection_is_told_so_and_closed(serve: Serve) -> None:
    served = await serve(connections_max=2)
    async with connected(served), connected(served):
        async with connected(served) as (reader, _), asyncio.timeout(30):
            told = await reader.read()
        assert told.startswith(b"HTTP/1.1 429 ")
        assert b'"code":"overloaded"' in told
        assert b"Retry-After: 1" in told
    await place(served)


async def place(served: Served) -> None:
    """Wait until a connection is taken again: the node has seen that others ended."""
    async with asyncio.timeout(30):
        while True:
            try:
                assert (await send(served, http1(b"GET", b"/healthz"))).status == 200
                return
            except (AssertionError, ConnectionError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.01)


async def test_a_client_that_takes_nothing_of_its_answer_is_cut_off(serve: Serve) -> None:
    served = await serve(connections_max=1, heartbeat_s=0.05)
    served.session.registers["crew", "r"] = msgspec.msgpack.encode("x" * (32 << 20))  # More than sockets keep.
    async with connected(served) as (_, writer):
        writer.write(http1(b"GET", REGISTER))
        await place(served)


async def test_a_length_beyond_the_bound_is_refused_unread(serve: Serve) -> None:
    served = await serve(heartbeat_s=0.3, request_bytes_max=1000)
    answer = await send(served, http1(b"POST", COUNTER, JSON + b"Content-Length: 1001\r\n"))
    assert (answer.status, answer.problem()["code"]) == (413, "too-large")


async def test_a_connection_without_a_whole_request_is_closed(serve: Serve) -> None:
    served = await serve(idle_s=0.05)
    for begun in (b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "):
        async with connected(served) as (reader, writer), asyncio.timeout(30):
            writer.write(begun)
            assert await reader.read() == b""


@pytest.mark.parametrize("request_", [http1(b"GET", b"/healthz"), http1(b"GET", b"/v1/nothing"), b"GET / HTTP/3.0\r\n\r\n"])
async def test_no_answer_names_a_version(serve: Serve, request_: bytes) -> None:
    answer = await send(await serve(), request_)
    assert answer.headers["server"] == "Shoal"
