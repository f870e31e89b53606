"""A node that does as it is told: it speaks frames, and misbehaves on command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack

import msgspec
import pytest
from aiohttp import WSMsgType, web

from shoal.protocol.bookmark import Bookmark
from shoal.protocol.frames import (
    PROTOCOL,
    CallerFrame,
    CallFrame,
    ObserveFrame,
    Welcome,
    decode_caller_frames,
    encode_hello,
    messages,
)
from shoal.transport.link import Link
from shoal.transport.session import RemoteSession, SessionContext
from simulation.bounds import altered, parted
from tests.transport import dummy_node
from tests.transport.calls import CONFIG
from tests.transport.dummy_node import DummyNode, Make


class Peer:
    """Each frame received goes into `frames`; `send` answers on the newest connection."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[CallerFrame] = asyncio.Queue()
        self.messages: list[bytes] = []
        self.connections: list[web.WebSocketResponse] = []
        self.transports: list[asyncio.Transport] = []
        self.headers: list[str | None] = []
        self.refuse: web.Response | None = None  # Instead of the upgrade.
        self.welcome = Welcome(PROTOCOL, "0.1.0", "ab12", 1 << 20, 100, 10)
        self.greeting: bytes | None = None  # In the place of the welcome.
        self.answer: Callable[[CallFrame], bytes] | None = None  # For every call, at once.
        self.paused = False  # Pings are not answered, nor anything else.
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_get("/v1/session", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        assert self._runner is not None
        await self.hang_up()
        await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(request.headers.get("Authorization"))
        if self.refuse is not None:
            return self.refuse
        socket = web.WebSocketResponse(compress=False, autoping=not self.paused)
        await socket.prepare(request)
        await socket.receive_bytes()
        await socket.send_bytes(self.greeting or encode_hello(self.welcome))
        assert request.transport is not None
        self.transports.append(request.transport)
        self.connections.append(socket)
        while (message := await socket.receive()).type in (WSMsgType.BINARY, WSMsgType.PING):
            if message.type is WSMsgType.PING:
                continue
            self.messages.append(message.data)
            for frame in decode_caller_frames(message.data):
                self.frames.put_nowait(frame)
                if self.answer is not None and isinstance(frame, CallFrame):
                    await self.send(self.answer(frame))
        return socket

    async def send(self, *frames: bytes) -> None:
        for message in messages(frames, bytes_max=1 << 30):
            await self.connections[-1].send_bytes(message)

    async def next_call(self) -> CallFrame:
        frame = await self.frames.get()
        assert isinstance(frame, CallFrame), frame
        return frame

    async def next_id(self) -> int:
        """Of the next request, a call or a subscription."""
        frame = await self.frames.get()
        assert not isinstance(frame, ObserveFrame), frame
        return frame.id

    async def hang_up(self) -> None:
        """Break every connection without a word."""
        for transport in self.transports:
            transport.abort()
        self.transports.clear()


Dial = Callable[..., Awaitable[Link]]
Connect = Callable[..., RemoteSession]


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    await peer.start()
    yield peer
    await peer.stop()


@pytest.fixture
async def other_peer() -> AsyncIterator[Peer]:
    peer = Peer()
    await peer.start()
    yield peer
    await peer.stop()


@pytest.fixture
async def dial(peer: Peer) -> AsyncIterator[Dial]:
    links: list[Link] = []

    stack = ExitStack()

    async def to_peer(**settings: object) -> Link:
        mine, bounds = parted(settings)
        stack.enter_context(altered(**bounds))
        links.append(await Link.dial(peer.url, config=msgspec.structs.replace(CONFIG, **mine)))
        return links[-1]

    yield to_peer
    for link in links:
        await link.close()
    stack.close()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    sessions: list[RemoteSession] = []
    drawn = iter(range(1, 1 << 16))

    def to(urls: str, *, bookmark: Bookmark | None = None, **settings: object) -> RemoteSession:
        sessions.append(
            RemoteSession(
                urls,
                bookmark=bookmark,
                context=SessionContext(lambda: 1_700_000_000_000, lambda size: next(drawn).to_bytes(size, "big")),
                config=msgspec.structs.replace(CONFIG, **settings),
            )
        )
        return sessions[-1]

    yield to
    for session in sessions:
        await session.close()


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Listening nodes, started unless `start` is False; other arguments are settings."""
    async with AsyncExitStack() as stack:

        async def node(name: bytes, *, start: bool = True, **settings: object) -> DummyNode:
            mine, bounds = parted(settings)
            stack.enter_context(altered(**bounds))
            made = DummyNode(name, msgspec.structs.replace(dummy_node.CONFIG, **mine))
            await made.listen()
            stack.push_async_callback(made.stop)
            if start:
                made.start()
            return made

        yield node
