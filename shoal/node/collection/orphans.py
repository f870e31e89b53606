"""Retires the origins of directories that were removed from the cluster: drained, forgotten or replaced.

Laws:
- The record of the members fences a removed directory, and copies of it, by id: no member takes an operation from it after
  it has written down that record. So what the members hold of its origins is all that they will ever hold.
- One node retires in an epoch: the member with the least address. It does so only while no change of members is under way and
  every owner is linked, counts, and has said in this very epoch what it holds exactly. Then no owner can hold
  more of an origin than was said: an operation that only a member that is cut off has is waited for.
- An origin is retired in the two steps of `shoal.cluster.stability`. So what one heir has retired, the next one knows.
- Nobody folds the adds or takes the rights to budgets of such an origin here: its accounts stay as they are.
- While there is nothing to retire, there is no task and no timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shoal.config import Config
from shoal.crdt.dot import Origin, belongs
from shoal.errors import ShoalError
from shoal.node.collection.ripening import Ripening
from shoal.node.environment import Environment
from shoal.node.partitions import Partition, Partitions
from shoal.node.replicas import Estate, Replicas
from shoal.storage.commit import GroupCommit

_AT_ONCE = 256  # Origins that one operation retires.


class Orphans:
    """`retire` issues the operation that retires origins in a partition."""

    def __init__(
        self,
        commit: GroupCommit,
        *,
        partitions: Partitions,
        retire: Callable[[int, list[Origin]], None],
        config: Config,
        environment: Environment,
    ) -> None:
        self._partitions = partitions
        self._retire = retire
        self._interval_s = config.sync_interval_s
        self._pause = environment.pause
        self._ripening = Ripening(commit, config=config)
        self._replicas: Replicas | None = None
        self._task: asyncio.Task[None] | None = None
        self._epoch = 0  # In which the steps were made.
        self.retired = 0
        """Origins, each counted in every partition, in this incarnation."""

    def start(self, replicas: Replicas) -> None:
        """Begin. `replicas` knows which directories were removed, and what the other owners hold."""
        self._replicas = replicas
        self.stir()

    def stir(self) -> None:
        """The members may have changed."""
        if self._replicas is not None and self._task is None and self._replicas.estate.directories:
            self._task = asyncio.get_running_loop().create_task(self._run(self._replicas))

    async def stop(self) -> None:
        """End the work; the next start continues it. Stopping twice is allowed."""
        self._replicas = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, replicas: Replicas) -> None:
        try:
            while (estate := replicas.estate).directories:
                if estate.is_open and await self._pass(replicas, estate):
                    return  # The next epoch stirs it again.
                await asyncio.sleep(self._interval_s)
        except ShoalError:
            return  # Storage rejects writes or cannot be read. The next epoch, or start, tries again.
        finally:
            self._task = None

    async def _pass(self, replicas: Replicas, estate: Estate) -> bool:
        """Retire what may be. Returns whether no owner holds anything more of these directories."""
        if estate.epoch != self._epoch:
            self._ripening.clear()
            self._epoch = estate.epoch
        is_over = True
        for number in sorted(self._partitions.vectors()):
            partition = self._partitions.load(number)
            await self._ripening.durable(partition)
            if replicas.estate != estate:
                return False
            is_over &= self._look(partition, replicas, estate)
            await self._pause()
        return is_over

    def _look(self, partition: Partition, replicas: Replicas, estate: Estate) -> bool:
        found = {origin for origin in partition.tips if any(belongs(origin, gone) for gone in estate.directories)}
        if not found:
            holdings = replicas.holdings(partition.number).values()
            return all(owner.whole is not None and partition.vector.dominates(owner.whole) for owner in holdings)
        ripe = sorted(self._ripening.ripe(partition, found, replicas))[:_AT_ONCE]
        if ripe:
            self._retire(partition.number, ripe)
            self._ripening.done(partition.number)
            self.retired += len(ripe)
        return False
