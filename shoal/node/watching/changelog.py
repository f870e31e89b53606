"""Changes read back from the log, for a watcher that was away.

Laws:
- Within a partition operations are in HLC order, which is a causal order.
- If the log lacks one of the operations, or they have left it, there is no answer.

A watch that can be resumed: each change once, in causal order, also on another node.

Laws:
- It begins at its position. Operations that this node has applied and the position does not
  cover are read from the log, a slice at a time, as their changes are taken, and those of all partitions
  are merged in causal order (`merging`). Changes that are applied
  later wait behind these, in the order of the writes. A change that the position covers is
  not pushed, even if it arrives here later.
- Each push carries exactly what the position grows by: a watch that is resumed after it, on
  any node, gets all that follows.
- Waiting changes are bounded in bytes, and the replay in operations. Past either bound, or if the
  log lacks an operation, one Reset replaces all waiting changes, with the position to continue from.
- If a partition held no object of the watch when it began, an object that was made and
  deleted there while nobody watched is not pushed.

The changes of several partitions, read from their logs, as one sequence in causal order.

Laws:
- Changes come in the order of their HLC, then of their dots. A node's clock passes everything that the node has applied, in
  whatever partition, before it issues anything: so a change comes after all changes that its node had applied.
- A change is given only once each partition whose log is not read to its end has its next change here, or has none.
- A slice that is read has at most `SLICE_MAX` operations, and all slices together about `WAITING_MAX`; with more than
  `bytes_max` bytes of changes here, a slice is one operation.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec.structs import replace

from shoal.cluster import operation
from shoal.cluster.operation import partition_of
from shoal.config import Config
from shoal.crdt.dot import NOTHING_SEEN, Dot, Origin, VersionVector
from shoal.crdt.rows import Stamp
from shoal.errors import InvalidValue
from shoal.kinds import KINDS, LABELS, Kind
from shoal.node import mutation
from shoal.node.catalog import Catalog
from shoal.node.collection.entries import Generations
from shoal.node.handler import Target
from shoal.node.mutation import ImportedMutation, Mutation
from shoal.node.partitions import Partitions
from shoal.node.transaction import Transaction
from shoal.node.watching.feed import Staged, Subscriber, matches
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.position import Position, pack_part
from shoal.protocol.requests import Change, Push, Reset, Watch, Watching
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.interface import Storage

SCOPE_NAMES_MAX = 4096
"""Objects that are read to find the partitions of a watch; with more objects, all partitions are assumed."""


class Logged(NamedTuple):
    """An operation of the log, decoded."""

    hlc: int
    dot: Dot
    wall_ms: int
    mutations: Sequence[ImportedMutation]


class Changelog:
    """Reads the log for watches."""

    def __init__(self, storage: Storage, partitions: Partitions, generations: Generations, catalog: Catalog) -> None:
        self._storage = storage
        self._partitions = partitions
        self._generations = generations
        self._catalog = catalog
        self._all_loaded = False

    def vectors(self) -> dict[int, VersionVector]:
        """The operations applied here, by partition. The first call loads all partitions."""
        if not self._all_loaded:
            self._partitions.load_all()
            self._all_loaded = True
        return self._partitions.vectors()

    def shown(self, number: int) -> VersionVector:
        """The operations applied in a partition, as a position covers them."""
        return self._partitions.load(number).shown

    def target(self, number: int, seen: VersionVector) -> VersionVector | None:
        """The operations applied in a partition, with those of retired origins that `seen` lacks; None if these are gone."""
        partition = self._partitions.load(number)
        lacking = partition.retired.lacking(seen)
        if lacking is None or any(partition.base[origin] > seen[origin] for origin, _ in lacking):
            return None
        return VersionVector({**partition.vector, **{origin: found.sequence for origin, found in lacking}})

    def scope(self, watch: requests.Watch) -> set[int] | None:
        """The partitions that hold objects of a watch; None if it has more than `SCOPE_NAMES_MAX` objects."""
        found: set[int] = set()
        looked = 0
        for kind in watch.kinds or ([watch.kind] if watch.kind is not None else list(LABELS.values())):
            room = SCOPE_NAMES_MAX - looked
            names = self._catalog.names(watch.space, KINDS[kind], prefix=watch.prefix, after=None, limit=room + 1)
            if len(names) > room:
                return None
            looked += len(names)
            found.update(partition_of(watch.space, name) for name in names)
        return found

    def since(self, number: int, seen: VersionVector, target: VersionVector, *, limit: int) -> list[Logged] | None:
        """Up to `limit` operations of a partition that `target` covers and `seen` does not; None if the log lacks one."""
        base = self._partitions.load(number).base
        if number in self._partitions.closed or any(
            base[origin] >= missing.start for origin, missing in target.missing(seen).items()
        ):
            return None
        runs = [self._run(number, origin, missing, limit) for origin, missing in target.missing(seen).items()]
        try:
            found = list(islice(heapq.merge(*runs, key=lambda logged: (logged.hlc, logged.dot)), limit))
            at = seen
            for logged in found:
                at = at.advance(logged.dot)
        except (InvalidValue, ValueError):
            return None
        return found if len(found) == min(limit, sum(map(len, target.missing(seen).values()))) else None

    def _run(self, number: int, origin: Origin, missing: range, limit: int) -> Iterator[Logged]:
        start, stop = keys.log(number, Dot(origin, missing.start)), keys.log(number, Dot(origin, missing.stop))
        for key, stored in self._storage.scan(start, stop, limit=limit):
            body = operation.decode(operation.LogEntry.unpack(stored).packed)
            yield Logged(body.hlc, keys.split_log(key)[1], body.wall_ms, mutation.decode(body.payload))

    def is_ended(self, change: Mutation) -> bool:
        """Whether a change, other than a deletion, belongs to an ended generation of its object."""
        if mutation.ends(change.change):
            return False
        current = self._generations.current(Transaction(self._storage), target_of(change))
        return change.generation < current.number


def target_of(change: Mutation) -> Target:
    """The object of a mutation."""
    return Target(Kind(change.kind), change.space, change.name)


def change_of(target: Target, stamp: Stamp, change: mutation.Change) -> requests.Change:
    """The push to watchers for a change, the same on every node."""
    what, id = str(type(change).__struct_config__.tag), mutation.id_of(target.name, stamp, change)
    return requests.Change(target.space, LABELS[target.kind], target.name, what, id, stamp.hlc, stamp.wall_ms)


SLICE_MAX = 100
WAITING_MAX = 8192
"""Operations of all partitions that wait to be merged."""
_SLICE_MIN = 4  # Reading one operation costs little more than finding where it begins.
_CHANGE_BYTES = 500  # The cost of a waiting change with its vectors, beside its names.


class SeenChange(NamedTuple):
    """A change, and what a watcher that takes it has seen of the partition.

    `part` names the place within the operation, as `pack_part`; it is empty after the operation's last change.
    """

    change: Change
    dot: Dot
    seen: VersionVector
    part: bytes

    @property
    def size(self) -> int:
        """About the bytes that it needs while it waits."""
        return _CHANGE_BYTES + len(self.change.name) + len(self.change.id)


class _Run:
    """One partition: what was read of its log and not given yet, in order."""

    __slots__ = ("ended", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[SeenChange] = deque()
        self.ended = False


class Merge:
    """Ask `hungry` which partition must be read next, `feed` what was read, and `take` once none must be."""

    def __init__(self, numbers: Iterable[int], *, bytes_max: int) -> None:
        self._runs = {number: _Run() for number in numbers}
        self._hungry = deque(self._runs)
        self._next: list[tuple[int, Dot, int]] = []  # A heap of the first waiting change of each partition.
        self._bytes_max = bytes_max
        self._bytes = 0

    @property
    def hungry(self) -> int | None:
        """A partition that must be read on before anything can be taken; None if there is none."""
        return self._hungry[0] if self._hungry else None

    @property
    def slice(self) -> int:
        """How many operations to read of it."""
        if self._bytes > self._bytes_max:
            return 1
        return max(_SLICE_MIN, min(SLICE_MAX, WAITING_MAX // max(1, len(self._runs))))

    def feed(self, told: Sequence[SeenChange], *, ends: bool) -> None:
        """Add the changes that were read of the partition that is `hungry`; `ends` says that there are no more."""
        number = self._hungry[0]
        run = self._runs[number]
        run.waiting.extend(told)
        run.ended = ends
        self._bytes += sum(each.size for each in told)
        if told or ends:
            self._hungry.popleft()
        self._show(number)

    def take(self) -> SeenChange | None:
        """The next change; None if all were taken. No partition may be hungry."""
        assert not self._hungry
        if not self._next:
            return None
        _, _, number = heapq.heappop(self._next)
        told = self._runs[number].waiting.popleft()
        self._bytes -= told.size
        self._show(number)
        return told

    def _show(self, number: int) -> None:
        run = self._runs[number]
        if run.waiting:
            first = run.waiting[0]
            heapq.heappush(self._next, (first.change.hlc, first.dot, number))
        elif run.ended:
            del self._runs[number]
        elif not self._hungry or self._hungry[0] != number:
            self._hungry.append(number)

    def left(self) -> Iterator[SeenChange]:
        """All changes that wait here."""
        for run in self._runs.values():
            yield from run.waiting

    def unread(self) -> Iterator[int]:
        """The partitions whose log was not read to its end."""
        return (number for number, run in self._runs.items() if not run.ended)


class ResumableWatch(Subscriber):
    """The subscriber of a watch with a position."""

    def __init__(self, watch: Watch, bookmark: Bookmark, changelog: Changelog, bytes_max: int, *, config: Config) -> None:
        """Begin at the watch's position. No operation may be applied between this and `Feed.told`.

        Raises:
            InvalidValue: `after` is not a position.
        """
        super().__init__(watch, bookmark, bytes_max)
        self._watch = watch
        self._changelog = changelog
        self._begun = Position.unpack(watch.after) if watch.after else None
        self._here = changelog.vectors()  # The operations that were applied before; later ones come by `tell`.
        self._shown = {number: changelog.shown(number) for number in self._here}
        self._at = Position() if self._begun is None else self._begun.copy()  # The position after all taken pushes.
        self._merge = Merge((), bytes_max=bytes_max)
        self._reading: dict[int, VersionVector] = {}  # How far each was read.
        self._live: deque[SeenChange] = deque()
        self._lead: deque[Push] = deque()
        scope = changelog.scope(watch)
        numbers = sorted(self._here if scope is None else scope & self._here.keys())
        if self._begun is None:
            for number in numbers:
                self._at.join(number, self._shown[number])
            self._lead.append(Watching(self._at.pack()))
            return
        plan = sorted({*numbers, *(self._here.keys() & set(self._begun.partitions))})
        self._merge = Merge(plan, bytes_max=bytes_max)
        self._targets: dict[int, VersionVector] = {}
        missing = 0
        for number in plan:
            target = changelog.target(number, self._at.vector(number))
            if target is None:
                self._reset("the log no longer holds all changes that this watch has not seen")
                return
            self._targets[number] = target
            missing += sum(map(len, target.missing(self._at.vector(number)).values()))
        if missing > config.watch_replay_operations_max:
            self._reset(f"the watch is {missing} operations behind, more than {config.watch_replay_operations_max}")

    async def __anext__(self) -> Push:
        while True:
            if self._lead:
                return self._lead.popleft()
            if self._merge.hungry is not None:
                self._read_on()
                await asyncio.sleep(0)  # Other tasks get their turn.
                continue
            if (read := self._merge.take()) is not None:
                return self._pushed(read)
            if self._live:
                told = self._live.popleft()
                self._bytes -= told.size
                return self._pushed(told)
            if self._ended is not None:
                raise self._ended
            self._wake.clear()
            await self._wake.wait()

    def tell(self, staged: Staged, seen: VersionVector, *, ends: bool) -> None:
        """Offer a durable change, if the subscription is about it (`Subscriber.tell`)."""
        change, stamp = staged.change, staged.stamp
        if self._ended is not None or not matches(self._watch, change.space, change.kind, change.name):
            return
        if self._is_known(staged.partition, stamp.dot, stamp.nth):
            return
        told = _told(change, staged.partition, stamp, stamp.context, ends=ends)
        self._bytes += told.size
        self._live.append(told)
        if self._bytes > self._bytes_max and len(self._live) > 1:
            self._reset(f"more than {self._bytes_max} bytes of changes waited for this watcher")
        self._wake.set()

    def replaced(self, number: int, vector: VersionVector) -> None:
        """A peer's snapshot has replaced a partition, which is at `vector` now (`Subscriber.replaced`): one Reset stands for
        everything that the snapshot brought.
        """
        self._here[number] = vector
        self._at.join(number, vector)
        self._reset(f"this node has replaced partition {number} by a peer's snapshot")

    def _is_known(self, number: int, dot: Dot, nth: int) -> bool:
        if self._here.get(number, NOTHING_SEEN).covers(dot):
            return True
        return self._begun is not None and self._begun.covers(number, dot, nth)

    def _pushed(self, told: SeenChange) -> Push:
        number = told.change.partition
        before = self._at.vector(number)
        self._at.join(number, told.seen)
        self._bookmark.note(number, told.seen)
        return replace(told.change, seen=self._at.vector(number).since(before).pack(), part=told.part)

    # ── what was there before ─────────────────────────────────────────────────

    def _read_on(self) -> None:
        """Read slices of the logs that the merge waits for, about as many operations as one slice may have."""
        read = 0
        while read < SLICE_MAX and (number := self._merge.hungry) is not None:
            read += self._read_slice(number)

    def _read_slice(self, number: int) -> int:
        """Read a slice of a partition's log; returns its cost in operations."""
        target, limit = self._targets[number], self._merge.slice
        seen = self._reading.get(number, self._at.vector(number))
        found = self._changelog.since(number, seen, target, limit=limit)
        if found is None:
            self._reset("the log no longer holds all changes that this watch has not seen: start again from the present state")
            return SLICE_MAX
        told: list[SeenChange] = []
        for logged in found:
            told.extend(self._told_again(number, seen, logged))
            seen = seen.advance(logged.dot)
        self._reading[number] = seen
        self._merge.feed(told, ends=len(found) < limit)
        return 1 + len(found)

    def _told_again(self, number: int, seen: VersionVector, logged: Logged) -> Iterator[SeenChange]:
        begun = self._begun
        assert begun is not None
        for nth, change in enumerate(logged.mutations):
            target = target_of(change)
            if not matches(self._watch, target.space, LABELS[target.kind], target.name):
                continue
            if begun.covers(number, logged.dot, nth):
                continue
            if number not in begun.partitions and self._changelog.is_ended(change):
                continue
            stamp = Stamp(logged.dot, logged.hlc, change.time_ms or logged.wall_ms, seen, nth)
            ends = nth == len(logged.mutations) - 1
            yield _told(change_of(target, stamp, change.change), number, stamp, seen, ends=ends)

    # ── what cannot be told ───────────────────────────────────────────────────

    def _reset(self, reason: str) -> None:
        """Drop all waiting changes, and queue one Reset instead."""
        for number in self._merge.unread():
            self._at.join(number, self._shown[number])
        for told in (*self._merge.left(), *self._live):
            self._at.join(told.change.partition, told.seen)
        self._merge = Merge((), bytes_max=self._bytes_max)
        self._live.clear()
        self._bytes = 0
        self._lead.clear()
        self._lead.append(Reset(self._at.pack(), reason))
        self._wake.set()


def _told(change: Change, number: int, stamp: Stamp, context: VersionVector, *, ends: bool) -> SeenChange:
    seen = context.advance(stamp.dot) if ends else context
    return SeenChange(replace(change, partition=number), stamp.dot, seen, b"" if ends else pack_part(stamp.dot, stamp.nth))
