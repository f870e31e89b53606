"""Retires the origins of this directory's past openings.

Laws:
- Only origins of this directory are retired, and only when there are `retire_origins_min` of them, so that a program that
  opens a store, writes once and closes it pays for an operation now and then. An opening that writes nothing retires nothing.
- All owners must be linked, and hold what `shoal.cluster.stability` says. A learner retires nothing. A directory that
  was a member of a cluster and is opened without peers retires nothing either.
- Before an origin is retired in a partition, its directory merges what it added to keys of maps: nobody else may.
- Once no partition has anything of an origin, nor a budget rights of it, the directory forgets that it had it.
- A program that opens its store for a moment only retires as well: a lone store looks once more before it stops.
- While there is nothing to retire there is no task and no timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Set
from contextlib import suppress

from shoal.config import Config
from shoal.crdt.dot import Origin
from shoal.crdt.rows import successor
from shoal.errors import ShoalError
from shoal.kinds.budget.state.budget import Account
from shoal.node.collection.ripening import Ripening, look_again_ms
from shoal.node.environment import Environment
from shoal.node.incarnation import Incarnation
from shoal.node.partitions import Partition, Partitions
from shoal.node.replicas import Replicas
from shoal.node.target import Target, stored
from shoal.storage import keys
from shoal.storage.commit import GroupCommit, LoggedStorage
from shoal.storage.keys import Kind

_AT_ONCE = 256  # Origins that one operation retires.


class Retiring:
    """`retire` issues the operation. `left` returns the accounts of past openings that still have rights to a budget.

    `fold` merges what origins added to keys of maps, and returns those of which something is left.
    """

    def __init__(
        self,
        storage: LoggedStorage,
        commit: GroupCommit,
        *,
        partitions: Partitions,
        incarnation: Incarnation,
        retire: Callable[[int, list[Origin]], None],
        left: Callable[[Target], Iterable[Account]],
        fold: Callable[[int, Set[Origin]], Awaitable[set[Origin]]],
        config: Config,
        environment: Environment,
    ) -> None:
        self._storage = storage
        self._commit = commit
        self._partitions = partitions
        self._incarnation = incarnation
        self._retire = retire
        self._left = left
        self._fold = fold
        self._config = config
        self._pause = environment.pause
        self._now_ms = environment.now_ms
        self._replicas: Replicas | None = None
        self._gather: Callable[[Target], Awaitable[object]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._ripening = Ripening(commit, config=config)
        self._folds_at: dict[int, int] = {}  # By partition, when adds that could not be merged yet are looked at again.
        self._stopped = False
        self.retired = 0
        """Origins, each counted in every partition, in this incarnation."""

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
            if len(past) >= self._config.retire_origins_min:
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
