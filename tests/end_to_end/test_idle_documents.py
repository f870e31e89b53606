"""Documents that were used and closed leave nothing in memory, by whichever door they were used."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pycrdt
import pytest

import shoal
from shoal.api.http.listener import Listener
from shoal.api.server import create_app
from shoal.client.store import Space
from shoal.config import Config
from shoal.names import MEMOIZED_MAX
from shoal.node.environment import system_environment
from shoal.node.node import Node
from shoal.storage.rocks import RocksStorage
from simulation.bounds import altered
from tests.support.yjs_client import YjsClient

CONFIG = Config(listen_port=0, document_cache_max=16)
SPACE = "{crew}"  # Colocated: what is kept for each partition is there from the first document on.
OPENED = 80
AT_ONCE = 64
LEFT_EACH_MAX = 3  # Objects: what is bounded moves a little. A handle, a subscription or an entry of a table has more.

Use = Callable[[str], Awaitable[None]]


@pytest.fixture(autouse=True)
def bounds() -> Iterator[None]:
    with altered(document_client_ids_max=16, objects_known_max=64):
        yield


async def write(space: Space, name: str) -> None:
    async with await space.document(name) as document:
        document.text("t").insert(0, "found: " * 20)


@asynccontextmanager
async def embedded(directory: Path) -> AsyncIterator[tuple[Space, Use]]:
    async with shoal.open(directory, config=CONFIG, durability="memory") as store:
        space = store.space(SPACE)
        yield space, lambda name: write(space, name)


@asynccontextmanager
async def listening(directory: Path) -> AsyncIterator[str]:
    async with AsyncExitStack() as stack:
        storage = RocksStorage.open(directory, config=CONFIG, now_ms=0)
        node = Node(storage, config=CONFIG, environment=system_environment())
        stack.push_async_callback(node.stop)
        listener = Listener(create_app(node.session, config=CONFIG, node="ab12", version="0", now_s=time.time), config=CONFIG)
        await listener.start()
        stack.push_async_callback(listener.stop)
        yield listener.url


@asynccontextmanager
async def connected(directory: Path) -> AsyncIterator[tuple[Space, Use]]:
    async with listening(directory) as url, shoal.connect(url, durability="memory", config=CONFIG) as store:
        space = store.space(SPACE)
        yield space, lambda name: write(space, name)


@asynccontextmanager
async def yjs(directory: Path) -> AsyncIterator[tuple[Space, Use]]:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(listening(directory))
        store = await stack.enter_async_context(shoal.connect(url, durability="memory", config=CONFIG))
        http = await stack.enter_async_context(aiohttp.ClientSession(url.replace("http:", "ws:")))

        async def use(name: str) -> None:
            path = f"/v1/yjs/%7Bcrew%7D/{name}"
            async with YjsClient(http, path) as writer, YjsClient(http, path) as reader:
                writer.doc.get("t", type=pycrdt.Text).insert(0, "found: " * 20)
                await reader.until(lambda: str(reader.doc.get("t", type=pycrdt.Text)) != "")

        yield store.space(SPACE), use


def objects() -> int:
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.parametrize("door", [embedded, connected, yjs])
async def test_documents_that_are_closed_leave_no_objects_behind(
    door: Callable[[Path], AbstractAsyncContextManager[tuple[Space, Use]]], tmp_path: Path
) -> None:
    async with shoal.open(tmp_path / "others", config=CONFIG, durability="memory") as store:
        others = store.space(SPACE)
        for first in range(0, MEMOIZED_MAX, AT_ONCE):  # What the process keeps, up to a number, is full from here on.
            await asyncio.gather(*(others.counter(f"c{number}").add(1) for number in range(first, first + AT_ONCE)))
    async with door(tmp_path / "state") as (space, use):
        for number in range(MEMOIZED_MAX, MEMOIZED_MAX + 1000):  # And what a node and a connection keep.
            await space.counter(f"c{number}").add(1)
        for number in range(100):
            await use(f"w{number}")
        left = []
        for turn in "abc":  # What is bounded may fill up in one turn; what is left of each document is left in all.
            before = objects()
            for number in range(OPENED):
                await use(f"{turn}{number}")
            left.append(objects() - before)
        assert min(left) <= LEFT_EACH_MAX * OPENED, left
