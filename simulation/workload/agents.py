"""The agents of a plan: real clients that carry out its acts, and note all they do and are shown.

Laws:
- Agent i is one session that prefers node i, and goes to the others when that fails it.
- It does one thing at a time with the objects of one name, and many things otherwise:
  an act on a name that it is busy with is skipped.
- What all agents see is one history; it is the same in every run of the plan.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shoal.config import Config
from shoal.protocol.requests import Durability
from shoal.transport.session import RemoteSession
from simulation.judging import packs
from simulation.judging.backups import BackupWatch, ships
from simulation.judging.bounds import keep_watch
from simulation.judging.clocks import ClockWatch
from simulation.judging.history import History
from simulation.judging.ledger import Ledger
from simulation.judging.truncations import TruncationWatch
from simulation.judging.violation import Violation
from simulation.parts.all import FAMILIES, PARTS
from simulation.parts.part import Part, name_of
from simulation.plan import Act, ClockDrift, ClockJump, Leave, Plan, Relist, Replace
from simulation.workload.actor import Actor
from simulation.workload.callers import Callers
from simulation.workload.probing import probes
from simulation.workload.record import Record
from simulation.world.client import Client
from simulation.world.trace import Trace

if TYPE_CHECKING:
    from simulation.world.cluster import SimulatedCluster


class Agents:
    """Made once the cluster's nodes are up; `finish` comes after all acts, and `close` last. `ledger` watches every disk."""

    def __init__(self, cluster: SimulatedCluster, plan: Plan, *, trace: Trace) -> None:
        self.plan = plan
        self.record = Record(trace, asyncio.get_running_loop().time)
        self.ledger = Ledger(self.record.violated)
        self._cluster = cluster
        self._trace = trace
        for host in cluster.hosts.values():
            host.disk.watchers.append(self.ledger.shelf(host.name, host.disk.copy()))
            size = _members_min(plan)
            needed = size // 2 + 1 if _may_forget(plan, host.config) else size
            host.disk.watchers.append(TruncationWatch(host, self.ledger, self.record.violated, needed=needed))
        self._clients = [self._client(number) for number in range(plan.agents)]
        self.parts: dict[str, Part] = {family: part() for family, part in PARTS.items()}
        if packs.tiers(plan):
            packs.watch(cluster, self.record.violated)
        self._actors: dict[tuple[int, str], Actor] = {}
        self._watches = [
            asyncio.create_task(keep_watch(cluster, self.record.violated)),
            asyncio.create_task(cluster.fallen.keep_watch(self.record.violated)),
            asyncio.create_task(ClockWatch(cluster, self.record.violated).keep_watch()),
        ]
        self.backup = BackupWatch(cluster, plan, self.record.violated) if ships(plan) else None
        if self.backup is not None:
            self._watches.append(asyncio.create_task(self.backup.keep_watch()))
        self._callers = Callers(cluster, plan, self.record) if plan.callers else None
        self._probes = [asyncio.create_task(probe.made(self._cluster, self.record)) for probe in probes(plan)]

    def _client(self, number: int) -> Client:
        names = self.plan.names
        first = number % len(names)
        random = self.plan.random_for(f"client/{number}")
        return Client(self._cluster, names[first:] + names[:first], name=f"agent-{number}", random=random)

    @property
    def history(self) -> History:
        return self.record.history

    @property
    def sessions(self) -> dict[str, RemoteSession]:
        """By the agent's name."""
        return {client.name: client.session for client in self._clients}

    @property
    def violations(self) -> list[Violation]:
        """What was seen to be broken as it happened."""
        return self.record.violations

    async def act(self, act: Act) -> None:
        """Carry out one act, unless its agent is busy with the objects of that name, or there is no such agent."""
        if act.agent >= len(self._clients):
            return
        actor = self._actor(act)
        if actor.busy:
            self._trace.note(f"agent-{act.agent}", "is busy with", act.name)
            return
        actor.busy = True
        try:
            await actor.act(act, self.plan.random_for(f"act/{act.agent}/{act.at}/{act.kind}/{act.name}"))
        finally:
            actor.busy = False

    def _actor(self, act: Act) -> Actor:
        family = FAMILIES.get(act.kind)
        name = act.name if family is None else name_of(family, act.name)
        place = act.agent, name
        if place not in self._actors:
            self._actors[place] = Actor(
                self._clients[act.agent],
                name=name,
                durability=act.durability,
                record=self.record,
                ledger=self.ledger,
                quorum=self._needed,
                part=None if family is None else self.parts[family],
            )
        return self._actors[place]

    def _needed(self, durability: Durability) -> int:
        """How many nodes hold what was acknowledged so, by the shortest list of members that a node has."""
        relisted = (len(fault.members) for fault in self.plan.faults if isinstance(fault, Relist))
        size = min(_members_min(self.plan), *relisted, 99)
        return {"memory": 0, "local": 1, "quorum": size // 2 + 1, "all": size}[durability]

    async def finish(self) -> None:
        """Write what waits in mirrors. No act is under way any more."""
        await asyncio.gather(*self._probes)
        if self._callers is not None:
            await self._callers.finish()
        for watch in self._watches:
            watch.cancel()
        for actor in self._actors.values():
            await actor.flush()

    async def close(self) -> None:
        """Read on to the end of what was followed, which all nodes hold by now, and close every session."""
        for actor in self._actors.values():
            await actor.read_on()
        for client in self._clients:
            await client.session.close()


def _members_min(plan: Plan) -> int:
    """The least number of members at any time: operators take one away at a time."""
    return plan.nodes - (plan.nodes > 1 and any(isinstance(fault, Leave | Replace) for fault in plan.faults))


def _may_forget(plan: Plan, config: Config) -> bool:
    """Whether operations may leave a log that not all owners have."""
    # With the last one, nobody doubts a clock by which everything is older than `forget_after_s`.
    if plan.settings.keys() & {"log_bytes_max", "forget_after_s", "clock_skew_max_ms"}:
        return True
    # A majority that would contradict such a clock may be away.
    far_ms = config.forget_after_s * 1000
    return any(isinstance(fault, ClockJump) and fault.by_ms >= far_ms for fault in plan.faults) and not all(
        isinstance(fault, ClockJump | ClockDrift) for fault in plan.faults
    )
