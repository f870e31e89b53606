"""Looks now and then whether every node keeps within its bounds: invariant 11."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from shoal.cluster.delivery import OVERHEAD_BYTES
from simulation.judging.ledger import Violated

if TYPE_CHECKING:
    from simulation.world.cluster import SimulatedCluster
    from simulation.world.host import SimulatedNode

LOOK_S = 0.1  # In virtual time.


async def keep_watch(cluster: SimulatedCluster, violated: Violated) -> None:
    """Say of every node what is past its bound, until cancelled."""
    while True:
        for host in cluster.hosts.values():
            for what in exceeded(host) if host.up else ():
                violated("11", f"{host.name} {what}")
        await asyncio.sleep(LOOK_S)


def exceeded(host: SimulatedNode) -> Iterator[str]:
    """What a node that is up has more of than it may."""
    config = host.config
    if host.peer.early * OVERHEAD_BYTES > config.early_bytes_max:  # Counted here: a node's own sum may be wrong.
        yield f"keeps more than {config.early_bytes_max} bytes of operations that wait for others"
    if host.node.writes_pending > config.writes_pending_max:
        yield f"has more than {config.writes_pending_max} writes that wait for the disk"
