"""Claims under keys that clients made: removed once they expired, by each replica for itself.

Laws:
- A claim is removed once its key is older than the window, with a margin for clocks that differ, and its operation is stable in
  two steps (`shoal.cluster.stability`). Then no operation with this key can arrive (`shoal.crdt.values.expiring`). The window
  alone protects against a directory that was set back: until its peers tell it so, it may take a request that it has forgotten.
- A learner removes nothing: it may have forgotten operations itself.
- Removing is not replicated, and replicas do it at different times. So these rows are left out of comparisons with peers, and
  a missing one is no flaw.
- Only partitions with keyed writes are looked at, a few times per window; the claims of an object are read in the order of
  their keys' times, so a look reads what it removes, and at most a slice more per object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from shoal.cluster.stability import Cut, Holding, advanced_cut
from shoal.config import Config
from shoal.crdt.dot import VersionVector
from shoal.crdt.rows import Within, successor
from shoal.crdt.values import budget, expiring
from shoal.errors import ShoalError
from shoal.node.collection.generations import Generations, split
from shoal.node.environment import Environment
from shoal.node.partitions import Partitions
from shoal.node.replicas import Replicas
from shoal.node.target import Target
from shoal.node.transaction import Transaction
from shoal.storage import keys
from shoal.storage.commit import GroupCommit, LoggedStorage
from shoal.storage.keys import Kind

SLICE = 256  # Claims that are read in one step.
_LOOKS = 8  # In one window; the margin for clocks is one of these parts.
_FIRST_S = 60.0  # Until the first look at what earlier openings left; a short opening has better things to do.
_PARTS: dict[Kind, tuple[bytes, ...]] = {Kind.COUNTER: (b"",), Kind.BUDGET: (budget.GRANT, budget.SPEND)}
"""Below which prefixes the objects of a kind have a counter's rows."""


class ClaimSweeper:
    """The task that removes expired claims. It runs while there may be any."""

    def __init__(
        self,
        storage: LoggedStorage,
        commit: GroupCommit,
        *,
        partitions: Partitions,
        generations: Generations,
        config: Config,
        environment: Environment,
    ) -> None:
        self._storage = storage
        self._commit = commit
        self._partitions = partitions
        self._generations = generations
        self._now_ms = environment.now_ms
        self._pause = environment.pause
        self._step_s = max(1.0, config.key_window_s / _LOOKS)
        self._step_ms = int(self._step_s * 1000)
        self._span_ms = config.key_window_s * 1000 + self._step_ms
        self._due: dict[int, int] = {}  # When to look at a partition, in milliseconds since 1970.
        self._cuts: dict[int, Cut] = {}  # Of these partitions.
        self._replicas: Replicas | None = None
        self._task: asyncio.Task[None] | None = None
        self.swept = 0  # Claims, in this incarnation.

    def start(self, replicas: Replicas) -> None:
        """Look soon at what earlier openings left. `replicas` knows what the other owners hold."""
        self._replicas = replicas
        if self._due or next(self._storage.scan(keys.OBJECT, successor(keys.OBJECT), limit=1), None) is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(first=True))

    async def stop(self) -> None:
        """Cancel the task; the next opening continues it. Stopping twice is allowed."""
        self._replicas = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def keyed(self, partition: int) -> None:
        """A write with a key is being made in a partition."""
        if partition in self._due:
            return
        self._due[partition] = self._now_ms() + self._span_ms
        if self._task is None and self._replicas is not None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self, *, first: bool = False) -> None:
        try:
            if first:
                await asyncio.sleep(min(_FIRST_S, self._step_s))
                for number in self._inhabited():
                    self._due[number] = 0
                    await self._pause()
            while self._due:
                now = self._now_ms()
                for number in [number for number, at in self._due.items() if at <= now]:
                    await self._look(number, now)
                await asyncio.sleep(self._step_s)
        finally:
            self._task = None

    def _inhabited(self) -> Iterator[int]:
        """The partitions that hold objects."""
        start: bytes | None = keys.OBJECT
        while start is not None:
            row = next(iter(self._storage.scan(start, successor(keys.OBJECT), limit=1)), None)
            if row is None:
                return
            number = int.from_bytes(row[0][1:3], "big")
            yield number
            start = successor(row[0][:3])

    async def _look(self, number: int, now: int) -> None:
        """Remove what can be removed in a partition, and note when to look again."""
        stable = self._stable(number)
        oldest: int | None = None
        for target in self._objects(number):
            for part in _PARTS[target.kind]:
                try:
                    left = await self._sweep(target, part, now - self._span_ms, stable)
                except ShoalError:  # Storage rejects writes, or a block is damaged.
                    left = 0
                oldest = left if oldest is None or (left is not None and left < oldest) else oldest
            await self._pause()
        if oldest is None:
            del self._due[number]
            self._cuts.pop(number, None)
        else:
            self._due[number] = max(oldest + self._span_ms, now + self._step_ms)

    async def _sweep(self, target: Target, part: bytes, before_ms: int, stable: VersionVector) -> int | None:
        """Remove the claims of an object's part; returns the time of the oldest one that stays."""
        oldest: int | None = None
        after: bytes | None = None
        while True:
            whole = self._generations.current(Transaction(self._storage), target).rows
            rows = Within(whole, part)
            found = expiring.claims(rows, after=after, limit=SLICE)
            gone = [claim for claim in found if claim.wall_ms < before_ms and stable.covers(claim.dot)]
            if gone:
                self._commit.write({whole.key(part + row): None for claim in gone for row in expiring.rows_of(rows, claim)})
                self.swept += len(gone)
            if oldest is None:
                left = set(found) - set(gone)
                oldest = min((claim.wall_ms for claim in left), default=None)
            if len(found) < SLICE or found[-1].wall_ms >= before_ms:
                return oldest
            after = found[-1].row
            await self._pause()

    def _objects(self, number: int) -> Iterator[Target]:
        """The objects of a partition that may have claims."""
        for kind in _PARTS:
            prefix = keys.OBJECT + number.to_bytes(2, "big") + bytes([kind])
            start: bytes | None = prefix
            while start is not None:
                row = next(iter(self._storage.scan(start, successor(prefix), limit=1)), None)
                if row is None:
                    break
                target = Target(*keys.split_object(row[0])[1:4])
                yield target
                start = successor(keys.object_rows(number, *target))

    def _stable(self, number: int) -> VersionVector:
        """The operations of a partition that are stable; for a learner, none."""
        assert self._replicas is not None
        if self._replicas.learning:
            self._cuts.pop(number, None)
            return VersionVector()
        durable = self._partitions.load(number).durable
        owners = [Holding(durable, durable), *self._replicas.holdings(number).values()]
        cut = self._cuts[number] = advanced_cut(self._cuts.get(number, Cut()), owners)
        return cut.stable


def expires(kind: Kind, row: bytes) -> bool:
    """Whether a row of an object may be missing on a replica that removed it earlier than others."""
    parts = _PARTS.get(kind)
    return parts is not None and split(row)[1].startswith(tuple(part + expiring.PREFIX for part in parts))


def range_end(name: bytes, key: bytes) -> bytes | None:
    """Where the rows that expire end, if the one at `key` is one of them; else None. `name`: the prefix of its object."""
    parts = _PARTS.get(Kind(name[3]))
    if parts is None:
        return None
    own = split(key[len(name) :])[1]
    for part in parts:
        if own.startswith(part + expiring.PREFIX):
            return successor(key[: len(key) - len(own)] + part + expiring.PREFIX)
    return None
