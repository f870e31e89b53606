"""Asks a node that nothing is wrong with, while the network is cut: it must answer, whoever it cannot reach.

Law: a probe is made only where the plan leaves the node no excuse. It is up, well,
and its clients reach it, from a while before until a while after; whatever it then
answers to a `local` write and to a read, but the answer, breaks invariant 9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from shoal.errors import ShoalError
from shoal.protocol import requests
from simulation.judging.clocks import is_right
from simulation.judging.obligations import FAR_MS, Losses
from simulation.plan import (
    ClockDrift,
    ClockJump,
    CrashAt,
    Cut,
    Fault,
    Leave,
    Plan,
    Replace,
    Restore,
    Ship,
    SlowDisk,
    SpoilBucket,
    Weather,
)
from simulation.workload.random_agents import SPACE
from simulation.workload.record import Record
from simulation.world.client import Client
from simulation.world.network import CLIENT

if TYPE_CHECKING:
    from simulation.world.cluster import SimulatedCluster
    from simulation.world.host import SimulatedNode

PROBED = "probe"
"""The counter that probes add to."""

_BEFORE_S, _WITHIN_S = 0.5, 4.0
_AGAIN_S = 0.5
_PURSUED_S = 5.0  # As a pursuit takes with the settings that are drawn with it.
_BACK_S = 2.0  # A node that was down is itself again within this time of its start.


class Probe(NamedTuple):
    """Of one node at one moment."""

    at: float
    node: str
    plan: Plan

    async def made(self, cluster: SimulatedCluster, record: Record) -> None:
        """Wait for its moment, ask, and note what breaks the law."""
        await asyncio.sleep(self.at - asyncio.get_running_loop().time())
        random = self.plan.random_for(f"probe/{self.node}/{self.at}")
        await ask(Client(cluster, [self.node], name=f"probe-{self.node}", random=random), record, self.plan)


class Pursuit(NamedTuple):
    """A node to which one peer's large messages do not come must fetch elsewhere what a third node has, in time.

    Made where nothing else is wrong with any node.
    """

    at: float
    node: str
    third: str

    async def made(self, cluster: SimulatedCluster, record: Record) -> None:
        """Wait for its moment, see what the third node holds, and that the other comes to hold it."""
        loop, config = asyncio.get_running_loop(), cluster.config
        await asyncio.sleep(self.at - loop.time())
        wanted = cluster.hosts[self.third].held()
        within_s = 2 * config.quorum_timeout_s + 6 * config.sync_interval_s + 1.0
        await asyncio.sleep(within_s)
        held = cluster.hosts[self.node].held()
        missing = sum(max(0, sequence - held.get(place, 0)) for place, sequence in wanted.items())
        if missing:
            record.violated("9", f"{self.node} lacks {missing} operations that {self.third} has held for {within_s:g} s")


def probes(plan: Plan) -> Iterator[Probe | Pursuit]:
    """One in the middle of each cut, for each node that it cuts off from others and that is well; and all pursuits.

    A probe draws its idempotency key from its node and its moment: cuts of the same moment make one.
    """
    yield from _pursuits(plan)
    moments = dict.fromkeys(
        (cut.at + min(cut.for_s, plan.duration_s - cut.at) / 2, node)
        for cut in plan.faults
        if isinstance(cut, Cut)
        for node in plan.names
        if node in cut.sources + cut.targets
    )
    yield from (Probe(at, node, plan) for at, node in moments if _is_well(plan, node, at))


async def ask(
    client: Client, record: Record, plan: Plan, *, durability: requests.Durability = "local", patience_s: float = 0.0
) -> None:
    """Let the client write and read; that it cannot, for so long, breaks invariant 9. Closes its session.

    Where a clock may be past what a node remembers, a key may be too old. A node whose clock is off, or most of whose
    peers' are, may refuse to write; it must read all the same. One that lost its disk, or that never met all others, owns
    nothing while a cut keeps it from being filled; once all is healed, which is when it is asked with patience, it is.
    """
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + patience_s
    try:
        while (error := await _asked(client, record, durability)) is not None and loop.time() < ends_at:  # noqa: ASYNC110
            await asyncio.sleep(_AGAIN_S)
    finally:
        await client.session.close()
    is_unproven = any(name in client.nodes and not _serves(host) for name, host in client.cluster.hosts.items())
    if error is None or (error.code == "clock-wrong" and _may_be_wrong(client.cluster, client.at)):
        return
    if error.code == "catching-up" and not patience_s and is_unproven:
        return
    if not (error.code == "key-expired" and Losses(plan).of_windows):
        record.violated("9", f"{client.name} is well, and answers with {error.code}: {error.message}")


async def _asked(client: Client, record: Record, durability: requests.Durability) -> ShoalError | None:
    counter, by = record.amounts.next(PROBED)
    write = record.invoked("add", counter, durability=durability, by=by, who=client.name)
    try:
        added = await client.session.call(requests.Add(SPACE, counter, by), durability=durability)
        record.acknowledged([write], added, who=client.name, node=client.at)
        refusal = None
    except ShoalError as error:
        record.failed([write], error, who=client.name, node=client.at)
        if error.code != "clock-wrong":
            return error
        refusal = error
    try:
        await client.session.call(requests.ReadCounter(SPACE, counter))
    except ShoalError as error:
        return error
    return refusal


def _serves(host: SimulatedNode) -> bool:
    return host.node.service.readiness.serves


def _may_be_wrong(cluster: SimulatedCluster, name: str) -> bool:
    """Whether a node's clock is off, or those of so many others that they are a majority."""
    off = [host.name for host in cluster.hosts.values() if not is_right(host)]
    return name in off or len(off) > len(cluster.hosts) // 2


