from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from shoal import Thread
from shoal.client.connection import StoreConnection
from shoal.client.store import Store
from shoal.cluster.operation import partition_of
from shoal.config import Config
from shoal.node.node import Node
from shoal.protocol.requests import Annotate
from shoal.storage.interface import MemoryStorage
from simulation.world.environment import SimulatedEnvironment
from tests.support.asking import OUTPUT, question, write

SPACE = "{crew}"
NUMBER = partition_of(SPACE, "any")
"""The partition of everything here: the space is colocated."""


async def begun(thread: Thread, key: str) -> None:
    """A step whose program died."""

    async def die() -> None:
        raise asyncio.CancelledError

    with suppress(asyncio.CancelledError):
        await thread.step("fetch", key=key, call=die)


class Filled:
    """A store whose objects of many kinds are all in one partition."""

    def __init__(self, seed: int, storage: MemoryStorage | None = None) -> None:
        self.storage = storage or MemoryStorage(identity=b"disk %d" % seed)
        self.simulated = SimulatedEnvironment(seed)
        self.node = Node(self.storage, config=Config(), environment=self.simulated.environment)
        environment = self.simulated.environment
        connection = StoreConnection(self.node.session(), Config(), "local", environment.entropy)
        self.store = Store(connection, close=self.node.stop)
        self.space = self.store.space(SPACE)

    async def fill(self) -> None:
        """Make an object of each kind, and delete and empty some."""
        thread = self.space.thread("one")
        await thread.save({"notes": ["a" * 50, "b"], "n": 1})
        await thread.save({"notes": ["a" * 50, "b", "c"], "n": 2})
        await thread.journal.append({"what": 1}, key="event")
        await self.space.thread("paused").save({"n": 1})
        for name in ("steps", "paused"):
            for key in ("first", "second"):
                await begun(self.space.thread(name), key)
        await self.space.thread("paused").pause(reason="later")
        await self.space.thread("gone").save({"n": 1})
        await self.space.thread("gone").delete()
        for name in ("asks", "asked", "asks, paused", "asks again"):
            for label in ("/1", "/2"):
                await self.space.thread(name).save({"at": label}, label=label, overwrite=True)
                await self.node.session().call(Annotate(SPACE, name, label, [question(task) for task in "xy"]))
            if name == "asks again":
                await self.space.thread(name).delete()
                await self.space.thread(name).save({"at": 3}, label="/3")
                await self.node.session().call(Annotate(SPACE, name, "/3", [question("x")]))
        await self.node.session().call(Annotate(SPACE, "asked", "/2", [write(task, OUTPUT) for task in "xy"]))
        await self.space.thread("asks, paused").pause()
        await begun(self.space.thread("asks"), "first")
        await self.space.counter("tokens").add(5)
        await self.space.counter("even").add(1)
        await self.space.counter("even").add(-1)
        await self.space.set("urls").add("x")
        await self.space.set("urls").remove("x")
        await self.space.register("goal").set("g")
        await self.space.map("facts").set("k", "v")
        await self.space.items.put(("memory",), "likes", {"tea": True})

    def rows(self) -> dict[bytes, bytes]:
        return dict(self.storage.scan(b"", None))


@pytest.fixture
async def filled() -> AsyncIterator[Filled]:
    made = Filled(1)
    await made.fill()
    yield made
    await made.node.stop()
