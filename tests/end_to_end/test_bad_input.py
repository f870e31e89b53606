"""Whatever one client sends, it alone is told, and another goes on undisturbed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest

import shoal
from shoal.client.store import Space, Store
from shoal.errors import HeadMoved, InvalidInput, InvalidName, InvalidValue, NotFound, TooLarge
from shoal.protocol import requests
from shoal.protocol.frames import PROTOCOL, ErrorFrame, Hello, decode_node_frames, encode_call, encode_hello, messages
from tests.cli.conftest import PATIENCE_S

pack = msgspec.msgpack.encode


@pytest.fixture
async def undisturbed(store: Store) -> AsyncIterator[None]:
    """A client with one connection that goes on writing during the test, and must not notice."""
    counter, stop = store.space("good").counter("n"), asyncio.Event()
    value = await counter.add(1)

    async def write() -> None:
        nonlocal value
        while not stop.is_set():
            assert await counter.add(1) == value + 1
            value += 1

    writing = asyncio.create_task(write())
    yield
    stop.set()
    await asyncio.wait_for(writing, PATIENCE_S)
    assert await counter.value() == value


@asynccontextmanager
async def raw_socket(http: aiohttp.ClientSession) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    async with http.ws_connect("/v1/session") as socket:
        await socket.send_bytes(encode_hello(Hello(PROTOCOL, "test")))
        await socket.receive_bytes(timeout=PATIENCE_S)
        yield socket


@pytest.mark.answers("one-bad-message-crashes-every-node-in-turn")
@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize("message", [b"\xc1", b"", b"\xff" * 100, b"\x91\x91\x05", bytes(300_000)], ids=lambda m: f"{m[:4]!r}")
async def test_a_message_that_is_no_frames_ends_its_own_socket(http: aiohttp.ClientSession, message: bytes) -> None:
    async with raw_socket(http) as socket:
        await socket.send_bytes(message)
        async for _ in socket:
            pass
        assert socket.closed


@pytest.mark.answers("one-bad-message-crashes-every-node-in-turn")
@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (pack(["frobnicate", 1, 2]), "unsupported"),
        (pack(["add", "crew", "n", "many"]), "invalid-input"),
        (pack(["add", "crew"]), "invalid-input"),
        (pack(["add", "crew", "\x00", 1]), "invalid-name"),
        (b"\x94\xa3add\xa4crew\xa1\xff\x01", "invalid-value"),
        (pack(["save", "crew", "t", {"x": b"\xc1"}]), "invalid-value"),
        (pack(["patch", "crew", "d", b"\xff not json"]), "invalid-value"),
        (pack(["patch", "crew", "d", b'[{"op": "add", "path": "/m", "value": "\xff"}]']), "invalid-value"),
        (pack(["update", "crew", "d", b"\x01\xff\xff\xff", {}]), "invalid-value"),
        (pack(["assign", "crew", "r", b"\x01", b"no context"]), "invalid-value"),
        (pack(["read-journal", "crew", "t", b"no cursor"]), "invalid-value"),
        (pack(["batch", []]), "spans-partitions"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_a_bad_request_is_answered_and_its_socket_goes_on(
    http: aiohttp.ClientSession, request_bytes: bytes, code: str
) -> None:
    async with raw_socket(http) as socket:
        bad = b"\x95\x00\x01\xc0\xa5local" + request_bytes  # [0, id, no key, durability, request]
        good = encode_call(2, requests.Status())
        for message in messages([bad, good], bytes_max=1 << 18):
            await socket.send_bytes(message)
        answers: dict[int, object] = {}
        while answers.keys() != {1, 2}:
            for frame in decode_node_frames(await socket.receive_bytes(timeout=PATIENCE_S)):
                answers[frame.id] = frame
        refused = answers[1]
        assert isinstance(refused, ErrorFrame)
        assert (refused.fault.code, refused.fault.written) == (code, "no")
        assert not isinstance(answers[2], ErrorFrame)


Refused = Callable[[Space], Awaitable[object]]


async def document_bomb(space: Space) -> None:
    async with await space.document("d") as document:
        document.map("m")["big"] = "x" * 300_000


@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize(
    ("error", "ask"),
    [
        (TooLarge, lambda space: space.thread("t").save({"x": bytes(300_000)})),
        (TooLarge, document_bomb),
        (InvalidName, lambda space: space.thread("t").save({"\x00": 1})),
        (InvalidName, lambda space: space.thread("t").save({}, branch="..")),
        (InvalidValue, lambda space: space.thread("t").save({"x": object()})),
        (HeadMoved, lambda space: space.thread("t").save({}, expect_head="ab" * 32)),
        (NotFound, lambda space: space.thread("t").save({}, expect_head="no id")),
        (InvalidInput, lambda space: space.counter("n").add(2**63)),
        (InvalidInput, lambda space: space.counter("n").add(1, durability="disk")),
        (InvalidInput, lambda space: space.counter("n").add(1, key="")),
    ],
    ids=["state", "edit", "channel", "branch", "value", "head", "id", "amount", "durability", "key"],
)
async def test_a_client_is_told_by_the_same_error_as_an_embedded_one(
    url: str, error: type[shoal.errors.ShoalError], ask: Refused
) -> None:
    async with shoal.connect(url) as own:
        with pytest.raises(error):
            await ask(own.space("bad"))
        assert [name async for name in own.spaces()] in ([], ["good"]), "nothing was written"


@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/counters/n", b"{", 400, "invalid-value"),
        ("POST", "/counters/n", b'{"add": "one"}', 400, "invalid-input"),
        ("POST", "/counters/n", b'{"ad": 1}', 400, "invalid-input"),
        ("POST", "/counters/%00", b'{"add": 1}', 400, "invalid-name"),
        ("POST", "/threads/t/checkpoints", b'{"state": {"x": "\xff"}}', 400, "invalid-value"),
        ("POST", "/threads/t/checkpoints", b'{"state": "%s"}' % (b"x" * 300_000), 413, "too-large"),
        ("POST", "/threads/t/checkpoints", b'{"state": {}, "expect_head": "%s"}' % (b"ab" * 32), 412, "head-moved"),
        ("PATCH", "/documents/d", b'[{"op": "add", "path": "/m", "value": "\xff"}]', 400, "invalid-value"),
        ("PATCH", "/documents/d", b'[{"op": "frobnicate", "path": "/m"}]', 400, "invalid-value"),
        ("PUT", "/registers/r", b"", 400, "invalid-value"),
        ("GET", "/nowhere/n", b"", 404, "not-found"),
    ],
)
async def test_rest_answers_with_a_problem_document(
    http: aiohttp.ClientSession, method: str, path: str, body: bytes, status: int, code: str
) -> None:
    headers = {"Content-Type": "application/json"}
    async with http.request(method, "/v1/spaces/bad" + path, data=body, headers=headers) as answer:
        problem = await answer.json(content_type="application/problem+json")
    assert (answer.status, problem["code"], problem["written"]) == (status, code, "no")
