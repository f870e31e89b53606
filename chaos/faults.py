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
import shutil
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Literal

import msgspec

from chaos.cluster import Cluster, Node
from chaos.network import Cut, Route
from chaos.processes import ProcessNode
from chaos.workers import Desk

Backend = Literal["process", "compose"]
EITHER: frozenset[Backend] = frozenset(("process", "compose"))

DOWN_S_MAX = 2.0
"""How long a killed node stays down, at most."""

PAUSE_S_MAX = 9.0
"""How long a node is stopped, at most: longer than its peers wait for a sign of life."""

CUT_S_MAX = 6.0
"""How long a cut lasts, at most."""

CLONE_S_MAX = 15.0
"""For a clone to be refused."""

FULL_S_MAX = 8.0
"""How long a disk stays full, at most, and for its node to notice."""

JUMPS_S = (0.5, 5.0, 60.0, 3600.0)
"""By how much a clock is set ahead, or back: within what nodes tolerate, and beyond."""

CLOCK_S_MAX = 8.0
"""How long a clock is wrong, at most."""

OF_LOST_DISKS = frozenset(("catching-up", "bookmark-lost"))
"""What a client may be told where disks are lost: a node that learns refuses, and what only one had may be gone."""

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
    peer: str = ""  # Whom its node did not hear, where that is one.


@dataclass(slots=True)
class Stage:
    """What faults act on, and by what chance."""

    cluster: Cluster
    random: Random
    desk: Desk
    faults: frozenset[str] = frozenset()  # Those of the trial, by name.
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


class Fault(ABC):
    """What it says of itself is what is usual."""

    name: ClassVar[str]
    loses_disks: ClassVar[bool] = False
    told: ClassVar[frozenset[str]] = frozenset()  # The codes of errors that it explains, besides those that any fault does.
    backends: ClassVar[frozenset[Backend]] = frozenset(("process",))

    @abstractmethod
    async def strike(self, stage: Stage) -> Strike:
        """
        Raises:
            NodeFailed: a node did not come back.
        """


def process(node: Node) -> ProcessNode:
    """A node, for faults that are for processes alone."""
    assert isinstance(node, ProcessNode)
    return node


class Kill(Fault):
    """SIGKILL, and a new start on the same directory and port."""

    name = "kill"
    backends = EITHER

    async def strike(self, stage: Stage) -> Strike:
        cluster, node = stage.cluster, stage.order()[0]
        began_s = cluster.now_s()
        await node.kill()
        await stage.gap(DOWN_S_MAX)
        lifted_s = cluster.now_s()
        await cluster.start(node)
        return Strike(self.name, node.name, began_s, lifted_s, cluster.now_s())


class Pause(Fault):
    """SIGSTOP, and SIGCONT: it holds its sockets, and answers nobody."""

    name = "pause"
    backends = EITHER

    async def strike(self, stage: Stage) -> Strike:
        cluster, node = stage.cluster, stage.order()[0]
        began_s = cluster.now_s()
        await node.pause()
        try:
            await stage.gap(PAUSE_S_MAX)
        finally:
            await node.resume()
        lifted_s = cluster.now_s()
        await cluster.admitted(node)
        return Strike(self.name, node.name, began_s, lifted_s, cluster.now_s())


class CutOff(Fault):
    """Some directions between nodes carry nothing: one node's all, any of them, or some that come and go."""

    name = "cut"
    backends = EITHER

    async def strike(self, stage: Stage) -> Strike:
        cluster, random = stage.cluster, stage.random
        node = stage.order()[0]
        began_s = cluster.now_s()
        for _ in range(random.choice((1, 1, _FLAPS_MAX))):
            await self._cut(stage, node)
            await stage.gap(CUT_S_MAX / 2)
            await cluster.network.heal()
            await stage.gap(0.5)
        lifted_s = cluster.now_s()
        await cluster.admitted(node)  # Where clients are cut off with it, they are not back at once.
        return Strike(self.name, node.name, began_s, lifted_s, cluster.now_s())

    async def _cut(self, stage: Stage, node: Node) -> None:
        network = stage.cluster.network
        if stage.random.random() < 0.5:
            await network.isolate(node.name, stage.how())
        else:
            await network.cut(stage.random.sample(network.routes, stage.random.randint(1, len(network.routes))), stage.how())


