"""Retires the origins of directories that were removed from the cluster: drained, forgotten or replaced.

Laws:
- The record of the members fences a removed directory, and copies of it, by id: no member takes an operation from it after
  it has written down that record. So what the members hold of its origins is all that they will ever hold.
- One node retires in an epoch: the member with the least address. It does so only while no change of members is under way and
  every owner is linked, counts, and has said in this very epoch what it holds exactly. Then no owner can hold
  more of an origin than was said: an operation that only a member that is cut off has is waited for.
- An origin is retired in the two steps of `shoal.cluster.stability`. So what one heir has retired, the next one knows.
- Before that, it merges what these directories added to keys of maps with its own adds, as each directory does with its own
  (`shoal.kinds.map.state`): what it knows then of their origins is all that there is, and what another heir merged before.
- It moves their rights to budgets to one account, which nobody spends: only an operator knows whether what a lost disk
  alone knew has spent them.
- While there is nothing to do, there is no task and no timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from shoal.config import Config
from shoal.crdt.dot import DIRECTORY_BYTES, Origin, belongs
from shoal.errors import ShoalError
from shoal.kinds.budget.state.budget import Account
from shoal.kinds.map import state as ormap
from shoal.node.collection.ripening import Ripening, look_again_ms
from shoal.node.environment import Environment
from shoal.node.partitions import Partition, Partitions
from shoal.node.replicas import Estate, Replicas
from shoal.node.target import Target, stored
from shoal.protocol.requests import InheritRights
from shoal.storage.commit import GroupCommit, LoggedStorage
from shoal.storage.keys import Kind

_AT_ONCE = 256  # Origins that one operation retires.
_NOTHING = Estate()


class Orphans:
    """`retire` issues the operation that retires origins in a partition.

    `fold` merges adds to keys of maps, and returns the origins of those that cannot be merged yet. `left` returns the accounts
    that have rights to a budget; `issue` moves those that are inherited.
    """

    def __init__(
        self,
        storage: LoggedStorage,
        commit: GroupCommit,
        *,
        partitions: Partitions,
        retire: Callable[[int, list[Origin]], None],
        fold: Callable[[int, Callable[[ormap.Part], bool]], Awaitable[set[Origin]]],
        left: Callable[[Target], Iterable[Account]],
        issue: Callable[[InheritRights], object],
        config: Config,
        environment: Environment,
    ) -> None:
        self._storage = storage
        self._partitions = partitions
        self._retire = retire
        self._fold = fold
        self._left = left
        self._issue = issue
        self._interval_s = config.sync_interval_s
        self._pause = environment.pause
        self._now_ms = environment.now_ms
        self._look_ms = look_again_ms(config)
        self._ripening = Ripening(commit, config=config)
        self._replicas: Replicas | None = None
        self._task: asyncio.Task[None] | None = None
        self._epoch = 0  # In which the steps were made.
        self._inheriting: tuple[int, Estate] | None = None  # What is being merged: of a partition, for as long as this is so.
        self._over: set[int] = set()  # Partitions in which nothing is left to do in that epoch.
        self._again_at: dict[int, int] = {}  # By partition, when what could not be merged yet is looked at again.
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
            self._over.clear()
            self._again_at.clear()
            self._epoch = estate.epoch
        is_over = True
        for number in sorted(self._partitions.vectors().keys() - self._over):
            partition = self._partitions.load(number)
            await self._ripening.durable(partition)
            if replicas.estate != estate:
                return False
            if await self._look(partition, replicas, estate):
                self._over.add(number)
            else:
                is_over = False
            await self._pause()
        return is_over

    async def _look(self, partition: Partition, replicas: Replicas, estate: Estate) -> bool:
        number = partition.number
        found = {origin for origin in partition.tips if _is_theirs(origin, estate)}
        if found:
            ready = self._ripening.ripe(partition, found, replicas)
        else:
            holdings = replicas.holdings(number).values()
            ready = set()
            if not all(owner.whole is not None and partition.vector.dominates(owner.whole) for owner in holdings):
                return False
        if (found and not ready) or self._now_ms() < self._again_at.get(number, 0):
            return False
        left = await self._inherited(number, estate)
        if replicas.estate != estate:
            return False  # What is ripe was so in that epoch, with all owners linked.
        if left:
            self._again_at[number] = self._now_ms() + self._look_ms
        ripe = sorted(ready - left)[:_AT_ONCE]
        if ripe:
            self._retire(number, ripe)
            self._ripening.done(number)
            self.retired += len(ripe)
        return not found and not left

    # ── what they left in objects ─────────────────────────────────────────────

    async def _inherited(self, number: int, estate: Estate) -> set[Origin]:
        """Merge what can be merged in a partition. Returns the origins of which something is left that cannot be, yet."""
        self._inheriting = number, estate
        try:
            left = await self._fold(number, self.inherited_adds(number))
            inherited = self.inherited_origins(number)
            for target in stored(self._storage, number, [Kind.BUDGET]):
                # One that cannot be read holds up nothing else; the next epoch, or start, tries again.
                with suppress(ShoalError):
                    if any(inherited(account.origin) for account in self._left(target)):
                        self._issue(InheritRights(target.space, target.name))
                await self._pause()
            return left
        finally:
            self._inheriting = None

    def inherited_origins(self, number: int) -> Callable[[Origin], bool]:
        """Tells the origins of removed directories, while this node may merge what these left in a partition."""
        estate = self._estate_of(number)
        return lambda origin: _is_theirs(origin, estate)

    def inherited_adds(self, number: int) -> Callable[[ormap.Part], bool]:
        """Tells the adds of these directories, and those that they merged from others."""
        estate = self._estate_of(number)
        names = {gone[:DIRECTORY_BYTES] for gone in estate.directories}
        return lambda add: add.directory[:DIRECTORY_BYTES] in names if add.directory else _is_theirs(add.dot.origin, estate)

    def _estate_of(self, number: int) -> Estate:
        """Nothing, unless it is being merged, and nothing has happened to the members since."""
        if self._inheriting is None or self._replicas is None:
            return _NOTHING
        partition, estate = self._inheriting
        return estate if partition == number and self._replicas.estate == estate else _NOTHING


def _is_theirs(origin: Origin, estate: Estate) -> bool:
    return any(belongs(origin, gone) for gone in estate.directories)
