"""What is done to a cluster: each fault is one small class. `chaos.composed` makes sequences of them.

Laws:
- `strike` returns once the fault is over and every node takes requests and is a member
  again: what comes after it may count on every node.
- A node that has lost its disk, or was set back, counts as lost until it is a member:
  no fault takes another disk before that, so that a minority is lost at any time.
- All chance comes from the stage's `random`.

A new fault is a class with a `name` and a `strike`, and its place in `chaos.composed.FAULTS`.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Protocol

import msgspec

from chaos.cluster import Cluster, Node
from chaos.network import Cut, Route
from chaos.workers import Desk

DOWN_S_MAX = 2.0
"""How long a killed node stays down, at most."""

PAUSE_S_MAX = 9.0
"""How long a node is stopped, at most: longer than its peers wait for a sign of life."""

CUT_S_MAX = 6.0
"""How long a cut lasts, at most."""

CLONE_S_MAX = 15.0
"""For a clone to be refused."""

_FLAPS_MAX = 5
_LOAD_S_MAX = 4.0  # Under which a copy grows old, before it is put back.


class Strike(msgspec.Struct, frozen=True):
    """What was done. Times are those of the cluster's clock."""

    fault: str
    node: str
    began_s: float  # From then on its node answered nobody.
    lifted_s: float  # From then on nothing was done to it any more.
    over_s: float  # From then on it took requests again.
    trouble: str = ""  # A promise that the fault itself saw broken.


@dataclass(slots=True)
class Stage:
    """What faults act on, and by what chance."""

    cluster: Cluster
    random: Random
    desk: Desk
    learners: int = 0  # Nodes that lost their disks, and were admitted.

    async def gap(self, s_max: float) -> None:
        await asyncio.sleep(self.random.uniform(0, s_max))

    def order(self) -> list[Node]:
        """All nodes, in an order that is drawn."""
        return self.random.sample(self.cluster.nodes, len(self.cluster.nodes))

    def how(self) -> Cut:
        return self.random.choice(("refused", "silent"))

    async def learn(self, node: Node) -> None:
        """Wait until a node that lost its disk is a member again."""
        await self.cluster.admitted(node)
        self.learners += 1


class Fault(Protocol):
    name: ClassVar[str]
    loses_disks: ClassVar[bool]

    async def strike(self, stage: Stage) -> Strike:
        """
        Raises:
            NodeFailed: a node did not come back.
        """
        ...


class Kill:
    """SIGKILL, and a new start on the same directory and port."""

    name: ClassVar[str] = "kill"
    loses_disks: ClassVar[bool] = False

    async def strike(self, stage: Stage) -> Strike:
        cluster, node = stage.cluster, stage.order()[0]
        began_s = cluster.now_s()
        await cluster.kill(node)
        await stage.gap(DOWN_S_MAX)
        lifted_s = cluster.now_s()
        await cluster.start(node)
        return Strike(self.name, node.name, began_s, lifted_s, cluster.now_s())


class Pause:
    """SIGSTOP, and SIGCONT: it holds its sockets, and answers nobody."""

    name: ClassVar[str] = "pause"
    loses_disks: ClassVar[bool] = False

    async def strike(self, stage: Stage) -> Strike:
        cluster, node = stage.cluster, stage.order()[0]
        began_s = cluster.now_s()
        node.signal(signal.SIGSTOP)
        try:
            await stage.gap(PAUSE_S_MAX)
        finally:
            node.signal(signal.SIGCONT)
        lifted_s = cluster.now_s()
        await cluster.admitted(node)
        return Strike(self.name, node.name, began_s, lifted_s, cluster.now_s())


class CutOff:
    """Some directions between nodes carry nothing: one node's all, any of them, or some that come and go."""

    name: ClassVar[str] = "cut"
    loses_disks: ClassVar[bool] = False

    async def strike(self, stage: Stage) -> Strike:
        cluster, random = stage.cluster, stage.random
        node = stage.order()[0]
        began_s = cluster.now_s()
        for _ in range(random.choice((1, 1, _FLAPS_MAX))):
            cluster.network.cut(self._routes(stage, node), stage.how())
            await stage.gap(CUT_S_MAX / 2)
            cluster.network.heal()
            await stage.gap(0.5)
        return Strike(self.name, node.name, began_s, cluster.now_s(), cluster.now_s())

    def _routes(self, stage: Stage, node: Node) -> list[Route]:
        routes = stage.cluster.network.routes
        if stage.random.random() < 0.5:
            return [route for route in routes if node.name in route]
        return stage.random.sample(routes, stage.random.randint(1, len(routes)))


async def _replaced(name: str, stage: Stage, node: Node, replace: Callable[[], None]) -> Strike:
    """The node is killed, its directory replaced, and it starts, and learns."""
    cluster = stage.cluster
    began_s = cluster.now_s()
    await cluster.kill(node)
    replace()
    await stage.gap(DOWN_S_MAX)
    lifted_s = cluster.now_s()
    await cluster.launch(node)
    await stage.learn(node)
    return Strike(name, node.name, began_s, lifted_s, cluster.now_s())


class Wipe:
    """The node is killed and its directory removed; it starts with none, and learns."""

    name: ClassVar[str] = "wipe"
    loses_disks: ClassVar[bool] = True

    async def strike(self, stage: Stage) -> Strike:
        node = stage.order()[0]
        return await _replaced(self.name, stage, node, lambda: stage.cluster.wipe(node))


class StaleCopy:
    """A copy of the directory, made while the node is down, is put back after more was written."""

    name: ClassVar[str] = "stale-copy"
    loses_disks: ClassVar[bool] = True

    async def strike(self, stage: Stage) -> Strike:
        cluster, node = stage.cluster, stage.order()[0]
        await cluster.kill(node)
        copy = cluster.copy(node)
        await cluster.start(node)
        await stage.gap(_LOAD_S_MAX)
        return await _replaced(self.name, stage, node, lambda: cluster.put_back(node, copy))


class Clone:
    """A copy of the directory is started beside the original, under its name: it must be refused, and say why."""

    name: ClassVar[str] = "clone"
    loses_disks: ClassVar[bool] = False

    async def strike(self, stage: Stage) -> Strike:
        cluster, node = stage.cluster, stage.order()[0]
        began_s = cluster.now_s()
        await cluster.kill(node)
        copy = cluster.copy(node)
        await cluster.start(node)
        await cluster.admitted(node)
        async with cluster.cloned(node, copy) as clone:
            trouble = await self._refusal(cluster, clone)
        return Strike(self.name, node.name, began_s, cluster.now_s(), cluster.now_s(), trouble=trouble)

    async def _refusal(self, cluster: Cluster, clone: Node) -> str:
        """Nothing, if the clone became no member and said why."""
        ends_s = cluster.now_s() + CLONE_S_MAX
        told = False
        while cluster.now_s() < ends_s and not told:
            if await cluster.is_member(clone):
                return f"{clone.name}, on a copy of the directory, was admitted beside the original"
            told = "clone" in clone.log.read_text(errors="replace")
            await asyncio.sleep(0.1)
        return "" if told else f"{clone.name} was not told that it is a clone"
