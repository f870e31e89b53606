"""A node behind a listener, and requests to its streams."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, Protocol

import aiohttp
import pytest
from multidict import CIMultiDictProxy
from yarl import URL

from shoal.api.http.listener import Listener
from shoal.api.server import create_app
from tests.node.conftest import Bench, Opener, bench, open_bench

__all__ = ["bench", "open_bench"]

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}


class Answer(NamedTuple):
    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def next(self) -> str:
        return self.headers["Stream-Next-Offset"]


class Streams:
    """A node's streams of the space `crew`."""

    def __init__(self, bench: Bench, listener: Listener, http: aiohttp.ClientSession) -> None:
        self.bench, self.listener, self.http = bench, listener, http

    def url(self, path: str) -> URL:
        return URL(f"{self.listener.url}/v1/streams/crew/{path}", encoded=True)

    async def __call__(self, method: str, path: str = "s", body: bytes | None = None, **headers: str) -> Answer:
        said = {name.replace("_", "-"): text for name, text in headers.items()}
        async with self.http.request(method, self.url(path), data=body, headers=said) as answer:
            return Answer(answer.status, answer.headers, await answer.read())

    async def text(self, path: str = "s") -> str:
        answer = await self("GET", path)
        assert answer.status == 200, answer
        return answer.body.decode()


class Serve(Protocol):
    async def __call__(self, **settings: Any) -> Streams: ...


@pytest.fixture
async def serve(open_bench: Opener) -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def start(*, now_s: Callable[[], float] = time.time, **settings: Any) -> Streams:
            settings = {"listen_port": 0, "stop_timeout_s": 5.0, "stream_poll_s": 0.05, "stream_idle_s": 0.02, **settings}
            bench = open_bench(**settings)
            app = create_app(bench.node.session, config=bench.config, node="ab12", version="0", now_s=now_s)
            listener = Listener(app, config=bench.config)
            await listener.start()
            stack.push_async_callback(listener.stop)
            http = await stack.enter_async_context(aiohttp.ClientSession(skip_auto_headers=["Content-Type"]))
            return Streams(bench, listener, http)

        yield start


@pytest.fixture
async def streams(serve: Serve) -> Streams:
    return await serve()
