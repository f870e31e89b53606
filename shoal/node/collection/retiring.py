"""Retires the origins of this directory's past openings.

Laws:
- Only origins of this directory are retired, and only when there are `RETIRE_ORIGINS_MIN` of them, so that a program that
  opens a store, writes once and closes it pays for an operation now and then. An opening that writes nothing retires nothing.
- All owners must be linked, and hold what `shoal.cluster.truncation` says. A learner retires nothing. A directory that
  was a member of a cluster and is opened without peers retires nothing either.
- Before an origin is retired in a partition, its directory merges what it added to keys of maps: nobody else may.
- Once no partition has anything of an origin, nor a budget rights of it, the directory forgets that it had it.
- A program that opens its store for a moment only retires as well: a lone store looks once more before it stops.
- While there is nothing to retire there is no task and no timer.

Retires the origins of directories that were removed from the cluster: drained, forgotten or replaced.

Laws:
- The record of the members fences a removed directory, and copies of it, by id: no member takes an operation from it after
  it has written down that record. So what the members hold of its origins is all that they will ever hold.
- One node retires in an epoch: the member with the least address. It does so only while no change of members is under way and
  every owner is linked, counts, and has said in this very epoch what it holds exactly. Then no owner can hold
  more of an origin than was said: an operation that only a member that is cut off has is waited for.
- An origin is retired in the two steps of `shoal.cluster.truncation`. So what one heir has retired, the next one knows.
- Before that, it merges what these directories added to keys of maps with its own adds, as each directory does with its own
  (`shoal.kinds.map.state`): what it knows then of their origins is all that there is, and what another heir merged before.
- It moves their rights to budgets to one account, which nobody spends: only an operator knows whether what a lost disk
  alone knew has spent them.
- While there is nothing to do, there is no task and no timer.

Which origins of a partition may be retired now: the two steps of `shoal.cluster.truncation`, from look to look.

Laws:
- Of its own operations this node counts the durable ones alone.
- An origin of which much is still in the log waits: until it has left it, it counts against `log_bytes_max`.

Forgets what is left of retired origins, the rows of table `R`.

Laws:
- A row goes once it is older than `forget_after_s`, or if its partition has more than `retired_origins_max`, the oldest first.
- None goes before every owner holds all retirements that this node has applied, or while operations of its origin are in
  the log.
- With a row goes what the marks of peers in storage say of its origin (`shoal.storage.keys`).
- Each node forgets by itself, whether it retires origins of its own or only applies the retirements of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress

from shoal.cluster import truncation as stability
from shoal.cluster.truncation import Holding, Ripened
from shoal.config import Config
from shoal.crdt.dot import DIRECTORY_BYTES, HORIZON, Dot, Origin, belongs
from shoal.crdt.rows import successor
from shoal.errors import ShoalError
from shoal.kinds.budget.state import Account
from shoal.kinds.map import state as ormap
from shoal.node.context import NodeContext
from shoal.node.handler import Target, stored
from shoal.node.partitions import Partition
from shoal.node.replicas import Estate, Replicas
from shoal.protocol.requests import InheritRights
from shoal.storage import keys
from shoal.storage.commit import GroupCommit
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind

RETIRE_ORIGINS_MIN = 16  # Past openings of a directory whose origins are retired together.
RETIRE_LOG_BYTES_MAX = 1 * 1024 * 1024  # Of the log of one origin when it is retired; a longer one is truncated before.

_LOOKS = 64  # In the window of keys.


def look_again_ms(config: Config) -> int:
    """How long an origin waits, some of whose adds to maps cannot be merged because their keys are remembered still."""
    return config.key_window_s * 1000 // _LOOKS


class Ripening:
    """Remembers, by partition, the origins that wait for the second step."""

    def __init__(self, commit: GroupCommit) -> None:
        self._commit = commit
        self._log_bytes_max = RETIRE_LOG_BYTES_MAX
        self._steps: dict[int, Ripened] = {}

    async def durable(self, partition: Partition) -> None:
        """Return once this node holds durably what it had applied of a partition."""
        await self._commit.wait_durable(partition.written)

    def ripe(self, partition: Partition, found: Iterable[Origin], replicas: Replicas) -> set[Origin]:
        """Those of these origins that may be retired now; call `durable` before."""
        short = [origin for origin in found if self._is_short(partition, origin)]
        ends = [Dot(origin, partition.tip(origin).sequence) for origin in sorted(short)]
        own = Holding(partition.vector, partition.vector)
        owners = [own, *replicas.holdings(partition.number).values()]
        step = stability.advanced_ripened(self._steps.get(partition.number, Ripened()), ends, owners)
        self._steps[partition.number] = step
        return {end.origin for end in step.ends} if stability.may_retire(step, owners) else set()

    def done(self, number: int) -> None:
        """Those that were ripe in a partition are retired."""
        self._steps.pop(number, None)

    def clear(self) -> None:
        """Begin again with the first step everywhere."""
        self._steps.clear()

    def _is_short(self, partition: Partition, origin: Origin) -> bool:
        base = partition.bases.get(origin)
        return partition.tip(origin).logged - (0 if base is None else base.logged) <= self._log_bytes_max


_AT_ONCE = 256  # Origins that one operation retires.


class Retiring:
    """`retire` issues the operation. `left` returns the accounts of past openings that still have rights to a budget.

    `fold` merges what origins added to keys of maps, and returns those of which something is left.
    """

    def __init__(
        self,
        context: NodeContext,
        *,
        retire: Callable[[int, list[Origin]], None],
        left: Callable[[Target], Iterable[Account]],
        fold: Callable[[int, Set[Origin]], Awaitable[set[Origin]]],
    ) -> None:
        self._storage = context.storage
        self._commit = context.commit
        self._partitions = context.partitions
        self._incarnation = context.incarnation
        self._retire = retire
        self._left = left
        self._fold = fold
        self._config = context.config
        self._pause = context.environment.pause
        self._now_ms = context.environment.now_ms
        self._replicas: Replicas | None = None
        self._gather: Callable[[Target], Awaitable[object]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._ripening = Ripening(context.commit)
        self._folds_at: dict[int, int] = {}  # By partition, when adds that could not be merged yet are looked at again.
        self._stopped = False
        self.retired = 0
        """Origins, each counted in every partition, in this context.incarnation."""

    def start(self, replicas: Replicas, gather: Callable[[Target], Awaitable[object]]) -> None:
        """Begin to retire once this opening has written. `replicas` knows what the other owners hold.

        `gather` moves the rights that past openings have to a budget to this one.
        """
        self._replicas, self._gather = replicas, gather
        self._incarnation.when_begun(self._stir)

    async def stop(self) -> None:
        """End the work: a lone store looks once more, else the next opening continues it. Stopping twice is allowed."""
        self._stopped = True
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        assert self._replicas is not None
        if self._replicas.size == 1:
            with suppress(ShoalError):  # Storage failed; the next opening retires.
                await self._pass(set(self._incarnation.past_origins()))

    def _stir(self) -> None:
        assert self._replicas is not None
        if self._task is None and not self._stopped and not (self._replicas.size == 1 and self._incarnation.was_member):
            past = self._incarnation.past_origins()
            if len(past) >= RETIRE_ORIGINS_MIN:
                self._task = asyncio.get_running_loop().create_task(self._run(set(past)))

    async def _run(self, past: set[Origin]) -> None:
        try:
            while past and not self._stopped:
                if self._may_retire():
                    past = await self._pass(past)
                if past:
                    await asyncio.sleep(self._config.sync_interval_s)
        except ShoalError:
            return  # Storage rejects writes or cannot be read. The next opening tries again.
        finally:
            self._task = None

    async def _pass(self, past: set[Origin]) -> set[Origin]:
        """Retire those of these origins that may be, and forget those of which nothing is left. Returns the others."""
        kept = await self._look(past)
        if gone := past - kept:
            self._commit.write(self._incarnation.without(gone))
        return kept

    def _may_retire(self) -> bool:
        replicas = self._replicas
        assert replicas is not None
        return replicas.size == 1 or (not self._incarnation.learner and len(replicas.linked) + 1 >= replicas.size)

    async def _look(self, past: set[Origin]) -> set[Origin]:
        """Retire those of these origins that may be, in all partitions. Returns the others."""
        kept: set[Origin] = set()
        for number in self._numbers():
            found = self._named(number) & past
            if found:
                kept |= found - await self._retired_in(self._partitions.load(number), found)
            kept |= await self._with_rights(number, past)
            await self._pause()
        return kept

    def _numbers(self) -> Iterator[int]:
        """The partitions that hold anything."""
        start: bytes | None = keys.VECTOR
        while start is not None:
            row = next(iter(self._storage.scan(start, successor(keys.VECTOR), limit=1)), None)
            if row is None:
                return
            number = int.from_bytes(row[0][1:3], "big")
            yield number
            start = successor(keys.vector(number))

    def _named(self, number: int) -> set[Origin]:
        prefix = keys.vector(number)
        return {Origin(key[len(prefix) :]) for key, _ in self._storage.scan(prefix, successor(prefix))}

    async def _retired_in(self, partition: Partition, found: set[Origin]) -> set[Origin]:
        assert self._replicas is not None
        await self._ripening.durable(partition)
        ready = self._ripening.ripe(partition, found, self._replicas)
        if not ready:
            return set()
        if self._now_ms() < self._folds_at.get(partition.number, 0):
            return set()
        if left := await self._fold(partition.number, ready):
            self._folds_at[partition.number] = self._now_ms() + look_again_ms(self._config)
        origins = sorted(ready - left)[:_AT_ONCE]
        if not origins:
            return set()
        self._retire(partition.number, origins)
        self._ripening.done(partition.number)
        self.retired += len(origins)
        return set(origins)

    async def _with_rights(self, number: int, past: set[Origin]) -> set[Origin]:
        """Move the rights of these origins to this opening. Returns those that still have some."""
        assert self._gather is not None
        kept: set[Origin] = set()
        for target in stored(self._storage, number, [Kind.BUDGET]):
            if any(account.origin in past for account in self._left(target)):
                await self._gather(target)
            kept.update(account.origin for account in self._left(target))
            await self._pause()
        return kept & past


_NOTHING = Estate()


class Orphans:
    """`retire` issues the operation that retires origins in a partition.

    `fold` merges adds to keys of maps, and returns the origins of those that cannot be merged yet. `left` returns the accounts
    that have rights to a budget; `issue` moves those that are inherited.
    """

    def __init__(
        self,
        context: NodeContext,
        *,
        retire: Callable[[int, list[Origin]], None],
        fold: Callable[[int, Callable[[ormap.Part], bool]], Awaitable[set[Origin]]],
        left: Callable[[Target], Iterable[Account]],
        issue: Callable[[InheritRights], object],
    ) -> None:
        self._storage = context.storage
        self._partitions = context.partitions
        self._retire = retire
        self._fold = fold
        self._left = left
        self._issue = issue
        self._interval_s = context.config.sync_interval_s
        self._pause = context.environment.pause
        self._now_ms = context.environment.now_ms
        self._look_ms = look_again_ms(context.config)
        self._ripening = Ripening(context.commit)
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


_PART = 8  # One in so many retired origins is forgotten at once; they may be older than `forget_after_s` by such a part of it.


class Forgetting:
    """The bounds of forgetting, as the configuration sets them."""

    def __init__(self, storage: Storage, config: Config) -> None:
        self._storage = storage
        self._forget_ms = int(config.forget_after_s * 1000)
        self._max = config.retired_origins_max

    def forget(self, partition: Partition, owners: Sequence[Holding], now_ms: int) -> dict[bytes, bytes | None]:
        """Forget the oldest retired origins of a partition. Returns the rows to be written at once.

        All rows of table `R` are read for that, so some are gathered first, or go ahead of time.
        """
        retired = partition.retired
        surplus = retired.summary.remembered - self._max
        if surplus <= 0 and retired.summary.oldest_ms >= now_ms - self._forget_ms - self._forget_ms // _PART:
            return {}
        if not all(owner.vector.dominates(retired.summary.floor) for owner in owners):
            return {}
        if surplus > 0:
            surplus += self._max // _PART
        rows = sorted(retired.all(), key=lambda row: row[1].time)
        old = [row for at, row in enumerate(rows) if at < surplus or row[1].wall_ms < now_ms - self._forget_ms]
        gone = {origin: row for origin, row in old if not row.is_logged}
        if not gone:
            return {}
        rest = [row.wall_ms for origin, row in rows if origin not in gone]
        summary = retired.summary.forgetting(list(gone.values()), min(rest, default=0))
        partition.forget(retired.after(summary, {}).written())
        forgotten: dict[bytes, bytes | None] = {keys.retired(partition.number, origin): None for origin in gone}
        forgotten.update(keys.without(self._storage, partition.number, gone.keys()))
        return {**forgotten, keys.retired(partition.number, HORIZON): summary.pack()}
