"""Claims under keys that clients made: removed once they expired, by each replica for itself. Adds to maps are folded.

Laws:
- A claim is removed once its key is older than the window, with a margin for clocks that differ, and its operation is stable in
  two steps (`shoal.cluster.truncation`). Then no operation with this key can arrive (`shoal.crdt.deletion`). The window
  alone protects against a directory that was set back: until its peers tell it so, it may take a request that it has forgotten.
- A learner removes and folds nothing: it may have forgotten operations itself.
- Removing is not replicated, and replicas do it at different times. So these rows are left out of comparisons with peers, and
  a missing one is no flaw.
- A key that a user chose says nothing of its age, so a counter keeps its use. An add to a map is old once this opening has
  held it for as long, or once the last operation of its origin is as old.
- An add to a key of a map carries its amount, so that a removal removes what it has seen. The adds of this directory are folded
  under the same conditions, by an operation (`shoal.kinds.map.state`): a removal must find the same adds on every replica.
- An origin is retired after all its adds are folded. What is forgotten of it was stable by then.
- Only partitions with keyed writes are looked at, a few times per window; the claims of an object are read in the order of
  their keys' times, so a look reads what it removes, and at most a slice more per object.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from itertools import islice

from shoal.cluster.truncation import Cut, Holding, advanced_cut
from shoal.crdt import deletion
from shoal.crdt.dot import NOTHING_SEEN, Origin, VersionVector, wall_ms_of
from shoal.crdt.rows import Rows, Within, successor
from shoal.errors import ShoalError
from shoal.kinds.budget import state as budget
from shoal.kinds.map import state as ormap
from shoal.kinds.map.state import ADDS_FOLDED_MIN
from shoal.node.collection.entries import Generations, split
from shoal.node.context import NodeContext
from shoal.node.handler import Target, stored
from shoal.node.replicas import Replicas
from shoal.node.transaction import Transaction
from shoal.node.turns import lasting
from shoal.protocol.requests import AnyReply, EntryFolded, FoldEntry
from shoal.storage import keys
from shoal.storage.keys import Kind

SLICE = 256  # Claims that are read in one step.
_LOOKS = 8  # In one window; the margin for clocks is one of these parts.
_FIRST_S = 60.0  # Until the first look at what earlier openings left; a short opening has better things to do.
_KEYS_AT_ONCE = 64  # Of a map, that are read in one step.
_NOTED_MAX = 4096  # Keys of maps in one partition.
_PARTS: dict[Kind, tuple[bytes, ...]] = {Kind.COUNTER: (b"",), Kind.BUDGET: (budget.GRANT, budget.SPEND)}
"""Below which prefixes the objects of a kind have a counter's rows."""


