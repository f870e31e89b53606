"""Clients that send much, and read nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET
from typing import Any

import aiohttp
import pytest

from shoal.api.yjs.room import YJS_PENDING_BYTES_MAX, Room
from shoal.api.yjs.socket import Message, Socket
from shoal.errors import InvalidValue, ShoalError
from shoal.protocol import yjs
from shoal.protocol.requests import Early, Updates, UpdatesTaken
from tests.api.yjs.conftest import PATIENCE_S, Serve, Served
from tests.api.yjs.test_hocuspocus import joined

BUDGET = 1 << 16
NAME = b"\xff" * 2000  # Not UTF-8, so that it cannot be opened; the reply is as long.
REPLIES_MAX = 30_000


KEPT_BYTES = 1 << 16
"""What the system keeps at an end of a connection, where it would keep megabytes."""


def narrow(address: Any) -> socket.socket:
    """A socket that is narrow before it connects: one that had promised more room may lose what the other end sends."""
    made = socket.socket(*address[:3])
    made.setsockopt(SOL_SOCKET, SO_RCVBUF, KEPT_BYTES)
    return made


@pytest.mark.parametrize(
    ("address", "message"),
    [(NAME, b"\x02\x00\x00"), (b"d", yjs.encode_update(b"\x00\x00") * yjs.MESSAGES_MAX)],
    ids=["refused documents, without a token", "updates"],
)
async def test_a_client_that_reads_no_replies_is_not_read_and_then_cut_off(
    serve: Serve, address: bytes, message: bytes
) -> None:
    served = await serve(yjs_send_bytes_max=BUDGET, yjs_stalled_s=0.5)
    await served.http.close()
    served.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(socket_factory=narrow))
    try:
        most = await flooded(served, address, message)
    finally:
        await served.http.close()
    assert not served.listener._yjs._sockets
    assert 0 < most <= 2 * BUDGET


async def flooded(served: Served, address: bytes, message: bytes) -> int:
    """Send until the client is cut off; the most bytes that waited for it."""
    provider = await joined(served)
    await provider.open(b"d")
    await provider.hear(b"d", 2)
    stopped: asyncio.Transport = provider.socket._response.connection.transport  # type: ignore
    stopped.pause_reading()
    server = served.listener._runner.server
    assert server is not None
    for each in server.connections:  # Of replies alone: what the client sends goes on at full speed.
        assert each.transport is not None
        each.transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_SNDBUF, KEPT_BYTES)

    def waiting() -> int:
        return max(
            (each.transport.get_write_buffer_size() for each in list(server.connections) if each.transport),
            default=0,
        )

    most = sent = 0
    async with asyncio.timeout(PATIENCE_S):
        while served.listener._yjs._sockets and sent < REPLIES_MAX:
            sending = asyncio.ensure_future(provider.say(address, message))
            while not sending.done() and served.listener._yjs._sockets:
                most = max(most, waiting())
                await asyncio.sleep(0)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            most, sent = max(most, waiting()), sent + 1
    return most


class Guest:
    """Notes what its room says."""

    def __init__(self) -> None:
        self.told: list[int | ShoalError] = []
        self.authors: dict[int, str] = {}

    def relay(self, message: Message, /) -> None: ...

    def mention(self, message: Message, /) -> None: ...

    def resync(self) -> None: ...

    def early(self) -> None: ...

    def written(self, number: int, update: yjs.Update, /) -> None:
        self.told.append(number)

    def refused(self, error: ShoalError, /) -> None:
        self.told.append(error)

    def end(self, code: int, reason: str, /) -> None: ...


class Writing:
    """A session that writes updates; `b"bad"` is none. After each write it calls `after`."""

    def __init__(self) -> None:
        self.writes: list[list[bytes]] = []
        self.after: Callable[[], object] = int

    async def call(self, request: Updates, **_: Any) -> UpdatesTaken:
        await asyncio.sleep(0)
        self.writes.append(list(request.updates))
        self.after()
        if b"bad" in request.updates:
            raise InvalidValue("it is no update.")
        early: list[Early] = []
        return UpdatesTaken(early)

    @asynccontextmanager
    async def subscribe(self, _request: object) -> AsyncIterator[AsyncIterator[Any]]:
        async def nothing() -> AsyncIterator[Any]:
            await asyncio.Event().wait()
            yield

        yield nothing()

    async def close(self) -> None: ...


@asynccontextmanager
async def room() -> AsyncIterator[tuple[Room, Writing]]:
    session = Writing()
    made = Room(session, "crew", "d")  # type: ignore[arg-type]
    yield made, session
    await made.close()


def update(content: bytes) -> yjs.Update:
    return yjs.Update(content, answers=False)


async def test_a_guest_that_leaves_waits_for_its_own_updates_and_not_for_a_busy_writer() -> None:
    async with room() as (busy, session):
        leaving, writer = Guest(), Guest()

        def write_on() -> None:
            if len(session.writes) < 100:
                busy.take(writer, len(session.writes), update(b"on"))

        session.after = write_on
        busy.take(leaving, 1, update(b"last"))
        async with asyncio.timeout(PATIENCE_S):
            await busy.written()
        assert leaving.told == [1]
        assert len(session.writes) < 10


async def test_updates_after_a_rejected_one_are_not_written() -> None:
    async with room() as (shared, session):
        bad, good = Guest(), Guest()
        for number in range(300):
            shared.take(bad, number, update(b"bad"))
            shared.take(good, number, update(b"good"))
        async with asyncio.timeout(PATIENCE_S):
            await shared.written()
        assert good.told == list(range(300))
        [told] = bad.told
        assert isinstance(told, InvalidValue)
        assert sum(content.count(b"bad") for content in session.writes) == 128 + 1  # Together with others, and alone.


async def test_small_updates_that_wait_count_what_they_take_in_memory() -> None:
    async with room() as (full, _):
        for number in range(YJS_PENDING_BYTES_MAX // 256):
            full.take(Guest(), number, update(b"x"))
        assert full.is_full


class Pipe:
    """A transport that takes 50 bytes between two looks, if it takes any."""

    def __init__(self) -> None:
        self.waiting = 0
        self.takes = True
        self.looks = 0

    def is_closing(self) -> bool:
        return False

    def write(self, frame: bytes) -> None:
        self.waiting += len(frame)

    def get_write_buffer_size(self) -> int:
        self.looks += 1
        if self.takes:
            self.waiting = max(0, self.waiting - 50)
        return self.waiting


@pytest.mark.parametrize("takes", [True, False])
async def test_writes_of_others_to_a_socket_are_not_awaited(takes: bool) -> None:
    pipe = Pipe()
    socket = Socket(_Open(), send_bytes_max=BUDGET, stalled_s=0.2)  # type: ignore[arg-type]
    socket._transport = pipe  # type: ignore[assignment]
    socket.write(bytes(400))
    pipe.takes = takes
    draining = asyncio.ensure_future(socket.drained())
    looks = 0
    async with asyncio.timeout(PATIENCE_S):
        while not draining.done():
            if pipe.looks > looks:  # Other documents write as much as is taken: it is never empty.
                socket.write(bytes(50 * (pipe.looks - looks)))
                looks = pipe.looks
            assert pipe.waiting
            await asyncio.sleep(0)
    assert draining.result() is takes


async def test_a_client_is_not_read_whenever_more_replies_wait_than_it_may_leave() -> None:
    """Each time: else twice as many would wait, those of before and as many again."""
    pipe = Pipe()
    pipe.takes = False
    socket = Socket(_Open(), send_bytes_max=100, stalled_s=PATIENCE_S)  # type: ignore[arg-type]
    socket._transport = pipe  # type: ignore[assignment]
    for _ in range(10):
        reading = asyncio.ensure_future(socket.receive())
        await asyncio.sleep(0)
        if pipe.waiting > 100:
            assert not reading.done()
            pipe.waiting = 100
        await reading
        socket.reply(bytes(60))
        assert pipe.waiting <= 100 + 60


class _Open:
    closed = False

    async def receive(self) -> None: ...


def test_a_message_is_encoded_once_for_equal_frames() -> None:
    message = Message(b"news")
    assert message.frame(b"doc") is message.frame(b"doc")
    assert message.frame(b"") != message.frame(b"doc")
