"""Messages of peers are applied in steps, one write each.

A save needs about eight turns of the loop, so a node that catches up would delay each by what it applies in eight turns.

Laws:
- Other tasks get their turns between the steps: longer ones while a request waits for the disk.
- A message is taken once those before it are written; it waits while too many writes wait for the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from msgspec import Raw

from shoal.cluster import messages
from shoal.cluster.messages import Shipment
from shoal.config import Config
from shoal.node.environment import Environment
from shoal.node.peers.operations import vetting
from shoal.node.turns import document_pace, in_turns
from shoal.storage.commit import GroupCommit


class Deliveries:
    """The operations of peers, in steps; `take(peer, shipments)` applies one step's."""

    def __init__(
        self,
        commit: GroupCommit,
        take: Callable[[bytes, Sequence[Shipment]], None],
        *,
        environment: Environment,
        config: Config,
    ) -> None:
        self._commit = commit
        self._take = take
        self._environment = environment
        self._config = config
        self._pace = document_pace(config)
        self._stepping = asyncio.Lock()  # However many peers send long messages, other tasks get a turn after each step.

    async def deliver(self, peer: bytes, operations: Iterable[Shipment | Raw]) -> None:
        """Take the operations of one message.

        Raises:
            ReadOnly, StorageFull: storage failed before, or now.
        """
        shipments = [shipment for shipment in operations if isinstance(shipment, Shipment)]
        step = self._config.peer_step_operations_max
        for some in messages.slices(shipments, step):
            for shipment in some:
                if vetting.is_large(shipment, self._pace):
                    await in_turns(vetting.vet(shipment, self._pace), self._environment.pause)
            while self._commit.written - self._commit.durable > self._config.writes_pending_max // 2:
                await self._commit.wait_durable(self._commit.written)
            if len(shipments) <= step:
                self._take(peer, some)
                continue
            async with self._stepping:
                self._take(peer, some)
                # A request that waits for the disk needs several turns, and the thread that syncs needs them too.
                await (self._environment.pause() if self._commit.is_awaited else asyncio.sleep(0))
