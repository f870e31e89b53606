"""Machines that run a crew in one process, on simulated nodes; each can be killed, and stand still."""

from __future__ import annotations

import asyncio
import dataclasses
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import shoal
from shoal.client.connection import StoreConnection
from shoal.client.store import Store
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import Push, R, Request, Subscription
from shoal.protocol.session import Session
from shoal.testing.machines import run
from simulation.world.fleet import Fleet

TTL_S = 3.0
PACE: dict[str, int | float] = {
    "quorum_timeout_s": 1.0,
    "quorum_register_retry_s": 0.05,
    "tick_s": 0.1,
    "sync_interval_s": 0.2,
}
"""Not as fast as a fleet's nodes usually are: here minutes pass."""
SPACE = "s"


class Mortal:
    """A session of a process: no request leaves it, and no answer arrives, while the process stands still or is dead."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._counted: list[tuple[type[Any], str, list[Any]]] = []
        self.awake = asyncio.Event()
        self.awake.set()

    @property
    def bookmark(self) -> Bookmark:
        return self._session.bookmark

    @property
    def connections(self) -> int:
        return self._session.connections

    def counting(self, kind: type[Any], thread: str) -> list[Any]:
        """A list to which all such requests of a thread are added from now on."""
        found: list[Any] = []
        self._counted.append((kind, thread, found))
        return found

    async def call(self, request: Request[R], /, **options: Any) -> R:
        await self.awake.wait()
        for kind, thread, found in self._counted:
            if isinstance(request, kind) and request.thread == thread:
                found.append(request)
        try:
            return await self._session.call(request, **options)
        finally:
            await self.awake.wait()

    @asynccontextmanager
    async def subscribe(self, subscription: Subscription, /) -> AsyncIterator[AsyncIterator[Push]]:
        async with self._session.subscribe(subscription) as pushes:
            yield self._pushed(pushes)

    async def _pushed(self, pushes: AsyncIterator[Push]) -> AsyncIterator[Push]:
        async for push in pushes:
            await self.awake.wait()
            yield push

    async def close(self) -> None:
        await self._session.close()


class Saved(NamedTuple):
    """A save that was acknowledged to an agent."""

    agent: str
    machine: str
    fence: int
    n: int
    at_s: float


class Process:
    """A process with a store of its own, which runs the crew as a machine."""

    def __init__(self, nodes: Fleet, node: str, name: str) -> None:
        store = nodes[node].store()
        self.session = Mortal(store.connection.session)
        fields = {each.name: getattr(store.connection, each.name) for each in dataclasses.fields(store.connection) if each.init}
        fresh = {name: fields[name] for name in ("config", "durability", "entropy", "uptime")}
        self.store = Store(StoreConnection(session=self.session, **fresh), close=self.session.close)
        self.name = name
        self.node = node
        self.crew = shoal.Crew(self.store, SPACE)
        self.ended = 0  # How often its end was asked for.
        self.task: asyncio.Task[None] | None = None

    def start(self, **options: Any) -> Process:
        options = {"name": self.name, "signals": False, "grace_s": 5.0, "end": self._end, **options}
        self.task = asyncio.get_running_loop().create_task(self.crew.run(**options))
        return self

    def _end(self) -> None:
        self.ended += 1
        self.kill()

    def kill(self) -> None:
        """It does nothing any more. Its tasks are there still, and reach nobody."""
        self.session.awake.clear()

    stand_still = kill

    def go_on(self) -> None:
        self.session.awake.set()

    @property
    def is_awake(self) -> bool:
        return self.session.awake.is_set()


class Ground:
    """Nodes, processes, and all that agents have saved."""

    def __init__(self, nodes: Fleet) -> None:
        self.nodes = nodes
        self.saved: list[Saved] = []
        self.processes: dict[str, Process] = {}

    def process(
        self, name: str, *, count: int = 6, node: str = "", goal: int = 10**9, waits_s: float = 0.0, **options: Any
    ) -> Process:
        """A process whose agents `w-1` … save numbers, one after another, up to `goal`, and wait so long before each."""
        process = self.processes[name] = Process(self.nodes, node or "abc"[len(self.processes) % 3], name)

        @process.crew.agent("w", count=count, ttl=TTL_S, **options)
        async def work(ctx: shoal.CrewContext) -> None:
            n = ctx.state.get("n", 0)
            while n < goal:
                await asyncio.sleep(0.4)
                if waits_s:
                    async with ctx.waiting():
                        await asyncio.sleep(waits_s)
                n += 1
                await ctx.thread.save({"n": n})
                assert process.is_awake
                self.saved.append(Saved(ctx.name, ctx.machine, ctx.lease.fence, n, now()))

        return process

    async def until(self, holds: Callable[[], bool], seconds: float = 60.0) -> float:
        """Return how long it took."""
        began_s = now()
        async with asyncio.timeout(seconds):
            while not holds():
                await asyncio.sleep(0.02)
        return now() - began_s

    async def status(self) -> shoal.CrewStatus:
        return await shoal.Crew(self.nodes["b" if "b" in self.nodes.members else "a"].store(), SPACE).status()

    def agents_of(self, machine: str, since_s: float) -> set[str]:
        """The agents that have saved on a machine since then."""
        return {each.agent for each in self._since(since_s) if each.machine == machine}

    def at_work(self, since_s: float) -> set[str]:
        return {each.agent for each in self._since(since_s)}

    def _since(self, since_s: float) -> list[Saved]:
        return self.saved[bisect_left(self.saved, since_s, key=lambda each: each.at_s) :]

    def spread(self, since_s: float) -> dict[str, int]:
        return {name: len(agents) for name in self.processes if (agents := self.agents_of(name, since_s))}

    async def even(self) -> None:
        """Return once all machines that are there have equally many agents, and each agent is at work."""
        await self.until(lambda: set(self.spread(now() - 1.0).values()) == {len(self.at_work(0.0)) // len(self.processes)})

    def check(self) -> None:
        """Of each agent each number was saved once, in order, by holders in order."""
        for agent in {each.agent for each in self.saved}:
            mine = [each for each in self.saved if each.agent == agent]
            assert [each.n for each in mine] == sorted({each.n for each in mine}), agent
            assert [each.fence for each in mine] == sorted(each.fence for each in mine), agent


def now() -> float:
    return asyncio.get_running_loop().time()


def on_ground(work: Callable[[Ground], Awaitable[None]], **settings: Any) -> None:
    """Run `work` on three nodes, and check what agents have saved."""

    async def main() -> None:
        settings.setdefault("crew_balance_s", 5.0)
        async with Fleet("abc", **(PACE | settings)) as nodes:
            ground = Ground(nodes)
            try:
                await work(ground)
                ground.check()
            finally:
                for process in ground.processes.values():
                    process.go_on()
                    if process.task is not None:
                        process.task.cancel()
                tasks = [process.task for process in ground.processes.values() if process.task is not None]
                with suppress(TimeoutError):
                    async with asyncio.timeout(60):
                        await asyncio.gather(*tasks, return_exceptions=True)

    run(main())
