"""A mirror of a document over a session that keeps the document in memory and fails on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pycrdt
import pytest

from shoal.config import Config
from shoal.errors import (
    Disconnected,
    ShoalError,
)
from shoal.kinds.document.handle.document import Document
from shoal.kinds.document.state.live import LiveDocument
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import (
    DocumentState,
    Durability,
    Edit,
    Follow,
    Push,
    Request,
    Subscription,
    Update,
    Updated,
)

CONFIG = Config(reconnect_delay_s_max=0.001, request_timeout_s=0.05)


class FakeSession:
    """One document. `before` and `after` are errors to raise in turn, before or after a write is applied."""

    def __init__(self) -> None:
        self.bookmark = Bookmark()
        self.connections = 1
        self.live = LiveDocument(bytes_max=1 << 24, roots_max=16)
        self.requests: list[Update] = []
        self.stale: list[bool] = []
        self.keys: list[str | None] = []
        self.follows: list[Follow] = []
        self.before: list[ShoalError] = []
        self.after: list[ShoalError] = []
        self.unreachable = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()
        self._queues: list[asyncio.Queue[Push | ShoalError]] = []

    async def call(
        self, request: Request[Any], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> Any:
        assert isinstance(request, Update)
        self.requests.append(request)
        self.keys.append(key)
        self.stale.append(stale)
        self.arrived.set()
        await self.gate.wait()
        if self.unreachable:
            raise Disconnected("no node")
        if self.before:
            raise self.before.pop(0)
        self.live.integrate(request.update, request.roots)
        self.push(Edit(request.update, request.roots, request.authors))
        if self.after:
            raise self.after.pop(0)
        return Updated()

    def push(self, what: Push | ShoalError) -> None:
        for queue in self._queues:
            queue.put_nowait(what)

    @asynccontextmanager
    async def subscribe(self, subscription: Subscription, /) -> AsyncIterator[AsyncIterator[Push]]:
        assert isinstance(subscription, Follow)
        self.follows.append(subscription)
        if self.unreachable:
            raise Disconnected("no node")
        queue: asyncio.Queue[Push | ShoalError] = asyncio.Queue()
        queue.put_nowait(DocumentState(self.live.update_since(subscription.state), dict(self.live.roots)))
        self._queues.append(queue)
        try:
            yield self._pushes(queue)
        finally:
            self._queues.remove(queue)

    async def _pushes(self, queue: asyncio.Queue[Push | ShoalError]) -> AsyncIterator[Push]:
        while True:
            push = await queue.get()
            if isinstance(push, ShoalError):
                raise push
            yield push

    async def close(self) -> None:
        pass


Mirror = Callable[..., Any]


def map_update(client_id: int, entries: dict[str, Any]) -> bytes:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=client_id)
    doc.get("m", type=pycrdt.Map).update(entries)
    return doc.get_update()


@pytest.fixture
async def session() -> FakeSession:
    return FakeSession()


@pytest.fixture
async def mirror(session: FakeSession) -> AsyncIterator[Mirror]:
    opened: list[Document] = []

    async def open_one(*, config: Config = CONFIG, **given: Any) -> Document:
        document = await Document.open(session, "s", "d", client_id=len(opened) + 1, config=config, **given)
        opened.append(document)
        return document

    yield open_one
    for document in opened:
        await document._stop()


async def settled() -> None:
    """Until everything that can run without waiting for time has run."""
    for _ in range(50):
        await asyncio.sleep(0)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.001)
