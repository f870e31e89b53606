"""A node behind a listener, and standard Yjs clients."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Protocol

import aiohttp
import pycrdt
import pytest

from benchmarks import edits
from shoal.api.http.listener import Listener
from shoal.api.server import create_app
from tests.node.conftest import Bench, Opener, bench, open_bench
from tests.support.yjs_client import YjsClient

__all__ = ["bench", "open_bench"]

PATIENCE_S = 120

MADE = edits.parse(
    {
        "numAgents": 2,
        "endContent": "hé two wörlds!",
        "txns": [
            {"agent": 0, "parents": [], "patches": [[0, 0, "hé wörld"]]},
            {"agent": 0, "parents": [0], "patches": [[8, 0, "!"]]},
            {"agent": 1, "parents": [0], "patches": [[2, 0, " two"]]},
            {"agent": 1, "parents": [1, 2], "patches": [[12, 0, "s"]]},
        ],
    }
)


class Served:
    """A node behind a listener."""

    def __init__(self, bench: Bench, listener: Listener, http: aiohttp.ClientSession) -> None:
        self.bench, self.listener, self.http = bench, listener, http
        self._connected: list[aiohttp.ClientWebSocketResponse] = []

    async def connect(self, path: str) -> aiohttp.ClientWebSocketResponse:
        """A WebSocket that is closed with the listener: one that is left to the garbage collector may be warned of."""
        url = self.listener.url.replace("http:", "ws:")
        self._connected.append(await self.http.ws_connect(url + path, timeout=aiohttp.ClientWSTimeout(ws_close=0.1)))
        return self._connected[-1]

    async def disconnect(self) -> None:
        for socket in self._connected:
            await socket.close()

    def client(self, document: str = "d", *, doc: pycrdt.Doc[Any] | None = None) -> YjsClient:
        url = self.listener.url.replace("http:", "ws:")
        return YjsClient(self.http, f"{url}/v1/yjs/crew/{document}", doc=doc)

    async def json(self, document: str = "d") -> Any:
        async with self.http.get(f"{self.listener.url}/v1/spaces/crew/documents/{document}") as answer:
            return await answer.json()


class Serve(Protocol):
    async def __call__(self, **settings: Any) -> Served: ...


@pytest.fixture
async def serve(open_bench: Opener) -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Served:
            bench = open_bench(listen_port=0, stop_timeout_s=5.0, **settings)
            app = create_app(bench.node.session, config=bench.config, node="ab12", version="0", now_s=time.time)
            listener = Listener(app, config=bench.config)
            await listener.start()
            stack.push_async_callback(listener.stop)
            served = Served(bench, listener, await stack.enter_async_context(aiohttp.ClientSession()))
            stack.push_async_callback(served.disconnect)
            return served

        yield start


@pytest.fixture
async def served(serve: Serve) -> Served:
    return await serve()


def text_of(client: YjsClient, name: str = "t") -> pycrdt.Text:
    root: pycrdt.Text = client.doc.get(name, type=pycrdt.Text)
    return root


async def seen(client: YjsClient, key: str, value: str) -> None:
    await client.until(lambda: bool(map_of(client).get(key) == value))


def map_of(client: YjsClient, name: str = "m") -> pycrdt.Map[Any]:
    root: pycrdt.Map[Any] = client.doc.get(name, type=pycrdt.Map)
    return root