class OneWay(Fault):
    """A node does not hear another, or any other, and is heard by all."""

    name = "oneway"
    backends = EITHER

    async def strike(self, stage: Stage) -> Strike:
        cluster = stage.cluster
        deaf, *others = stage.order()
        unheard = others if stage.random.random() < 0.5 else others[:1]
        began_s = cluster.now_s()
        for other in unheard:
            await cluster.network.deafen(Route(other.name, deaf.name))
        await stage.gap(CUT_S_MAX)
        lifted_s = cluster.now_s()
        await cluster.network.heal()
        await cluster.admitted(deaf)
        peer = unheard[0].name if len(unheard) == 1 else ""
        return Strike(self.name, deaf.name, began_s, lifted_s, cluster.now_s(), peer=peer)


class Full(Fault):
    """A disk has no room left, under load; maybe its node is killed and starts on it. Once there is room, it is restarted."""

    name = "full"
    backends = EITHER
    told = frozenset(("read-only", "storage-full"))

    async def strike(self, stage: Stage) -> Strike:
        cluster, node = stage.cluster, stage.order()[0]
        began_s = cluster.now_s()
        await node.fill()
        try:
            await stage.gap(FULL_S_MAX)
            if stage.random.random() < 0.5:
                await node.kill()
                await cluster.launch(node)
                await stage.gap(FULL_S_MAX / 2)
        finally:
            await node.drain()
        await cluster.stop(node)  # What its storage refused once is refused until it is opened again.
        lifted_s = cluster.now_s()
        await cluster.start(node)
        await cluster.admitted(node)
        return Strike(self.name, node.name, began_s, lifted_s, cluster.now_s())


class Clock(Fault):
    """A wall clock is set, ahead or back, and put right after a while."""

    name = "clock"
    told = frozenset(("read-only", "clock-wrong"))

    async def strike(self, stage: Stage) -> Strike:
        cluster, node = stage.cluster, process(stage.order()[0])
        began_s = cluster.now_s()
        for _ in range(stage.random.choice((1, 1, 3))):
            await node.set_clock(stage.random.choice((-1, 1)) * stage.random.choice(JUMPS_S))
            await stage.gap(CLOCK_S_MAX / 2)
        lifted_s = cluster.now_s()
        await node.set_clock(0.0)
        await cluster.admitted(node)
        return Strike(self.name, node.name, began_s, lifted_s, cluster.now_s())


async def _replaced(name: str, stage: Stage, node: Node, replace: Callable[[], Awaitable[None]]) -> Strike:
    """The node is killed, its directory replaced, and it starts, and learns."""
    cluster = stage.cluster
    began_s = cluster.now_s()
    await node.kill()
    await replace()
    await stage.gap(DOWN_S_MAX)
    lifted_s = cluster.now_s()
    await cluster.launch(node)
    await stage.learn(node)
    return Strike(name, node.name, began_s, lifted_s, cluster.now_s())


class Wipe(Fault):
    """The node is killed and its disk taken away; it starts with an empty one, and learns."""

    name = "wipe"
    backends = EITHER
    loses_disks = True
    told = OF_LOST_DISKS

    async def strike(self, stage: Stage) -> Strike:
        node = stage.order()[0]
        return await _replaced(self.name, stage, node, node.wipe)


class StaleCopy(Fault):
    """A copy of the directory, made while the node is down, is put back after more was written."""

    name = "stale-copy"
    loses_disks = True
    told = OF_LOST_DISKS

    async def strike(self, stage: Stage) -> Strike:
        cluster, node = stage.cluster, process(stage.order()[0])
        await node.kill()
        copy = node.copy()
        await cluster.start(node)
        await stage.gap(_LOAD_S_MAX)

        async def put_back() -> None:
            node.put_back(copy)

        return await _replaced(self.name, stage, node, put_back)


class Clone(Fault):
    """A copy of the directory is started beside the original, under its name: it must be refused, and say why."""

    name = "clone"

    async def strike(self, stage: Stage) -> Strike:
        cluster, node = stage.cluster, process(stage.order()[0])
        began_s = cluster.now_s()
        await node.kill()
        copy = node.copy()
        await cluster.start(node)
        await cluster.admitted(node)
        clone = node.clone(copy)
        try:
            await cluster.launch(clone)
            trouble = await self._refusal(cluster, clone)
        finally:
            await clone.kill()
            shutil.rmtree(copy)
        return Strike(self.name, node.name, began_s, cluster.now_s(), cluster.now_s(), trouble=trouble)

    async def _refusal(self, cluster: Cluster, clone: ProcessNode) -> str:
        """Nothing, if the clone became no member and said why."""
        ends_s = cluster.now_s() + CLONE_S_MAX
        told = False
        while cluster.now_s() < ends_s and not told:
            if await cluster.is_member(clone):
                return f"{clone.name}, on a copy of the directory, was admitted beside the original"
            told = "clone" in clone.log.read_text(errors="replace")
            await asyncio.sleep(0.1)
        return "" if told else f"{clone.name} was not told that it is a clone"
