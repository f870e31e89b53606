"""Folds what a backup holds, up to a moment, into an empty storage.

Laws:
- A restore is a fresh directory: it has the operations of the old origins, and an identity of its own. It was never a member of
  a cluster, and its first write takes a new origin. Nothing of the nodes that shipped is in it but their operations.
- The moment is a time of the hybrid logical clock, which respects causality: operations up to it, and no others, are a state
  that could have been. A base counts only if all that made its rows is as old.
- All is checked as what a peer sends: hashes, chains, partitions, and that no operation is missing before another. What is
  missing is said, and nothing is guessed.
- Rules of retention in it let nothing go until they are set once more (`shoal.kinds.retention.serving.keeper`).
- What is written is marked: each base, and each pack of operations, once all of it is. So another attempt goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shoal.backup.bucket import Bucket
from shoal.backup.format import (
    Base,
    Entry,
    Moment,
    Pack,
    Part,
    damaged,
    read_content,
    read_entries,
    read_index,
    uncovered,
    unpacked_vector,
)
from shoal.cluster import operation
from shoal.cluster.delivery import Arrival
from shoal.cluster.messages import Shipment
from shoal.cluster.operation import Reach, Readiness, readiness
from shoal.config import Config
from shoal.crdt.dot import HORIZON, NOTHING_SEEN, Dot, Origin, wall_ms_of
from shoal.crdt.rows import successor
from shoal.encryption import KeyService
from shoal.errors import (
    BadOperation,
    InvalidValue,
)
from shoal.kinds.retention.serving.keeper import RESTORED
from shoal.node.context import NodeContext, context_of
from shoal.node.database import Database
from shoal.node.environment import Environment
from shoal.node.snapshots import switching
from shoal.node.snapshots.checking import Checker
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.commit import GroupCommit, LoggedStorage

if TYPE_CHECKING:
    from shoal.node.backup.sealing import Opened, Opener

STEP_OPERATIONS_MAX = 256  # Applied in one write,
STEP_BYTES_MAX = 1 << 20  # or so many bytes.
AT_ONCE = 16  # Indexes of packs that are asked for at the same time, if only some partitions are wanted.
_MARK = "restored/"  # Rows about what is written: a partition whose base is, or how many packs of operations are.


class Restored(NamedTuple):
    """The outcome of a restore."""

    partitions: int
    operations: int  # That were applied, beside those in the bases.
    bytes: int  # That were read.
    moment_ms: int  # Nothing later is in it.
    through_ms: int  # The last moment of which a node said that the backup holds everything it had.


class Progress(NamedTuple):
    """How far a restore is."""

    bytes: int
    total: int  # 0: some partitions are read, and how much that is in all is not known.


Watcher = Callable[[Progress], None]


async def folded(
    storage: LoggedStorage,
    bucket: Bucket,
    wanted: Moment,
    *,
    config: Config,
    environment: Environment,
    only: Collection[int] | None = None,
    told: Watcher = lambda _: None,
    master: KeyService | None = None,
) -> Restored:
    """Write what a moment needs into an empty storage, and close it. What is sealed is opened by the master key of `config`.

    Raises:
        MasterKeyWrong: it is sealed, and there is no master key, or it is the wrong one.
        BackupDamaged, BackupUnreachable: the backup cannot be read, or lacks something.
        StorageFull, StorageError: the storage cannot be written.
    """
    commit = GroupCommit(
        storage,
        run_blocking=environment.run_blocking,
        writes_pending_max=config.writes_pending_max,
        on_durable=None,
        now=environment.monotonic,
    )
    try:
        context = context_of(storage, commit, config, environment)
        folding = Folding(context, bucket, wanted, only=only, told=told, master=master or config.encryption_key)
        await folding.run()
        until_ms = max(environment.now_ms(), folding.restored.moment_ms)
        commit.write({RESTORED: until_ms.to_bytes(8, "big")})
        commit.write(context.incarnation.closing())
        await commit.wait_durable(commit.written)
        return folding.restored
    finally:
        await commit.close()
        await environment.run_blocking(storage.close)


class Folding:
    """One restore into an empty storage."""

    def __init__(
        self,
        context: NodeContext,
        bucket: Bucket,
        wanted: Moment,
        *,
        only: Collection[int] | None,
        told: Watcher,
        master: str | KeyService,
    ) -> None:
        self._bucket = bucket
        self._master = master
        self._opener: Opener | None = None
        self._wanted = wanted
        self._only = only
        self._told = told
        self._storage, self._commit = context.storage, context.commit
        self._environment = context.environment
        self._pending_max = max(1, context.config.writes_pending_max // 2)
        self._partitions = context.partitions
        self._database = Database(context, replaced=lambda: None)
        self._seen: set[int] = set()
        self._bytes = self._operations = 0
        self._held: tuple[str, bytes] = ("", b"")  # The pack that was read last,
        self._index: tuple[str, list[Part]] = ("", [])  # or the index of one of which some parts are read.
        packs = bucket.catalogue.packs
        pieces = {name for base in wanted.bases.values() for name, _ in base.pieces if name in packs}
        whole = sum(packs[name].size for name in pieces) + sum(pack.size for pack in wanted.segments)
        self._total = whole if only is None else 0

    @property
    def restored(self) -> Restored:
        """The outcome so far."""
        head = self._bucket.catalogue.head
        last = max([0, *(tip.hlc for number in self._seen for tip in self._partitions.load(number).tips.values())])
        return Restored(
            len(self._seen), self._operations, self._bytes, wall_ms_of(last), 0 if head is None else head.through_ms
        )

    async def run(self) -> None:
        """Write the bases, then apply the operations after them.

        Raises:
            ShoalError: as `folded`.
        """
        marks = dict(self._storage.scan(keys.meta(_MARK), successor(keys.meta(_MARK))))
        for base in sorted(self._wanted.bases.values(), key=lambda base: base.pieces[:1]):
            mark = self._mark(base.partition)
            if mark not in marks:
                await self._begin(base.partition)
                await self._base(base)
                self._commit.write({mark: b""})
            self._seen.add(base.partition)
        await self._commit.wait_durable(self._commit.written)
        segments, done = self._wanted.segments, keys.meta(f"{_MARK}segments")
        for at in range(int(marks.get(done, b"0")), len(segments), AT_ONCE):
            for pack, parts in await self._indexed(segments[at : at + AT_ONCE]):
                await self._segment(pack, parts)
            self._commit.write({done: b"%d" % min(at + AT_ONCE, len(segments))})
            await self._room()
        self._commit.write(dict.fromkeys((*marks, done, *map(self._mark, self._wanted.bases))))

    @staticmethod
    def _mark(number: int) -> bytes:
        return keys.meta(f"{_MARK}{number}")

    async def _begin(self, number: int) -> None:
        """Remove what an attempt that was killed has written of a base."""
        self._commit.write({}, [keys.rows_of(table, number) for table in keys.PARTITION_TABLES])
        await self._room()

    async def _indexed(self, packs: list[Pack]) -> list[tuple[Pack, list[Part] | None]]:
        """Packs with the parts that are needed; None: they are read as wholes. Those that have none are left out."""
        only = self._only
        if only is None:
            return [(pack, None) for pack in packs]
        indexes = await asyncio.gather(*(self._bucket.index(pack) for pack in packs))
        found = [[part for part in index if part.partition in only and self._is_needed(part)] for index in indexes]
        return [(pack, parts) for pack, parts in zip(packs, found, strict=True) if parts]

    # ── bases ─────────────────────────────────────────────────────────────────

    async def _base(self, base: Base) -> None:
        """Write the rows of a base, each piece once it is checked: the directory is used only if all of them are sound."""
        number = base.partition
        checker, entries = Checker(number, clock=base.hlc), switching.Entries()
        try:
            for at, (name, nth) in enumerate(base.pieces):
                piece = await self._piece(name, nth, number)
                if (cipher := await self._cipher(self._bucket.catalogue.packs[name])) is not None:
                    piece = cipher.rows(number, at, base.hlc, piece)
                rows = checker.take(piece)
                self._commit.write(entries.added_to(rows))
                await self._room()
            content = checker.finish()
        except BadOperation as error:
            raise damaged(f"the base of partition {number} is unsound: {error.message}") from None
        vector = unpacked_vector(base.vector)
        held = {origin: tip.sequence for origin, tip in content.tips.items()}
        if any(held.get(origin, 0) != sequence for origin, sequence in vector.items() if origin != HORIZON):
            raise damaged(f"the base of partition {number} has other operations than its manifest says")

    async def _piece(self, name: str, nth: int, number: int) -> bytes:
        pack = self._bucket.catalogue.packs.get(name)
        if pack is None:
            raise damaged(f"the base of partition {number} names {name}, and no manifest does")
        content = b""
        if self._only is None:
            parts, content = await self._whole(pack)
        else:
            if self._index[0] != name:
                self._index = name, await self._bucket.index(pack)
            parts = self._index[1]
        if nth >= len(parts) or parts[nth].partition != number:
            raise damaged(f"{name} has no part {nth} of partition {number}")
        part = parts[nth]
        if self._only is None:
            return content[part.start : part.start + part.size]
        self._read(part.size)
        return await self._bucket.part(pack, part)

    async def _whole(self, pack: Pack) -> tuple[list[Part], bytes]:
        """A pack as a whole; those that follow each other are mostly the same."""
        if self._held[0] != pack.name:
            _, content = await self._bucket.whole(pack)
            self._held = pack.name, content
            self._read(pack.size)
        content = self._held[1]
        return read_index(content[pack.index :], pack), content

    def _read(self, size: int) -> None:
        self._bytes += size
        self._told(Progress(self._bytes, self._total))

    # ── operations ────────────────────────────────────────────────────────────

    async def _segment(self, pack: Pack, needed: list[Part] | None) -> None:
        cipher = await self._cipher(pack)
        for part, content in await self._parts(pack, needed):
            for some in self._steps(part.partition, read_entries(content, pack.name), pack, cipher):
                self._apply(some, pack)
                self._seen.add(part.partition)
                await self._room()

    async def _parts(self, pack: Pack, needed: list[Part] | None) -> list[tuple[Part, bytes]]:
        """The parts of a segment that are needed; each with its bytes."""
        if needed is None:
            parts, content = await self._bucket.whole(pack)
            self._read(pack.size)
            return [(part, content[part.start : part.start + part.size]) for part in parts if self._is_needed(part)]
        found = [(part, await self._bucket.part(pack, part)) for part in needed]
        self._read(sum(part.size for part in needed))
        return found

    def _is_needed(self, part: Part) -> bool:
        base = self._wanted.bases.get(part.partition)
        vector = NOTHING_SEEN if base is None else unpacked_vector(base.vector)
        return part.first_hlc <= self._wanted.hlc and uncovered(part, vector)

    def _steps(self, number: int, entries: Sequence[Entry], pack: Pack, cipher: Opened | None) -> Iterator[list[Arrival]]:
        """The operations of a part that are to be applied, some at a time."""
        some: list[Arrival] = []
        size = 0
        reach = Reach(self._partitions.load(number).vector)
        for entry in entries:
            if entry.hlc > self._wanted.hlc:
                continue
            arrival = self._arrival(number, entry, pack, cipher)
            state = readiness(reach, arrival.dot, arrival.body.context)
            if state is Readiness.SEEN:
                continue
            if state is Readiness.EARLY:
                raise damaged(
                    f"an operation of partition {number} is missing before operation {entry.sequence} of origin "
                    f"{entry.origin.hex()}, of {date(wall_ms_of(entry.hlc))}"
                )
            reach.take(arrival.dot)
            some.append(arrival)
            size += arrival.bytes
            if len(some) >= STEP_OPERATIONS_MAX or size >= STEP_BYTES_MAX:
                yield some
                some, size = [], 0
                reach = Reach(self._partitions.load(number).vector)
        if some:
            yield some

    def _arrival(self, number: int, entry: Entry, pack: Pack, cipher: Opened | None) -> Arrival:
        content = entry.content
        if cipher is not None:
            content = cipher.operation(number, entry.origin, entry.sequence, content)
        packed, beside = read_content(content, pack.name)
        try:
            body = operation.decode(packed)
        except InvalidValue as error:
            raise damaged(f"operation {entry.sequence} of origin {entry.origin.hex()}: {error.message}") from None
        if body.hlc != entry.hlc:
            raise damaged(f"operation {entry.sequence} of origin {entry.origin.hex()} has another time than its segment says")
        shipment = Shipment(number, entry.origin, entry.sequence, entry.chain, packed, beside)
        return Arrival(shipment, body, Dot(Origin(entry.origin), entry.sequence))

    def _apply(self, some: list[Arrival], pack: Pack) -> None:
        received = self._database.exchange.incoming.apply(some)
        if received.refused:
            _, error = received.refused[0]
            raise damaged(f"{pack.name} holds an operation that cannot be applied: {error.message}")
        if len(received.applied) != len(some):
            raise damaged(f"{pack.name} holds an operation that cannot be applied")
        self._operations += len(some)

    async def _cipher(self, pack: Pack) -> Opened | None:
        """The keys under which a pack is sealed; None: it is plain, and the code of encryption is not loaded."""
        if not pack.sealed:
            return None
        if self._opener is None:
            from shoal.node.backup.sealing import Opener

            self._opener = Opener(self._bucket, self._master, self._environment)
        return await self._opener.keys(pack.sealed)

    async def _room(self) -> None:
        if self._commit.written - self._commit.durable > self._pending_max:
            await self._commit.wait_durable(self._commit.written)
        else:
            await self._environment.pause()


def date(ms: int, *, later: bool = False) -> str:
    """A moment, for people: the second in which it is, or that which is not before it."""
    return datetime.fromtimestamp(-(-ms // 1000) if later else ms // 1000, UTC).isoformat(sep=" ", timespec="seconds")
