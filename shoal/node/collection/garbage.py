"""The garbage that operations left: a durable queue, and the task that sweeps it.

Laws:
- An entry is written in the batch of the operation that erased, and removed after the
  last of its rows: after a crash in between, the sweep is repeated and leaves nothing.
- An entry counts only if its operation makes it (`entries`).
- Rows are removed only once the eraser is stable (`shoal.cluster.truncation`). An owner
  that is away delays that, and `waits_for` names it.
- Each look takes a bounded number of entries, then other tasks get their turn. While
  the queue is empty there is no task and no timer.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from itertools import islice

from shoal.cluster import truncation as stability
from shoal.cluster.truncation import Holding, Waiting
from shoal.crdt.applier import What
from shoal.crdt.dot import Dot
from shoal.crdt.rows import POSITION_BYTES, Stamp, successor
from shoal.errors import ShoalError, StoreCorrupt
from shoal.kinds.document.state import compaction, document, repeats
from shoal.kinds.file import state as files
from shoal.kinds.file.serving.files import referred
from shoal.kinds.items.serving import indexes
from shoal.kinds.journal.state import trimming
from shoal.kinds.journal.state.events import PLACE_BYTES
from shoal.kinds.label import state as notes
from shoal.kinds.thread.serving import pruning as sweeping
from shoal.kinds.thread.serving.pruning import SLICE, Marking
from shoal.kinds.thread.state import dag, pruning
from shoal.node.collection.answers import Erasure
from shoal.node.collection.entries import Garbage, GarbageEntry, Made, dead_range, left_by, pack, rows_of, unpack
from shoal.node.context import NodeContext
from shoal.node.handler import Target
from shoal.node.mutation import Mutation
from shoal.node.replicas import Replicas
from shoal.node.transaction import ObjectRows, Transaction
from shoal.node.turns import Resting, Steps, at_once, document_pace, lasting
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.keys import Kind

# At least this long between two runs that give back the space of erased data. Each changes options of RocksDB twice, which
# holds the whole process until some files are synced: 20 to 70 ms each time. On a slow disk they are rarer still: the next one
# begins so many times as long after the last as that took.
RECLAIM_INTERVAL_S = 60.0
RECLAIM_REST = 2000

LOOKED_AT_MAX = 64  # Entries in one look.
_MARKS_AT_ONCE = 128  # Marks of pruned checkpoints that are read before others get a turn.
_NOTES_AT_ONCE = 256  # Rows of notes that are removed in one write.
_EVENTS_AT_ONCE = 256  # Payloads of trimmed or erased events that are removed in one write.
_CHUNKS_AT_ONCE = 64  # Chunks of files that are removed in one write.
_LOOKS_MAX = 4  # For values that refer to dropped files, while the thread is written. Then it looks in one step.
_BOUNDS_MAX = 4096  # Entries whose bound is remembered; for any other it is computed again.


class Piece(NamedTuple):
    """A part of what an entry names: rows and ranges to remove in one batch."""

    rows: dict[bytes, bytes | None]
    ranges: list[tuple[bytes, bytes]]


_NOTHING = Piece({}, [])

Sweep = Callable[[list[GarbageEntry]], Iterator[Piece]]  # Of entries of one generation of one object.


class Collector:
    """The queue of garbage and its sweep. `storage` is the one that `commit` writes to."""

    def __init__(self, context: NodeContext, erasure: Erasure) -> None:
        self._storage = context.storage
        self._commit = context.commit
        self._erasure = erasure
        self._partitions = context.partitions
        self._config = context.config
        self._pace = document_pace()
        self._now = context.environment.monotonic
        self._environment = context.environment
        self._requests = lambda: context.sharing.waiting
        self._replicas: Replicas | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting: OrderedDict[bytes, Waiting] = OrderedDict()
        self._sweeps: dict[What, Sweep] = {
            What.GENERATION: _generation,
            What.CHECKPOINTS: self._checkpoints,
            What.EVENTS: self._events,
            What.UPDATES: self._updates,
            What.VALUES: self._values,
            What.NOTES: self._notes,
            What.FILES: self._files,
        }
        self.markings: dict[Target, Marking] = {}  # Under way.
        self.unmoved: set[Target] = set()  # Threads that are looked through, and that no change has reached meanwhile.
        self._made = Made(context.storage, context.commit)
        self._held: Counter[Target] = Counter()
        self._after = keys.GARBAGE  # Where the last look ended.
        self._reclaim_at = 0.0
        self._unreclaimed = False
        self._stopped = False
        self.waits_for: list[str] = []  # The replicas, by address, or repairs that the entries of the last look wait for.
        self.swept = 0  # Entries, in this incarnation.
        self.died = 0  # Changes that arrived after their generation had ended, in this incarnation.

    def start(self, replicas: Replicas) -> None:
        """Continue with the entries of earlier openings. `replicas` knows what the other owners hold."""
        self._replicas = replicas
        if self.count(1):
            self._stir()

    async def stop(self) -> None:
        """Cancel the sweep; the next opening continues it. Stopping twice is allowed."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def enter_left(self, transaction: Transaction, stamp: Stamp, target: Target, change: Mutation) -> None:
        """Add an entry for what this change leaves."""
        left = left_by(stamp, change)
        assert left is not None
        self.enter(transaction, stamp, left.what, target, left.generation, left.ends)

    def enter(
        self, transaction: Transaction, stamp: Stamp, what: What, target: Target, generation: int, ends: bytes = b""
    ) -> None:
        """Add an entry for what the operation with this stamp erases of an object."""
        garbage = Garbage(what, target.kind, target.space, target.name, generation, ends)
        transaction.put(keys.garbage(target.partition, stamp.dot, stamp.nth), pack(garbage))
        if target not in self._held:
            transaction.when_written(self._stir)

    @contextmanager
    def held(self, target: Target) -> Iterator[None]:
        """Sweep nothing of an object meanwhile: a look for what is unused reads all of it, so one look should do."""
        self._held[target] += 1
        try:
            yield
        finally:
            self._held[target] -= 1
            self._held += Counter()  # Without those at zero.
            if self.count(1):
                self._stir()

    def replaced(self, number: int) -> None:
        """Look at the entries of a partition anew, because its rows were replaced."""
        prefix = keys.rows_of(keys.GARBAGE, number)[0]
        for key in [key for key in self._waiting if key.startswith(prefix)]:
            del self._waiting[key]
        if self.count(1):
            self._stir()

    def count(self, most: int) -> int:
        """The number of entries in the queue; counting stops at `most`."""
        return sum(1 for _ in self._storage.scan(keys.GARBAGE, successor(keys.GARBAGE), limit=most))

    def _stir(self) -> None:
        if self._task is None and not self._stopped and self._replicas is not None:
            self._task = lasting(self._run(), "sweeping of deleted rows")

    async def _run(self) -> None:
        try:
            while not self._stopped and (self._unreclaimed or self.count(1)):
                moved = await self._look()
                self._reclaim()
                await asyncio.sleep(0 if moved else self._config.sync_interval_s)
        except ShoalError:
            return  # Storage rejects writes or cannot be read. The next entry, or the next incarnation, starts this again.
        finally:
            self._task = None

    async def _look(self) -> bool:
        """Look at the next entries and sweep the stable ones; True if any was swept."""
        waits: dict[str, None] = {}
        stable: dict[Garbage, list[GarbageEntry]] = {}
        entries = list(self._entries())
        for entry in entries:
            if entry is None:
                waits["a repair of what a disk altered in the queue of garbage"] = None
                continue
            if entry.garbage.target in self._held or entry.partition in self._partitions.closed:
                continue
            if await self._stable(entry, waits):
                stable.setdefault(entry.garbage, []).append(entry)
        moved = False
        for garbage, group in stable.items():
            try:
                await self._sweep(group)
                moved = True
            except StoreCorrupt:
                waits[f"a repair of {garbage.target.kind.label} {garbage.name!r}"] = None
        if len(entries) < LOOKED_AT_MAX:
            self._after = keys.GARBAGE
        self.waits_for = list(waits)
        return moved

    def _entries(self) -> Iterator[GarbageEntry | None]:
        """The next entries, as their operations make them; None for one that was altered, which holds up no others."""
        for key, packed in list(self._storage.scan(self._after, successor(keys.GARBAGE), limit=LOOKED_AT_MAX)):
            partition, dot = keys.split_garbage(key)
            self._after = key + b"\x00"
            try:
                garbage = self._made.of(key, packed)
            except StoreCorrupt:
                garbage = None
            yield None if garbage is None else GarbageEntry(key, partition, dot, garbage)

    async def _stable(self, entry: GarbageEntry, waits: dict[str, None]) -> bool:
        assert self._replicas is not None
        partition = self._partitions.load(entry.partition)
        vector, dot = partition.vector, entry.dot
        await self._commit.wait_durable(self._partitions.written(entry.partition))
        others = self._replicas.holdings(entry.partition)
        holdings = [Holding(vector, vector), *others.values()]
        floor = partition.retired.summary.floor
        if dot.origin not in vector and floor:  # It was retired: who has applied all retirements holds it.
            if any(holding.whole is None or not holding.whole.dominates(floor) for holding in holdings):
                waits.update(dict.fromkeys(name for name, holding in others.items() if not holding.vector.dominates(floor)))
                return False
            dot = Dot(*floor.entries()[0])
        waiting = stability.advanced(self._waiting.get(entry.key, Waiting(dot))._replace(dot=dot), holdings)
        if stability.is_stable(waiting, holdings):
            self._waiting.pop(entry.key, None)
            return True
        self._waiting[entry.key] = waiting
        while len(self._waiting) > _BOUNDS_MAX:
            self._waiting.popitem(last=False)
        waits.update(dict.fromkeys(name for name, holding in others.items() if stability.lacks(waiting, holding)))
        return False

    async def _sweep(self, entries: list[GarbageEntry]) -> None:
        partition, pace = self._partitions.load(entries[0].partition), Resting(self._environment, self._requests)
        for piece in self._sweeps[entries[0].garbage.what](entries):
            if partition.closed:
                return  # It is replaced: what was read of it does not count.
            if piece.rows or piece.ranges:
                self._commit.write(piece.rows, piece.ranges)
            await pace.rest()
        if partition.closed:
            return
        transaction = Transaction(self._storage)
        for entry in entries:
            transaction.delete(entry.key)
        self._erasure.note(transaction)
        self._commit.write(transaction.rows)
        transaction.written()
        self.swept += len(entries)
        self._unreclaimed = True

    def _checkpoints(self, entries: list[GarbageEntry]) -> Iterator[Piece]:
        garbage = entries[0].garbage
        target = garbage.target

        def rows() -> ObjectRows:
            return rows_of(Transaction(self._storage), target, garbage.generation)

        unstable = {entry.dot for entry in self._others(entries)}
        ids: list[bytes] = []
        after: bytes | None = None
        while some := list(pruning.marks(rows(), after=after, limit=_MARKS_AT_ONCE)):
            ids += [id for id, dot in some if dot not in unstable]
            after = some[-1][0]
            yield _NOTHING
        marking = self.markings[target] = Marking(set(ids))
        try:
            for _ in marking.run(rows):
                yield _NOTHING
            for start in range(0, len(ids), SLICE):
                freed = sweeping.freed(rows(), marking, ids[start : start + SLICE])
                yield Piece({rows().key(row): value for row, value in freed}, [])
        finally:
            del self.markings[target]
        after = None
        while moves := list(islice(dag.moves(rows(), after=after), _MARKS_AT_ONCE)):
            here = rows()
            yield Piece({here.key(row): None for move in moves if pruning.is_over(here, move) for row in move.rows}, [])
            after = moves[-1].token
        after = None
        while remembered := pruning.swept(rows(), after=after, limit=_MARKS_AT_ONCE):
            yield Piece({rows().key(dag.SWEPT + id): None for id, is_over in remembered if is_over}, [])
            after = remembered[-1][0]

    def _events(self, entries: list[GarbageEntry]) -> Iterator[Piece]:
        """The payloads that these equal trims removed. Other trims may remove some of them as well."""
        garbage = entries[0].garbage
        ends = [garbage.ends[start : start + PLACE_BYTES] for start in range(0, len(garbage.ends), PLACE_BYTES)]
        after: bytes | None = None
        while True:
            rows = rows_of(Transaction(self._storage), garbage.target, garbage.generation)
            some = list(islice(trimming.swept(rows, ends, after=after), _EVENTS_AT_ONCE))
            yield Piece({rows.key(row): None for row in some}, [])
            if len(some) < _EVENTS_AT_ONCE:
                return
            after = some[-1]  # From the beginning it would pass all rows that were deleted.

    def _values(self, entries: list[GarbageEntry]) -> Iterator[Piece]:
        garbage = entries[0].garbage
        rows = rows_of(Transaction(self._storage), garbage.target, garbage.generation)
        positions = [garbage.ends[start : start + POSITION_BYTES] for start in range(0, len(garbage.ends), POSITION_BYTES)]
        for start in range(0, len(positions), _EVENTS_AT_ONCE):
            some = positions[start : start + _EVENTS_AT_ONCE]
            yield Piece({rows.key(trimming.aside(position)): None for position in some}, [])

    def _notes(self, entries: list[GarbageEntry]) -> Iterator[Piece]:
        garbage = entries[0].garbage
        cut = notes.unpack_cut(garbage.ends)
        after: bytes | None = None
        is_last = False
        while not is_last:
            transaction = Transaction(self._storage)
            rows = rows_of(transaction, garbage.target, garbage.generation)
            some = list(islice(notes.swept(rows, cut, after=after), _NOTES_AT_ONCE))
            for row in some:
                after = row
                rows.delete(row)
            if is_last := len(some) < _NOTES_AT_ONCE:
                notes.settle(rows, cut)
            yield Piece(transaction.rows, [])

    def _updates(self, entries: list[GarbageEntry]) -> Iterator[Piece]:
        """The updates that a compaction covers, after a check that it contains them; the rows of the requests that were
        carried out by these; and the compactions that are superseded.

        Raises:
            StoreCorrupt: the compaction lacks something or is damaged. Nothing is removed.
        """
        garbage = entries[0].garbage
        position, digest = garbage.ends[:POSITION_BYTES], garbage.ends[POSITION_BYTES:]

        def rows() -> ObjectRows:
            return rows_of(Transaction(self._storage), garbage.target, garbage.generation)

        found = compaction.find(rows(), position)
        if found is None:
            return  # It was swept with its generation, or never arrived.
        for _ in compaction.proved(rows, found, digest, self._pace):
            yield _NOTHING
        snapshot_key = garbage.target.snapshot_key
        snapshot = self._storage.get(snapshot_key)
        if snapshot is not None and snapshot[:POSITION_BYTES] < position:
            yield Piece({snapshot_key: None}, [])  # Swept updates may be later than it, and be only in the merged update.
        for page in compaction.swept(rows, found, self._pace):
            yield Piece({rows().key(document.row_of(at)): None for at, _ in page}, [])
        for requests in compaction.settled(rows, found, self._pace):
            transaction = Transaction(self._storage)
            repeats.forget(rows_of(transaction, garbage.target, garbage.generation), requests)
            yield Piece(transaction.rows, [])
        here = rows()
        gone = self._settled(entries[0], compaction.superseded_by(here, found))
        if self._settled(entries[0], compaction.superseding(here, position, found.coverage)):
            gone.append(position)
        pieces: dict[bytes, bytes | None] = {here.key(row): None for at in gone for row in compaction.rows_of(at)}
        most = self._config.document_snapshot_updates
        if sum(1 for _ in islice(document.updates(here), most)) < most:
            pieces[snapshot_key] = None  # The merged update replaces it.
        yield Piece(pieces, [])

    def _files(self, entries: list[GarbageEntry]) -> Iterator[Piece]:
        """The dropped contents to which nothing refers, and the chunks that are in no other content."""
        garbage = entries[0].garbage
        contents, digests = files.unpack_dropped(garbage.ends)
        partition = self._partitions.load(entries[0].partition)

        def rows() -> ObjectRows:
            return rows_of(Transaction(self._storage), garbage.target, garbage.generation)

        over = [content for content in contents if files.is_over(rows(), content)]
        hashes = {content[: files.DIGEST_BYTES] for content in over}
        for _ in range(_LOOKS_MAX):
            kept: Collection[bytes] = ()
            self.unmoved.add(garbage.target)
            if hashes:
                kept = yield from _stepped(referred(rows, hashes))
            if garbage.target in self.unmoved and self._partitions.load(entries[0].partition) is partition:
                break
        else:  # Values may have moved meanwhile, from where it had not looked to where it had.
            kept = at_once(referred(rows, hashes))
        self.unmoved.discard(garbage.target)
        gone = [content for content in over if content[: files.DIGEST_BYTES] not in kept and files.is_over(rows(), content)]
        here = rows()
        for content in gone:
            yield Piece({here.key(row): None for row in files.rows_of(here, content)}, [])
        for start in range(0, len(digests), _CHUNKS_AT_ONCE):
            here = rows()
            unused = [digest for digest in digests[start : start + _CHUNKS_AT_ONCE] if files.is_unused(here, digest)]
            yield Piece({here.key(row): None for digest in unused for row in files.chunk_rows(digest)}, [])

    def is_sweeping_files(self, target: Target) -> bool:
        """Whether a drop of the thread's files waits to be swept."""
        prefix = keys.GARBAGE + target.partition.to_bytes(2, "big")
        found = (unpack(packed) for _, packed in self._storage.scan(prefix, successor(prefix)))
        return any(garbage.what is What.FILES and garbage.target == target for garbage in found)

    def _settled(self, entry: GarbageEntry, positions: list[bytes]) -> list[bytes]:
        """Those of the erasers at these positions, in the partition of this entry, that are no longer in the queue."""

        def waits(position: bytes) -> bool:
            nth = int.from_bytes(position[-2:], "big")
            return self._storage.get(keys.garbage(entry.partition, document.dot_of(position), nth)) is not None

        return [position for position in positions if not waits(position)]

    def _others(self, entries: list[GarbageEntry]) -> Iterator[GarbageEntry]:
        """The entries with the same value that are not among these."""
        partition, garbage = entries[0].partition, entries[0].garbage
        prefix = keys.GARBAGE + partition.to_bytes(2, "big")
        mine = {entry.key for entry in entries}
        for key, packed in list(self._storage.scan(prefix, successor(prefix))):
            if key not in mine and self._made.of(key, packed) == garbage:
                yield GarbageEntry(key, *keys.split_garbage(key), garbage)

    def reclaim_soon(self) -> None:
        """Rows were deleted elsewhere: have their space given back with that of swept ones."""
        self._unreclaimed = True
        self._stir()

    def _reclaim(self) -> None:
        """Have storage give back the space of swept rows, at most once per `RECLAIM_INTERVAL_S`: it costs a new log, and holds
        the process. At most a thousandth of the time is held so, with the call that ends it.
        """
        if self._unreclaimed and (began_s := self._now()) >= self._reclaim_at:
            self._storage.reclaim()
            self._unreclaimed = False
            took_s = self._now() - began_s
            self._reclaim_at = self._now() + max(RECLAIM_INTERVAL_S, took_s * RECLAIM_REST)


def _stepped(steps: Steps[dict[bytes, bytes]]) -> Generator[Piece, None, dict[bytes, bytes]]:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: dict[bytes, bytes] = done.value
            return found
        yield _NOTHING


def _generation(entries: list[GarbageEntry]) -> Iterator[Piece]:
    garbage = entries[0].garbage
    dead = dead_range(garbage.target, garbage.generation + 1)
    yield Piece({}, [dead, indexes.range_of(*dead)] if garbage.target.kind is Kind.ITEMS else [dead])