def _pursuits(plan: Plan) -> Iterator[Pursuit]:
    for hole in plan.faults:
        if not isinstance(hole, Weather) or not hole.over_bytes or len(hole.targets) != 1:
            continue
        first, last = hole.at + _BACK_S, min(hole.at + hole.for_s, plan.duration_s)
        others = [fault for fault in plan.faults if fault is not hole and not isinstance(fault, ClockDrift | ClockJump)]
        third = next((name for name in plan.names if name not in hole.sources + hole.targets), None)
        if third is None or any(
            isinstance(each, CrashAt) or (first - 2 * _BACK_S < each.at + _ended_s(each) and each.at < last) for each in others
        ):
            continue
        for part in (0.25, 0.5, 0.75):
            yield Pursuit(round(first + part * (last - first - _PURSUED_S), 3), hole.targets[0], third)


def _is_well(plan: Plan, node: str, at: float) -> bool:
    return not any(_troubles(fault, node) and _lasts(fault, at) for fault in plan.faults)


def _troubles(fault: Fault, node: str) -> bool:
    match fault:
        case Cut():
            return CLIENT in fault.sources + fault.targets
        case Weather():
            return fault.delay_s > 0
        case ClockJump():
            return fault.node == node and abs(fault.by_ms) > FAR_MS
        case ClockDrift():
            return False
        case Replace():
            return node in (fault.node, fault.by)
        case Ship() | SpoilBucket():
            return False
        case _:
            return fault.node == node


def _lasts(fault: Fault, at: float) -> bool:
    """Whether it is felt at some time of a probe that is made `at`."""
    if isinstance(fault, CrashAt | Restore | ClockJump | Leave | Replace):
        # Whenever it comes to it; until a copy has caught up, which takes others; until the clock is set right; until the
        # other nodes have let a member go, and taken it back.
        return fault.at < at + _WITHIN_S
    lasts_s = fault.for_s if isinstance(fault, SlowDisk | Weather | Cut) else _ended_s(fault)
    return fault.at - _WITHIN_S < at < fault.at + lasts_s + _BEFORE_S + _BACK_S


def _ended_s(fault: Fault) -> float:
    for_s: float = getattr(fault, "for_s", 0.0) or getattr(fault, "down_s", 0.0)
    return for_s
