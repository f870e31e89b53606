"""Checkpoints that a machine loads ahead: of the agents that it would take if the machines that drive them died.

Law: what is kept here may be old. The agent's lease is acquired first, and then the head is read: if it is another one, it is
loaded as usual.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress

from shoal.client.connection import StoreConnection
from shoal.client.resuming import reread
from shoal.client.store import Space
from shoal.errors import NotFound, ShoalError
from shoal.kinds.thread.flows.checkpoint import Checkpoint

_PAUSE_S = 0.5  # After the nodes could not be reached for `request_timeout_s`.


class Ahead:
    """The newest checkpoints of some agents, loaded again at most every `crew_standby_s` while they change."""

    def __init__(self, connection: StoreConnection, space: Space) -> None:
        self._connection = connection
        self._space = space
        self._loaded: dict[str, Checkpoint] = {}
        self._keeping: dict[str, asyncio.Task[None]] = {}

    def follow(self, names: Iterable[str]) -> None:
        """Keep the checkpoints of exactly these agents from now on."""
        wanted = dict.fromkeys(names)
        for name in [name for name in self._keeping if name not in wanted]:
            self._keeping.pop(name).cancel()
            self._loaded.pop(name, None)
        for name in wanted:
            if name not in self._keeping:
                self._keeping[name] = asyncio.get_running_loop().create_task(self._keep(name))

    @property
    def names(self) -> list[str]:
        """The agents whose checkpoints are kept."""
        return list(self._keeping)

    def take(self, name: str) -> Checkpoint | None:
        """The checkpoint of an agent, if there is one here."""
        return self._loaded.get(name)

    async def close(self) -> None:
        """Keep nothing any more."""
        tasks = list(self._keeping.values())
        self.follow(())
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, name: str) -> None:
        thread = self._space.thread(name)

        async def read() -> AsyncGenerator[Checkpoint, None]:
            with suppress(NotFound):  # It has saved nothing yet.
                yield await thread.load()

        while not self._connection.closed.is_set():
            with suppress(ShoalError):
                async with aclosing(reread(self._connection, self._space.name, name, "save", read)) as found:
                    async for checkpoint in found:
                        self._loaded[name] = checkpoint
                        await asyncio.sleep(self._connection.config.crew_standby_s)
            await asyncio.sleep(_PAUSE_S)
