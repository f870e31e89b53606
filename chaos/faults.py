"""What is done to a cluster: each fault is one small class.

Laws:
- `strike` returns once the fault is over and its node takes requests again:
  what comes after it may count on every node.
- All chance comes from the `random` that it is given.

A new fault is a class with a `name` and a `strike`, and its line in FAULTS.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import ClassVar, Protocol

import msgspec

from chaos.cluster import Cluster

DOWN_S_MAX = 2.0
"""How long a killed node stays down, at most."""


class Strike(msgspec.Struct, frozen=True):
    """What was done. Times are those of the cluster's clock."""

    fault: str
    node: str
    began_s: float  # From then on its node answered nobody.
    lifted_s: float  # From then on nothing was done to it any more.
    over_s: float  # From then on it took requests again.


class Fault(Protocol):
    name: ClassVar[str]

    async def strike(self, cluster: Cluster, random: Random) -> Strike:
        """
        Raises:
            NodeFailed: a node did not come back.
        """
        ...


class Kill:
    """SIGKILL, and a new start on the same directory and port."""

    name: ClassVar[str] = "kill"

    async def strike(self, cluster: Cluster, random: Random) -> Strike:
        node = random.choice(cluster.up)
        began_s = cluster.now_s()
        await cluster.kill(node)
        await asyncio.sleep(random.uniform(0, DOWN_S_MAX))
        lifted_s = cluster.now_s()
        await cluster.start(node)
        return Strike(self.name, node.name, began_s, lifted_s, cluster.now_s())


FAULTS: dict[str, type[Fault]] = {fault.name: fault for fault in (Kill,)}