class KeySweeper:
    """The task that removes expired uses of keys. It runs while there may be any."""

    def __init__(
        self,
        context: NodeContext,
        *,
        issue: Callable[[FoldEntry], AnyReply],
        is_own: Callable[[ormap.Part], bool],
        generations: Generations,
    ) -> None:
        self._storage = context.storage
        self._commit = context.commit
        self._issue = issue
        self._is_own = is_own
        self._partitions = context.partitions
        self._generations = generations
        self._now_ms = context.environment.now_ms
        self._pause = context.environment.pause
        self._step_s = max(1.0, context.config.key_window_s / _LOOKS)
        self._step_ms = int(self._step_s * 1000)
        self._span_ms = context.config.key_window_s * 1000 + self._step_ms
        self._least = ADDS_FOLDED_MIN
        self._due: dict[int, int] = {}  # When to look at a partition, in milliseconds since 1970.
        self._cuts: dict[int, Cut] = {}  # Of these context.partitions.
        # By partition: what was held at the last looks. That tells the age of operations with keys that users chose.
        self._held: defaultdict[int, deque[tuple[int, VersionVector]]] = defaultdict(lambda: deque(maxlen=2 * _LOOKS))
        # By partition: keys of maps, and how many adds of this directory their counters may have.
        self._adds: defaultdict[int, dict[tuple[Target, str], int]] = defaultdict(dict)
        self._unread: set[int] = set()  # Partitions whose maps were not read since the start.
        self._hurry: asyncio.Task[bool] | None = None
        self._replicas: Replicas | None = None
        self._task: asyncio.Task[None] | None = None
        self.swept = 0  # Claims, in this incarnation.
        self.folded = 0  # Adds to keys of maps.

    def start(self, replicas: Replicas) -> None:
        """Look soon at what earlier openings left. `replicas` knows what the other owners hold."""
        self._replicas = replicas
        if self._due or next(self._storage.scan(keys.OBJECT, successor(keys.OBJECT), limit=1), None) is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(first=True))

    async def stop(self) -> None:
        """Cancel the task; the next opening continues it. Stopping twice is allowed."""
        self._replicas = None
        for task in (self._task, self._hurry):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def keyed(self, partition: int) -> None:
        """A write with a key is being made in a partition, or a snapshot has brought some."""
        if partition in self._due:
            return
        self._due[partition] = self._now_ms() + self._span_ms
        if self._task is None and self._replicas is not None:
            self._task = lasting(self._run(), "expiry of keys")

    def added(self, target: Target, key: str) -> None:
        """A keyed add to a key of a map is being made here."""
        self._note(target, key, 1)

    def crowded(self, target: Target, key: str) -> None:
        """Many openings have added to a key of a map. They may all be short: fold now, if that can be done."""
        self._note(target, key, self._least)
        self.keyed(target.partition)
        if self._replicas is not None and (self._hurry is None or self._hurry.done()):
            self._stable(target.partition)
            self._hurry = asyncio.get_running_loop().create_task(self._fold(target.partition))

    def _note(self, target: Target, key: str, count: int) -> None:
        adds = self._adds[target.partition]
        before = adds.get((target, key))
        if before is not None or len(adds) < _NOTED_MAX:  # Others are found by the next opening.
            adds[target, key] = (before or 0) + count

    def settled(self, partition: int) -> Callable[[ormap.Part], bool]:
        """Tells which adds to a key of a map can be folded, as the last look at their partition found."""
        stable, before_ms = self._cuts.get(partition, Cut()).stable, self._now_ms() - self._span_ms
        old = next((vector for at, vector in reversed(self._held.get(partition, ())) if at < before_ms), NOTHING_SEEN)
        here = self._partitions.load(partition)

        def is_settled(add: ormap.Part) -> bool:
            if not stable.covers(add.dot) and not (stable and here.vector.is_forgotten(add.dot.origin)):
                return False
            if add.request is None or old.covers(add.dot):
                return True
            tip = here.tip(add.dot.origin)  # Each add of the origin is at least as old as its last operation.
            return deletion.is_made_before(add.request, before_ms) or 0 < wall_ms_of(tip.hlc) < before_ms

        return is_settled

    async def _run(self, *, first: bool = False) -> None:
        try:
            if first:
                await asyncio.sleep(min(_FIRST_S, self._step_s))
                for number in self._inhabited():
                    self._due[number] = 0
                    self._unread.add(number)
                    await self._pause()
            while self._due:
                now = self._now_ms()
                is_told = self._replicas is not None and not self._replicas.clock_wrong  # Else nothing is known to be old.
                for number in [number for number, at in self._due.items() if at <= now and is_told]:
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
        if number in self._partitions.closed:
            self._due[number] = now + self._step_ms  # It is being replaced.
            return
        stable = self._stable(number)
        self._held[number].append((now, self._durable(number)))
        oldest: int | None = None
        for target in stored(self._storage, number, _PARTS):
            for part in _PARTS[target.kind]:
                try:
                    left = await self._sweep(target, part, now - self._span_ms, stable)
                except ShoalError:  # Storage rejects writes, or a block is damaged.
                    left = 0
                oldest = left if oldest is None or (left is not None and left < oldest) else oldest
            await self._pause()
        if number in self._unread:
            await self._read_maps(number)
            self._unread.discard(number)
        if await self._fold(number):
            oldest = 0
        if oldest is None:
            del self._due[number]
            self._cuts.pop(number, None)
            self._held.pop(number, None)
        else:
            self._due[number] = max(oldest + self._span_ms, now + self._step_ms)

    async def _sweep(self, target: Target, part: bytes, before_ms: int, stable: VersionVector) -> int | None:
        """Remove the claims of an object's part; returns the time of the oldest one that stays."""
        oldest: int | None = None
        after: bytes | None = None
        while True:
            if target.partition in self._partitions.closed:
                return 0
            whole = self._generations.current(Transaction(self._storage), target).rows
            rows = Within(whole, part)
            found = deletion.uses(rows, after=after, limit=SLICE)
            gone = [use for use in found if use.wall_ms < before_ms and stable.covers(use.dot)]
            if gone:
                self._commit.write({whole.key(part + row): None for use in gone for row in deletion.rows_of(rows, use)})
                self.swept += len(gone)
            if oldest is None:
                left = set(found) - set(gone)
                oldest = min((use.wall_ms for use in left), default=None)
            if len(found) < SLICE or found[-1].wall_ms >= before_ms:
                return oldest
            after = found[-1].row
            await self._pause()

    async def _read_maps(self, number: int) -> None:
        """Note the keys of maps whose counters have many adds of this directory, from earlier openings too."""
        for target in stored(self._storage, number, [Kind.MAP]):
            after: str | None = None
            while True:
                rows = self._rows(target)
                some = list(islice(ormap.keys(rows, after=after), _KEYS_AT_ONCE))
                for key in some:
                    if ormap.adds_of(rows, key, self._is_own, self._least) == self._least:
                        self._note(target, key, self._least)
                await self._pause()
                if len(some) < _KEYS_AT_ONCE:
                    break
                after = some[-1]

    async def _fold(self, number: int) -> bool:
        """Fold what can be folded in a partition; returns whether more may follow."""
        noted = self._adds.pop(number, {})
        left = self._adds[number]  # Adds that are made meanwhile are noted here too.
        for (target, key), count in noted.items():
            while count >= self._least:
                try:
                    reply = self._issue(FoldEntry(target.space, target.name, key))
                except ShoalError:
                    break
                assert isinstance(reply, EntryFolded)
                self.folded += reply.folded
                count = reply.left
                await self._pause()
                if not reply.folded:
                    break
            if count:
                left[target, key] = left.get((target, key), 0) + count
        if not left:
            del self._adds[number]
        return any(count >= self._least for count in left.values())

    async def fold_all(self, number: int, origins: Set[Origin]) -> set[Origin]:
        """Fold what these origins of this directory added to keys of maps, however little.

        Returns the origins that still have adds which cannot be folded yet. They must be merged before their origin is retired
        everywhere: the directory does not know then that they are its own.
        """
        return await self.fold_each(number, lambda add: not add.directory and add.dot.origin in origins)

    async def fold_each(self, number: int, wanted: Callable[[ormap.Part], bool], *, inherited: bool = False) -> set[Origin]:
        """Fold the adds to keys of maps for which `wanted` is true, however few. Returns the origins of those that are left."""
        for _ in range(2):  # It is stable in two steps; a lone store takes both at once.
            self._stable(number)
        left: set[Origin] = set()
        for target in stored(self._storage, number, [Kind.MAP]):
            after: str | None = None
            while True:
                some = list(islice(ormap.keys(self._rows(target), after=after), _KEYS_AT_ONCE))
                for key in some:
                    if self._adders(target, key, wanted):
                        with suppress(ShoalError):
                            self._issue(FoldEntry(target.space, target.name, key, 1, inherited))
                        left |= self._adders(target, key, wanted)
                await self._pause()
                if len(some) < _KEYS_AT_ONCE:
                    break
                after = some[-1]
        return left

    def _adders(self, target: Target, key: str, wanted: Callable[[ormap.Part], bool]) -> set[Origin]:
        return ormap.adders(self._rows(target), key, wanted)

    def _rows(self, target: Target) -> Rows:
        return self._generations.current(Transaction(self._storage), target).rows

    def _durable(self, number: int) -> VersionVector:
        """The operations of a partition that this node holds durably: all of it, unless a write waits for its sync.

        Only a node with peers keeps account of each operation (`Partition.durable`).
        """
        here = self._partitions.load(number)
        return here.vector if here.written <= self._commit.durable else here.durable

    def _stable(self, number: int) -> VersionVector:
        """The operations of a partition that are stable; for a learner, none."""
        assert self._replicas is not None
        if self._replicas.learning:
            self._cuts.pop(number, None)
            return VersionVector()
        durable = self._durable(number)
        owners = [Holding(durable, durable), *self._replicas.holdings(number).values()]
        cut = self._cuts[number] = advanced_cut(self._cuts.get(number, Cut()), owners)
        return cut.stable


def expires(kind: Kind, row: bytes) -> bool:
    """Whether a row of an object may be missing on a replica that removed it earlier than others."""
    parts = _PARTS.get(kind)
    return parts is not None and split(row)[1].startswith(tuple(part + deletion.PREFIX for part in parts))


def range_end(name: bytes, key: bytes) -> bytes | None:
    """Where the rows that expire end, if the one at `key` is one of them; else None. `name`: the prefix of its object."""
    parts = _PARTS.get(Kind(name[3]))
    if parts is None:
        return None
    own = split(key[len(name) :])[1]
    for part in parts:
        if own.startswith(part + deletion.PREFIX):
            return successor(key[: len(key) - len(own)] + part + deletion.PREFIX)
    return None
