"""Makes a directory of what a backup holds, up to a moment.

Laws:
- A restore is a fresh directory: it has the operations of the old origins, and an identity of its own. It was never a member of
  a cluster, and its first write takes a new origin. Nothing of the nodes that shipped is in it but their operations.
- The moment is a time of the hybrid logical clock, which respects causality: operations up to it, and no others, are a state
  that could have been. A base counts only if all that made its rows is as old.
- All is checked as what a peer sends: hashes, chains, partitions, and that no operation is missing before another. What is
  missing is said, and nothing is guessed.
- Rules of retention in it let nothing go until they are set once more (`shoal.kinds.retention.serving.keeper`).
- The directory appears whole: until then it has no `FORMAT`, so that no node opens it.
- A restore that was killed, or could not reach the bucket, is gone on with by the next one of the same moment: it has kept its
  plan, and each base and each pack is marked once all of it is written. Of another moment nothing is used.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from shoal.backup.bucket import Bucket, ObjectStore, read
from shoal.backup.format import (
    ERASED,
    Base,
    Catalogue,
    Entry,
    Moment,
    Pack,
    Part,
    damaged,
    encode,
    incomplete,
    moment_of,
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
from shoal.crdt.clock import COUNTER_BITS, wall_ms_of
from shoal.crdt.dot import HORIZON, NOTHING_SEEN, Dot, Origin
from shoal.crdt.rows import successor
from shoal.encryption import KeyService
from shoal.errors import (
    BackupDamaged,
    BackupUnreachable,
    BadOperation,
    InvalidInput,
    InvalidValue,
    MomentMissing,
    StoreCorrupt,
    StoreLocked,
)
from shoal.kinds.retention.serving.keeper import RESTORED
from shoal.names import is_colocated
from shoal.node.context import NodeContext, context_of
from shoal.node.database import Database
from shoal.node.environment import Environment, system_environment
from shoal.node.snapshots import switching
from shoal.node.snapshots.checking import Checker
from shoal.records import NamedTuple
from shoal.storage import keys, layout
from shoal.storage.commit import GroupCommit, LoggedStorage
from shoal.storage.opening import open_storage
from shoal.version import __version__

if TYPE_CHECKING:
    from shoal.node.backup.sealing import Opened, Opener

STEP_OPERATIONS_MAX = 256  # Applied in one write,
STEP_BYTES_MAX = 1 << 20  # or so many bytes.
AT_ONCE = 16  # Indexes of packs that are asked for at the same time, if only some partitions are wanted.
_UNFINISHED = (
    "restoring"  # Within the directory, on the same file system. No node opens a directory that holds this and no `FORMAT`.
)
_PLAN = "PLAN"  # Within that: what is restored,
_STORE = "store"  # the store in the making,
_WHOLE = "WHOLE"  # and that all of it is there, and is to be moved up.
_MARK = "restored/"  # Rows about what is written: a partition whose base is, or how many packs of operations are.
_MOVED = ("LOCK", "WITNESS", "KEYS", "db")  # `FORMAT` follows them.


class Restored(NamedTuple):
    """The outcome of a restore."""

    partitions: int
    operations: int  # That were applied, beside those in the bases.
    bytes: int  # That were read.
    moment_ms: int  # Nothing later is in it.
    through_ms: int  # The last moment of which a node said that the backup holds everything it had.


class _Plan(Struct, array_like=True, frozen=True):
    """The plan of a restore, as it is kept beside what it has written."""

    version: str  # Of Shoal: another one might write other rows.
    cluster: bytes
    moment_ms: int | None
    partitions: list[int] | None
    hlc: int
    bases: list[Base]
    segments: list[Pack]
    packs: list[Pack]
    through_ms: int


class Progress(NamedTuple):
    """How far a restore is."""

    bytes: int
    total: int  # 0: some partitions are read, and how much that is in all is not known.


Watcher = Callable[[Progress], None]


async def restore(
    url: str,
    directory: Path,
    *,
    moment: int | None = None,
    partitions: Collection[int] | None = None,
    config: Config | None = None,
    progress: Watcher = lambda _: None,
    open_store: Callable[[str], ObjectStore] | None = None,
) -> Restored:
    """Make a store in `directory`, which is missing or empty, of the backup at `url`.

    `moment` is in milliseconds since 1970; without it everything is restored. `partitions`: these alone. `config` says whether
    the new directory is encrypted (`encryption_key`).

    Raises:
        InvalidInput: the directory is not empty, or `url` is no address. Nothing was written.
        MomentMissing: the backup does not reach back so far. Nothing was written.
        BackupDamaged, BackupUnreachable, BackupConflict: the backup cannot be read, or lacks something. No store was made.
        StorageError: the directory cannot be written. No store was made.
    """
    environment = system_environment()
    try:
        store = (open_store or environment.open_bucket)(url)
        bucket = Bucket(store, now=environment.monotonic)
        return await _begun(bucket, directory, environment, moment, config or Config(), partitions, progress)
    finally:
        environment.close()


async def restored_from(bucket: Bucket, directory: Path, *, moment: int | None, config: Config) -> Restored:
    """As `restore`, of a bucket that is open."""
    environment = system_environment()
    try:
        return await _begun(bucket, directory, environment, moment, config, None, lambda _: None)
    finally:
        environment.close()


async def _begun(
    bucket: Bucket,
    directory: Path,
    environment: Environment,
    moment: int | None,
    config: Config,
    partitions: Collection[int] | None,
    progress: Watcher,
) -> Restored:
    found = _left(directory)
    catalogue = await read(bucket)
    assert catalogue.head is not None
    only = None if partitions is None else sorted(partitions)
    request = (__version__, catalogue.head.cluster, moment, only)
    if found is not None and (found.version, found.cluster, found.moment_ms, found.partitions) == request:
        wanted = Moment(found.hlc, {base.partition: base for base in found.bases}, found.segments)
        catalogue.packs = {pack.name: pack for pack in found.packs} | catalogue.packs
        try:
            made = await _restored(bucket, directory, wanted, config, environment, partitions, progress)
            return made._replace(through_ms=found.through_ms)  # What was shipped since then is not in it.
        except (StoreCorrupt, BackupDamaged):  # Its packs have gone meanwhile, or its rows are not sound.
            pass
    _check_empty(directory)
    wanted = plan(catalogue, moment, partitions)
    names = {name for base in wanted.bases.values() for name, _ in base.pieces}
    packs = [pack for name, pack in catalogue.packs.items() if name in names]
    kept = _Plan(*request, wanted.hlc, list(wanted.bases.values()), wanted.segments, packs, catalogue.head.through_ms)
    unfinished = directory / _UNFINISHED
    unfinished.mkdir(parents=True)
    await environment.run_blocking(partial(layout.replace_file, unfinished / _PLAN, encode(kept)))
    return await _restored(bucket, directory, wanted, config, environment, partitions, progress)


def _left(directory: Path) -> _Plan | None:
    """The plan of a restore into this directory that did not come to its end; None: there is none."""
    if (directory / layout.FORMAT).exists():
        return None
    try:
        return msgspec.msgpack.decode((directory / _UNFINISHED / _PLAN).read_bytes(), type=_Plan)
    except (OSError, ValueError):
        return None


def partitions_of(space: str, name: str | None) -> list[int] | None:
    """The partitions that hold an object of a space, or without a name all of them; None: any may."""
    if name is None and not is_colocated(space):
        return None
    return [operation.partition_of(space, name or "")]


async def room(bucket: Bucket, *, moment: int | None, partitions: Collection[int] | None) -> int:
    """About how many bytes a restore of these partitions writes; of all operations, where those of one cannot be told.

    Raises:
        MomentMissing, BackupDamaged, BackupUnreachable, BackupConflict: as `restore`.
    """
    catalogue = await read(bucket)
    wanted = plan(catalogue, moment, partitions)
    rows = sum(base.size for base in wanted.bases.values())
    if partitions is None:
        return rows + sum(pack.size for pack in wanted.segments)
    since = [found.since for number in partitions if (found := catalogue.reached.get(number))]
    return rows + sum(since)


def plan(catalogue: Catalogue, moment_ms: int | None, partitions: Collection[int] | None = None) -> Moment:
    """The needs of a restore to a moment.

    Raises:
        MomentMissing: the backup does not reach back so far.
    """
    hlc = (1 << 63) - 1 if moment_ms is None else ((moment_ms + 1) << COUNTER_BITS) - 1
    earliest_ms = earliest(catalogue, partitions)
    if moment_ms is not None and moment_ms < earliest_ms:
        raise MomentMissing(
            f"the backup begins at {date(earliest_ms, later=True)}, and {date(moment_ms)} is before that. Nothing "
            "was written. Name a later moment; `shoal backup list URL` shows those that it has.",
            earliest_ms=earliest_ms,
        )
    if (base := incomplete(catalogue, hlc, partitions)) is not None:
        first, last = wall_ms_of(base.lacks_from), wall_ms_of(base.hlc) + 1
        if base.lacks_from == ERASED:
            raise MomentMissing(
                f"before {date(last, later=True)} the backup of partition {base.partition} is sealed under the keys of a space "
                "that was erased. Nothing was written. Name a later moment.",
                earliest_ms=last,
            )
        raise MomentMissing(
            f"from {date(first)} to {date(last, later=True)} the backup lacks operations of partition {base.partition}, "
            f"which had left the logs before they were shipped. Nothing was written. Name a moment before or after that.",
            earliest_ms=last,
        )
    return moment_of(catalogue, hlc, partitions)


def earliest(catalogue: Catalogue, partitions: Collection[int] | None = None) -> int:
    """The first moment that a backup has whole, in milliseconds since 1970: no partition begins later."""
    bases = [base for number, found in catalogue.bases.items() for base in found if partitions is None or number in partitions]
    begins = [wall_ms_of(base.hlc) + 1 for base in bases if base.lacks_from <= ERASED]
    times = [wall_ms_of(pack.first_hlc) for pack in catalogue.segments.values()] + [wall_ms_of(base.hlc) for base in bases]
    return max([min(times, default=0), wall_ms_of(catalogue.since), *begins])


def _check_empty(directory: Path) -> None:
    """Check that a store can be made in the directory; what an earlier restore left there, before its end, is removed.

    Raises:
        InvalidInput: it holds something.
    """
    if directory.exists() and not directory.is_dir():
        raise InvalidInput(f"{directory} is no directory. Nothing was written. Name one that is missing or empty.")
    names = {entry.name for entry in os.scandir(directory)} if directory.exists() else set()
    if _UNFINISHED in names and layout.FORMAT not in names:
        shutil.rmtree(directory / _UNFINISHED)
        for name in names.intersection(_MOVED):
            path = directory / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        names -= {_UNFINISHED, *_MOVED}
    if found := layout.strangers(names):
        raise InvalidInput(
            f"{directory} is not empty: it holds {', '.join(found[:3])}. Nothing was written: a restore makes a new store, and "
            "replaces none. Name a directory that is missing or empty."
        )


async def _restored(
    bucket: Bucket,
    directory: Path,
    wanted: Moment,
    config: Config,
    environment: Environment,
    partitions: Collection[int] | None,
    progress: Watcher,
) -> Restored:
    made = directory / _UNFINISHED
    now_ms, entropy = environment.now_ms, environment.entropy
    opening = partial(open_storage, made / _STORE, config=config, now_ms=now_ms, entropy=entropy)
    try:
        if not (made / _WHOLE).exists():
            storage = await environment.run_blocking(opening)
            restored = await folded(
                storage, bucket, wanted, config=config, environment=environment, only=partitions, told=progress
            )
            await environment.run_blocking(partial(layout.replace_file, made / _WHOLE, encode(restored)))
        restored = msgspec.msgpack.decode((made / _WHOLE).read_bytes(), type=Restored)
        await environment.run_blocking(partial(_appear, made / _STORE, directory))
    except BackupUnreachable as error:
        error.message = f"{error.message} What was restored so far is kept: the same command goes on."
        error.args = (error.message,)
        raise
    except (KeyboardInterrupt, asyncio.CancelledError, StoreLocked):
        raise  # As if it were killed; or another one restores here.
    except BaseException:
        await environment.run_blocking(partial(shutil.rmtree, made, ignore_errors=True))
        raise
    return restored


def _appear(made: Path, directory: Path) -> None:
    for name in (*_MOVED, layout.FORMAT):
        if (made / name).exists():
            os.rename(made / name, directory / name)
            layout.sync_directory(directory)
    shutil.rmtree(directory / _UNFINISHED)
    layout.sync_directory(directory)


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
        witness_interval_s=config.witness_interval_s,
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
