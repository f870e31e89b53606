"""Clients that call one node each, at every instant of its life: while it is empty, joins, was wiped or removed, and returns.

Laws:
- A call is made on the node itself, as by a new client: no session carries a bookmark, none is refused at its hello, and nobody
  leads the client elsewhere. Calls are frequent when a life begins, and go on to its end.
- Each writes to one journal, and reads it. What it is told is part of the history, so what was acknowledged is owed (3).
- A node whose directory began after a quorum had acknowledged something never answers without that (38): it answers with it,
  or with an error that tells a client to wait or to go elsewhere. One whose directory is older may lag.
- It never answers otherwise than with an error of that kind while it says that it is not ready (38).
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from shoal.errors import Retryable, ShoalError
from shoal.node.node import Node
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.values import codec
from simulation.judging.obligations import Losses
from simulation.plan import Plan
from simulation.workload.random_agents import SPACE, content_of
from simulation.workload.record import Record
from simulation.world.client import Client

if TYPE_CHECKING:
    from simulation.world.cluster import SimulatedCluster
    from simulation.world.host import SimulatedNode

JOURNAL = "called"
"""The thread in whose journal they write."""

_PAUSE_S_FIRST, _PAUSE_S_MAX = 0.005, 0.6
_LOOK_S = 0.01  # Between two looks at whether a new life has begun.
_READS, _LOCAL = 0.5, 0.3  # The shares of the calls that read, and that write under `local`.


class Callers:
    """One for each node. `finish` lets each end with the call that it makes."""

    def __init__(self, cluster: SimulatedCluster, plan: Plan, record: Record) -> None:
        self._cluster = cluster
        self._plan = plan
        self._record = record
        self._is_over = False
        self._decided: dict[int, float] = {}  # By write that a quorum acknowledged: when.
        keeps_quorums = Losses(plan).spare("quorum", "", 0.0)
        self._tasks = [asyncio.create_task(self._call(host, judged=keeps_quorums)) for host in cluster.hosts.values()]

    async def finish(self) -> None:
        """Return once no call is under way."""
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def _call(self, host: SimulatedNode, *, judged: bool) -> None:
        random = self._plan.random_for(f"caller/{host.name}")
        client = Client(self._cluster, [host.name], name=f"caller-{host.name}", random=random)
        loop, life, pause_s = asyncio.get_running_loop(), host.life, _PAUSE_S_FIRST
        while not self._is_over:
            if host.life is not life:
                life, pause_s = host.life, _PAUSE_S_FIRST
            if host.up and not host.stopping and not self._cluster.network.is_paused(host.name):
                draw = random.random()
                if draw < _READS:
                    await self._read(client, host, judged=judged)
                else:
                    await self._write(client, host, random, "local" if draw < _READS + _LOCAL else "quorum")
                pause_s = min(_PAUSE_S_MAX, pause_s * 1.3)
            ends_at = loop.time() + pause_s * random.uniform(0.5, 1.5)
            while loop.time() < ends_at and host.life is life and not self._is_over:  # noqa: ASYNC110
                await asyncio.sleep(min(_LOOK_S, ends_at - loop.time()))
        await client.session.close()

    async def _write(self, client: Client, host: SimulatedNode, random: Random, durability: Durability) -> None:
        write = self._record.invoked("append", JOURNAL, durability=durability, who=client.name)
        request = requests.Append(SPACE, JOURNAL, codec.encode(content_of(write.number)))
        key, readiness = client.new_key(), host.node.service.readiness
        serves = readiness.serves

        async def ask(node: Node) -> requests.Appended:
            return await node.session().call(request, key=key, durability=durability)

        try:
            reply = await client.within(host.name, ask)
        except ShoalError as error:
            self._record.failed([write], error, who=client.name, node=host.name)
            self._judge_error(host, error)
            return
        self._record.acknowledged([write], reply, who=client.name, node=host.name)
        if not (serves or readiness.serves):
            self._record.violated("38", f"{host.name} serves nothing, as it says, and acknowledged write {write.number}")
        if durability in ("quorum", "all"):
            self._decided[write.number] = asyncio.get_running_loop().time()

    async def _read(self, client: Client, host: SimulatedNode, *, judged: bool) -> None:
        asked_s, begun_s = asyncio.get_running_loop().time(), host.directories[host.peer.identity().node]
        is_copy = bool(host.peer.identity().originals)  # It has what its original had, and shows that.
        try:
            shown = await client.within(host.name, _shown)
        except ShoalError as error:
            self._judge_error(host, error)
            if error.code != "not-found":
                return
            shown = set()
        missing = [number for number, at_s in self._decided.items() if at_s < min(begun_s, asked_s) and number not in shown]
        if judged and missing and not is_copy:
            self._record.violated(
                "38", f"the directory of {host.name} began after writes {missing[:5]} were acknowledged, and it answers without"
            )

    def _judge_error(self, host: SimulatedNode, error: ShoalError) -> None:
        """A client must know whether it helps to wait, or to ask another node."""
        if not host.up or host.node.service.readiness.serves or isinstance(error, Retryable):
            return
        self._record.violated("38", f"{host.name} serves nothing, and answers with {error.code}: {error.message}")


async def _shown(node: Node) -> set[int]:
    """The numbers of all writes that a node shows."""
    session, shown, after = node.session(), set[int](), b""
    while True:
        page = await session.call(requests.ReadJournal(SPACE, JOURNAL, after=after))
        shown.update(codec.decode(event.event)["number"] for event in page.events)
        if not page.more:
            return shown
        after = page.cursor
