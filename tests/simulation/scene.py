"""Stories of a simulated cluster: a cluster, its clients, and a check that no bug shows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import Add, CounterValue, ReadCounter
from shoal.testing.machines import run
from shoal.transport.session import RemoteSession, SessionContext
from simulation.plan import Fault, Plan
from simulation.world.cluster import SimulatedCluster
from simulation.world.environment import START_MS
from simulation.world.trace import Trace

ADD = Add(space="s", counter="c", amount=1)
READ = ReadCounter(space="s", counter="c")


class Scene:
    """A cluster, and clients of it."""

    def __init__(self, cluster: SimulatedCluster, plan: Plan) -> None:
        self.cluster = cluster
        self.loop = asyncio.get_running_loop()
        self._plan = plan
        self._sessions: list[RemoteSession] = []

    def client(self, *nodes: str, bookmark: Bookmark | None = None) -> RemoteSession:
        """One that prefers these nodes, in this order; with none, all of them."""
        session = RemoteSession(
            ",".join(self.cluster.urls[node] for node in nodes or self.cluster.urls),
            config=self.cluster.config,
            context=SessionContext(
                lambda: START_MS + int(self.loop.time() * 1000),
                self._plan.random_for(f"client {len(self._sessions)}").randbytes,
                dial=self.cluster.dial,
            ),
            bookmark=bookmark,
        )
        self._sessions.append(session)
        return session

    async def count(self, node: str) -> int:
        """What a client that has seen nothing is shown at a node."""
        reply = await self.client(node).call(READ)
        assert isinstance(reply, CounterValue)
        return reply.value

    def begin(self, fault: Fault) -> asyncio.Task[None]:
        return asyncio.create_task(self.cluster.carry_out(fault))

    async def end(self) -> None:
        for session in self._sessions:
            await session.close()


def on(story: Callable[[Scene], Awaitable[None]], plan: Plan | None = None) -> str:
    """Tell a story, in which no bug may show; returns the trace's hash."""
    plan = plan or Plan(seed=1)

    async def main() -> str:
        trace = Trace(asyncio.get_running_loop().time)
        async with SimulatedCluster(plan, trace=trace) as cluster:
            scene = Scene(cluster, plan)
            await story(scene)
            await scene.end()
        await asyncio.sleep(0)
        assert cluster.problems == []
        assert not any(host.up for host in cluster.hosts.values())
        return trace.digest()

    return run(main())
