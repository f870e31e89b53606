from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Protocol

import pytest

from shoal.client.connection import StoreConnection
from shoal.client.store import Store
from shoal.config import Config
from shoal.node.node import Node
from shoal.storage.interface import MemoryStorage
from simulation.bounds import altered, parted
from simulation.world.environment import SimulatedEnvironment


class Bench:
    """A node over memory storage, its handles, and the means to crash it."""

    def __init__(self, storage: MemoryStorage, simulated: SimulatedEnvironment, config: Config) -> None:
        self.storage = storage
        self.simulated = simulated
        self.config = config
        self.node = Node(storage, config=config, environment=simulated.environment)
        environment = simulated.environment
        connection = StoreConnection(self.node.session(), config, "local", environment.entropy)
        self.store = Store(connection, close=self.node.stop)
        self.space = self.store.space("crew")

    def crashed(self, keep: int | None = 0) -> Bench:
        """The same directory after a power cut: what was not synced is gone, but for the first `keep` writes."""
        return Bench(
            self.storage.left_by_crash(keep), SimulatedEnvironment(self.simulated.random.randrange(2**32)), self.config
        )


class Opener(Protocol):
    """Makes a bench with a configuration of its own; all are stopped at the end of the test."""

    def __call__(self, storage: MemoryStorage | None = None, /, *, seed: int = 1, **settings: Any) -> Bench: ...


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(MemoryStorage(), SimulatedEnvironment(1), Config())
    yield made
    await made.node.stop()


@pytest.fixture
async def open_bench() -> AsyncIterator[Opener]:
    async with AsyncExitStack() as stack:

        def make(storage: MemoryStorage | None = None, /, *, seed: int = 1, **settings: Any) -> Bench:
            mine, bounds = parted(settings)
            stack.enter_context(altered(**bounds))
            made = Bench(storage or MemoryStorage(), SimulatedEnvironment(seed), Config(**mine))
            stack.push_async_callback(made.node.stop)
            return made

        yield make
