"""Three nodes in one process, in virtual time: the instructions of a replicated write, without sockets and threads.

Laws:
- The nodes, their storage and all that they say to each other are real. A message takes no instructions on its way, and a sync
  is called on the loop.
- Time passes only where all wait. So the same code does the same work in each run, down to which writes share a sync.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import TypeVar

from benchmarks.states import state
from shoal.client.connection import StoreConnection
from shoal.client.store import Space, Store
from shoal.config import Config
from shoal.node.environment import Environment
from shoal.node.node import Node, open_node

TASKS = 48  # At all nodes.

_NAMES = ("a:1", "b:1", "c:1")
_START_MS = 1_700_000_000_000
_SYNC_S, _WAY_S = 0.001, 0.0002
_FOUNDED_S = 0.002

T = TypeVar("T")
Act = Callable[[int], Awaitable[object]]
"""An operation, by its number."""
Begin = Callable[[Space, int], Act]
"""The operations of a task, by its number."""


class _Way:
    """One direction of a link: an `Outlet` of its sender."""

    waiting_bytes = 0

    def __init__(self, source: Node, target: Node, address: str) -> None:
        self.address = address
        assert source.replicator is not None
        assert target.replicator is not None
        self._source, self._peer = source.replicator.identity(), target.replicator
        self._waiting: deque[bytes] = deque()
        self._stirred = asyncio.Event()
        self.carrying = asyncio.create_task(self._carry())

    def offer(self, message: bytes, /) -> bool:
        self._waiting.append(message)
        self._stirred.set()
        return True

    async def _carry(self) -> None:
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            await asyncio.sleep(_WAY_S)
            while self._waiting:
                await self._peer.received(self._source, self._waiting.popleft())


def _environment(seed: int) -> Environment:
    loop, random = asyncio.get_running_loop(), Random(seed)

    async def run_blocking(call: Callable[[], T], /) -> T:
        await asyncio.sleep(_SYNC_S)
        return call()

    return Environment(
        now_ms=lambda: _START_MS + int(loop.time() * 1000),
        monotonic=loop.time,
        uptime=loop.time,
        entropy=random.randbytes,
        run_blocking=run_blocking,
        close=lambda: None,
    )


async def run(directory: Path, begin: Begin, times: int) -> None:
    """Do this so many times, by `TASKS` tasks at three nodes, each with durability `quorum`."""
    nodes = [
        await open_node(
            directory / str(number), config=Config(advertise=name, join=",".join(_NAMES)), environment=_environment(number)
        )
        for number, name in enumerate(_NAMES)
    ]
    ways = _linked(nodes)
    while any(node.replicator is not None and node.replicator.quorum.is_learner for node in nodes):
        await asyncio.sleep(_FOUNDED_S)
    numbers = iter(range(times))

    async def task(which: int) -> None:
        act = begin(_space(nodes[which % len(nodes)], which), which)
        for number in numbers:
            await act(number)

    await asyncio.gather(*map(task, range(TASKS)))
    for way in ways:
        way.carrying.cancel()
    for node in nodes:
        await node.stop()


def _linked(nodes: list[Node]) -> list[_Way]:
    ways: list[_Way] = []
    for source in nodes:
        for target, address in zip(nodes, _NAMES, strict=True):
            if source is not target:
                assert source.replicator is not None
                assert target.replicator is not None
                target.replicator.admit(source.replicator.identity())
                ways.append(way := _Way(source, target, address))
                source.replicator.linked(target.replicator.identity(), way)
    return ways


def _space(node: Node, seed: int) -> Space:
    environment = _environment(len(_NAMES) + seed)
    session = node.session()
    connection = StoreConnection(session, Config(), "quorum", environment.entropy, uptime=environment.uptime)
    return Store(connection, close=session.close).space("bench")


def _save(space: Space, task: int) -> Act:
    thread = space.thread(f"t{task}")
    return lambda number: thread.save(state(task, number))


def _set(space: Space, task: int) -> Act:
    register = space.register(f"r{task}")
    return lambda number: register.set(state(task, number))


def _add(space: Space, task: int) -> Act:
    counter = space.counter(f"n{task}")
    return lambda _: counter.add(1)


def _append(space: Space, task: int) -> Act:
    journal = space.thread(f"t{task}").journal
    return lambda number: journal.append(state(task, number))


BEGINS: dict[str, Begin] = {"quorum.save": _save, "quorum.set": _set, "quorum.add": _add, "quorum.append": _append}
