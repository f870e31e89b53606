"""Two nodes that are cut off from each other while both are written to, and then meet again.

Each is a process, and they reach each other through proxies only. Both go on taking writes while they are apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import shoal
from chaos.network import Relays
from chaos.ports import free_ports
from shoal.client.store import Store
from tests.cli.conftest import served

T = TypeVar("T")
NAMES = ("one", "other")
PATIENCE_S = 60


class Pair:
    """Two nodes, and a store on each."""

    def __init__(self, network: Relays, stores: list[Store]) -> None:
        self._network = network
        self.one, self.other = stores

    async def cut(self) -> None:
        """Nothing gets from one to the other any more."""
        await self._network.cut(self._network.routes, "refused")

    async def heal(self) -> None:
        """They reach each other again; what each has taken reaches the other in a while."""
        await self._network.heal()


@asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[Pair]:
    """Two nodes that reach each other."""
    async with Relays(NAMES) as network, AsyncExitStack() as stack:
        ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
        network.place(ports)
        join = ",".join(network.addresses.values())
        stores = []
        for name, port in ports.items():
            own = ("--listen", f"127.0.0.1:{port}", "--join", join, "--set", f"advertise={network.addresses[name]}")
            serving = served(directory / name, *own)
            # On a thread: the node may wait for the other one, which it reaches through this loop.
            _, url = await asyncio.to_thread(serving.__enter__)
            stack.callback(serving.__exit__, None, None, None)
            stores.append(await stack.enter_async_context(shoal.connect(url, wait=PATIENCE_S)))
        yield Pair(network, stores)


async def until(read: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    """What is read, once it holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds(found := await read()):
            await asyncio.sleep(0.05)
    return found


async def both(reads: Iterable[Callable[[], Awaitable[T]]], holds: Callable[[T], bool]) -> list[T]:
    """What is read at each, once it holds at each."""
    return [await until(read, holds) for read in reads]
