"""Storage over RocksDB: unsynced write batches on the caller's thread, `flush_wal` for durability.

Laws, each of which RocksDB breaks if left to itself:
- A log whose synced part is damaged, cut or missing is rejected. Hence the
  recovery mode (the default one opens silently with keys missing) and the
  witness; the check opens read-only first, so that a rejection changes nothing.
- A prefix of the writes survives a crash. RocksDB accepts a torn end in every
  log, not only in the last one; so a new log is begun only while nothing of the
  old one is unsynced, and only here: RocksDB's own bounds are set so high that
  they are never reached.
- An iterator that met a bad block looks like one that is at its end, so its
  `status` is read after every scan.
- After one failed write or sync nothing is written any more. A panic of the binding is such a failure.
- A new log is begun with no write in between, also of a pass over large values, which another thread makes (`large`).
- A full disk keeps nobody from reading: a store that cannot be opened for that reason alone is opened read-only,
  and `failed` says why.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Never

from rocksdict import Rdict, RdictIter, ReadOptions, WriteBatch

from shoal.config import Config
from shoal.errors import StorageError, StorageFull, StoreCorrupt, WrongProcess
from shoal.forks import disown_in_children, never_destroy
from shoal.records import NamedTuple
from shoal.storage import engine, large, layout
from shoal.storage.engine import (
    COMPACTS_AT,
    LEVEL_ZERO_FILES,
    START_OVER,
    BlobFiles,
    ErasingPass,
    is_failure,
    open_database,
    open_for_reading,
    text_of,
)
from shoal.storage.interface import STORAGE_SNAPSHOTS_MAX, DigestOf, Laid, too_many_snapshots
from shoal.storage.large import INDEX, LargeFiles, LargePass, Place, is_marked, marked
from shoal.storage.layout import Holder, StoreLock, Witness, Witnessed, identity_of

# The cost of a row in a memtable beyond its bytes in a batch: sequence number, skip list links, alignment.
ROW_OVERHEAD_BYTES = 64
_READS_MAX = 4  # Of a large value, which may move between the reading of its row and of its file.
_MOVES_AT = 0.25  # Garbage in a file of large values, at which the rest of it moves while space is given back.
# The group commit rotates a log when it holds `memtable_bytes`; a write does so at twice that, RocksDB later still (`options`).
_ROTATE_ANYWAY_FACTOR = 2


class Synced(NamedTuple):
    """The extent of the last sync: our write number, RocksDB's sequence number, and `wal_bytes` of log file `wal`."""

    number: int
    sequence: int
    wal: int
    wal_bytes: int


class RocksSnapshot:
    """A `Snapshot` of a `RocksStorage`: one iterator, which shows the database as it was when the iterator was made.

    It is not RocksDB's snapshot, because iterators that this binding makes of one show what was written later.
    """

    def __init__(
        self,
        rows: RdictIter,
        value_of: Callable[[bytes, bytes], bytes],
        unreadable: Callable[[BaseException], StorageError],
        ended: Callable[[RocksSnapshot], None],
    ):
        self._rows: RdictIter | None = rows
        self._value_of = value_of
        self._unreadable = unreadable
        self._ended = ended

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """The rows with `start` ≤ key < `stop`, in key order (`Snapshot.scan`)."""
        rows = self._rows
        if rows is None:
            raise StorageError("This snapshot was closed. Nothing was written. Take another one.")
        try:
            rows.seek(start)
            while self._rows is rows and rows.valid() and (key := rows.key()) < stop:
                value = rows.value()
                yield key, self._value_of(key, value) if is_marked(value) else value
                rows.next()
            rows.status()
        except BaseException as error:
            if not is_failure(error):
                raise
            raise self._unreadable(error) from error

    def close(self) -> None:
        """Release it (`Snapshot.close`)."""
        self._rows = None
        self._ended(self)


class RocksStorage:
    """One opening of a data directory. `failed` says why it rejects writes, or is None; `rotations` counts new logs."""

    def __init__(
        self, directory: Path, *, database: Rdict, lock: StoreLock, witness: Witness, identity: bytes, config: Config
    ) -> None:
        self.identity = identity
        self.failed: str | None = None
        self.rotations = 0
        self._directory = directory
        self._files = directory / layout.DATABASE
        self._db = database
        self._lock = lock
        self._witness = witness
        self._rotate_bytes = config.memtable_bytes
        self._snapshots: set[RocksSnapshot] = set()
        self._snapshots_max = STORAGE_SNAPSHOTS_MAX
        self._written = 0
        self._log_bytes = 0  # An upper bound of what the memtable holds.
        self._wal = layout.newest_wal(self._files)
        self._synced = Synced(0, 0, 0, 0)
        self._synced_guard = threading.Lock()
        self._closed = False
        self._reclaiming = False
        self._erasing: ErasingPass | None = None
        self._erasing_since_s = 0.0  # Of the pass that this one is a part of.
        self._erases = False  # A pass over the large values comes before that.
        self._writing = threading.RLock()
        self.large = LargeFiles(self._files)
        self._laid: dict[int, tuple[bytes, Place]] = {}  # By the identity of a value that was laid down.
        self._large_pass: LargePass | None = None
        self._passing = threading.Lock()
        self._blobs = BlobFiles(database)
        disown_in_children(self)

    def disown(self) -> None:
        """Called in the child, in the thread that forked (`Inherited.disown`): RocksDB's threads and locks stayed in the
        parent, as did the right to write its files.
        """
        for thing in (self._db, self._snapshots, self._witness):
            never_destroy(thing)
        self._closed = True
        stand_in: Any = _Inherited(self._directory)
        self._db = self._witness = stand_in

    @classmethod
    def open(cls, directory: Path, *, config: Config, now_ms: int, encrypted: bool = False) -> RocksStorage:
        """Open the store in `directory`, or make one if it is empty or missing. `now_ms` is for the lock's text.

        `encrypted`: all its rows are sealed above. `shoal.storage.encrypted.storage` opens such a store.

        If the disk is too full to open it, it can only be read; see `failed`.

        Raises:
            StoreLocked: another opening holds it.
            StoreTooNew: a newer version wrote it.
            StoreCorrupt: a log, table or manifest is damaged, or acknowledged writes are missing.
            StorageFull: the disk is full, and the store cannot be read either.
            StorageError: it is not a store, or it cannot be read or written.
            Unsupported: this system has no `flock`.

        None of them changes the rows of a store.
        """
        StoreLock.check_platform()
        with ExitStack() as undo:
            try:
                if not layout.holds_store(directory):
                    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = StoreLock.acquire(directory / layout.LOCK, holder=Holder.this_process(now_ms))
                undo.callback(lock.release)
                if not layout.holds_store(directory):
                    layout.make(directory, encrypted=encrypted)
                witness = Witness.open(directory / layout.WITNESS)
                undo.callback(witness.close)
                layout.close_to_others(directory, is_fresh=witness.latest == Witnessed())
                identity = identity_of(directory / layout.WITNESS)
            except OSError as error:
                raise StorageError(f"{directory} cannot be opened: {error}. No store was made or changed.") from error
            failed: str | None = None
            try:
                database = open_database(directory, witness=witness.latest, config=config, encrypted=encrypted)
            except StorageFull as full:
                database, failed = (
                    open_for_reading(directory / layout.DATABASE, config, encrypted, full),
                    full.message.rstrip("."),
                )
            layout.close_files(directory / layout.DATABASE)
            storage = cls(directory, database=database, lock=lock, witness=witness, identity=identity, config=config)
            undo.callback(database.close)
            storage.failed = failed
            if failed is None:
                try:
                    layout.renew(directory)
                except OSError as error:
                    raise StorageError(f"{directory} cannot be opened: {error}. No row was changed.") from error
            # Recovered writes must outlive the next crash before anyone sees them.
            if failed is None:
                storage.sync()
                storage.write_witness()
            undo.pop_all()
            return storage

    @property
    def synced(self) -> Synced:
        """The extent of the last sync; tests cut the log behind it."""
        return self._synced

    def get(self, key: bytes, /) -> bytes | None:
        """The value of `key`, or None (`Storage.get`)."""
        try:
            value: bytes | None = self._db.get(key)
        except BaseException as error:
            if not is_failure(error):
                raise
            raise self._unreadable(error) from error
        return value if value is None or not is_marked(value) else self._value_of(key, value)

    def scan(
        self, start: bytes, stop: bytes | None, /, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """The rows with `start` ≤ key < `stop` (None: to the end), in key order or its reverse (`Storage.scan`)."""
        stop = INDEX if stop is None else stop
        if start >= stop or limit == 0:
            return
        try:
            rows = self._db.iter(_ends_before(stop))
            step = rows.prev if reverse else rows.next
            rows.seek_to_last() if reverse else rows.seek(start)
            taken = 0
            while rows.valid() and taken != limit and (key := rows.key()) >= start:
                value = rows.value()
                yield key, self._value_of(key, value) if is_marked(value) else value
                taken += 1
                step()
            rows.status()
        except BaseException as error:
            if not is_failure(error):
                raise
            raise self._unreadable(error) from error

    def snapshot(self) -> RocksSnapshot:
        """The store as it is now, unsynced writes included (`Storage.snapshot`)."""
        if len(self._snapshots) >= self._snapshots_max:
            raise too_many_snapshots(len(self._snapshots))
        try:
            rows = self._db.iter()
            rows.seek_to_first()  # It shows what is there now from the moment of its making; this fails if that failed.
            rows.status()
        except BaseException as error:
            if not is_failure(error):
                raise
            raise self._unreadable(error) from error
        taken = RocksSnapshot(rows, self._value_of, self._unreadable, self._snapshots.discard)
        self._snapshots.add(taken)
        return taken

    def write(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]] = (), /) -> int:
        """Delete `ranges` (start inclusive, stop exclusive), then put `rows` (None deletes), atomically (`Storage.write`).
        Beyond twice `memtable_bytes` it also syncs, and begins a new log.
        """
        return self._write(self._batch(rows, ranges))

    def begin_write(self, rows: Mapping[bytes, bytes | None], /) -> Callable[[], int]:
        """`write` in two steps (`Storage.begin_write`)."""
        return partial(self._write, self._batch(rows, ()))

    def begin_laying(self, values: Sequence[bytes], digest_of: DigestOf, /) -> Callable[[], Laid]:
        """Lay down large values in a file of their own (`Storage.begin_laying`)."""
        return partial(self._lay, values, digest_of)

    def _lay(self, values: Sequence[bytes], digest_of: DigestOf) -> Laid:
        self._refuse_if_failed()
        try:
            places = self.large.lay((digest_of(value), value) for value in values)
        except OSError as error:
            raise self._fail("Writing large values", error) from error
        laid = {id(value): (value, place) for value, place in zip(values, places, strict=True)}
        self._laid.update(laid)

        def end() -> None:
            for identity in laid:
                self._laid.pop(identity, None)
            self.large.let_go(places[0].number)

        return end

    def _batch(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]]) -> WriteBatch:
        batch = engine.library.WriteBatch(raw_mode=True)
        for start, stop in ranges:
            # RocksDB fails the whole batch over a range that ends before it starts.
            if start < stop:
                batch.delete_range(start, stop)
        laid = self._laid
        for key, value in rows.items():
            if value is None:
                batch.delete(key)
            elif laid and (found := laid.pop(id(value), None)) is not None:
                place = found[1]
                batch.put(key, place.packed())
                batch.put(place.entry, key)
            else:
                batch.put(key, marked(value) if is_marked(value) else value)
        return batch

    def _write(self, batch: WriteBatch) -> int:
        if self.failed is not None:
            self._refuse_if_failed()
        size = batch.size_in_bytes() + ROW_OVERHEAD_BYTES * batch.len()
        try:
            with self._writing:
                self._db.write(batch)
        except BaseException as error:
            if not is_failure(error):
                raise
            raise self._fail("A write", error) from error
        self._written += 1
        self._log_bytes += size
        if self._log_bytes >= _ROTATE_ANYWAY_FACTOR * self._rotate_bytes:
            # Nobody rotated, or one write was huge. If this fails, the write is visible all the same; the next
            # sync reports that it is not durable.
            with suppress(StorageFull):
                self._rotate()
        return self._written

    def begin_sync(self) -> Callable[[], int]:
        """A sync of all writes before this call, to be called once, in any thread; it returns the number of the last one
        (`Storage.begin_sync`).
        """
        return self.sync

    def sync(self) -> int:
        """`begin_sync` and that call at once (`Storage.sync`)."""
        self._refuse_if_failed()
        # In this order: a write that another thread makes meanwhile may be covered, but is not counted.
        number, wal = self._written, self._wal
        sequence = self._db.latest_sequence_number()
        wal_bytes = self._wal_bytes(wal)
        try:
            self._db.flush_wal(True)
        except BaseException as error:
            if not is_failure(error):
                raise
            raise self._fail("An fsync", error) from error
        with self._synced_guard:
            self._synced = max(self._synced, Synced(number, sequence, wal, wal_bytes))
        return number

    def rotate_if_due(self) -> bool:
        """Begin a new log if the old one holds `memtable_bytes`; True if all writes are now durable.

        Raises:
            StorageFull: as `sync`.
        """
        if self._log_bytes < self._rotate_bytes:
            return False
        self._rotate()
        return True

    def reclaim(self) -> None:
        """Have RocksDB compact all writes until now in the background, which drops deleted rows.

        This is no manual compaction: one would begin a new log, at any time, if rows of its range were in memory.

        Raises:
            StorageFull: as `sync`.
        """
        self._refuse_if_failed()
        self._rotate()
        with self._passing:
            if self._large_pass is None:
                self._large_pass = LargePass(self.large, self, _MOVES_AT)
        if not self._reclaiming:  # Setting it holds Python's lock while RocksDB syncs two files.
            self._db.set_options({COMPACTS_AT: "1"})
        self._reclaiming = True

    def begin_erasing(self) -> None:
        """Begin a pass that removes the bytes of deleted rows from the files. `erase` carries it on.

        Raises:
            StorageFull: as `sync`.
        """
        self._refuse_if_failed()
        self._rotate()
        self.large.leave()
        with self._passing:
            self._large_pass = LargePass(self.large, self, 0)
        self._erasing, self._erases = None, True

    def erase(self, age_s: float) -> bool:
        """Carry on the pass that began `age_s` seconds ago; True once the bytes of all rows deleted before it are gone.

        Called where a sync runs. It returns at once: RocksDB works in the background.

        Raises:
            StorageFull: the store rejects further writes.
        """
        if self._closed or not self._erases:
            return False
        try:
            if self._erasing is None:
                if not self._advance_large():
                    return False
                # It deleted rows of the index, which name others. Synced once before, so that writes wait for little.
                self.sync()
                self._rotate()
                self._erasing, self._erasing_since_s = ErasingPass(self._db), age_s
            if not self._erasing.advance(age_s - self._erasing_since_s):
                return False
            if self._reclaiming:  # The pass has set the usual trigger again.
                self._db.set_options({COMPACTS_AT: "1"})
        except StorageFull:
            raise
        except BaseException as error:
            if not is_failure(error):
                raise
            raise self._fail("Erasing", error) from error
        self._erasing, self._erases = None, False
        self._blobs.forget()
        return True

    def _advance_large(self) -> bool:
        """Carry on the pass over large values; True if there is none."""
        with self._passing:
            if self._large_pass is not None and self._large_pass.advance():
                self._large_pass = None
            return self._large_pass is None

    def _end_reclaiming(self) -> None:
        """Set the usual trigger of compactions again when nothing is left to compact."""
        # First the memtable becomes a file of the first level, then that is compacted.
        left = ("rocksdb.num-immutable-mem-table", "rocksdb.num-files-at-level0")
        if self._erases or self._closed:
            return
        self._advance_large()
        self._blobs.look()
        if self._reclaiming and all(self._db.property_value(name) == "0" for name in left):
            self._reclaiming = False
            self._db.set_options({COMPACTS_AT: str(LEVEL_ZERO_FILES)})

    def write_witness(self) -> bool:
        """Record what is durable; False if the witness says so already. Never called twice at the same time.

        Raises:
            StorageFull: the store rejects further writes.
        """
        self._refuse_if_failed()
        try:
            self._end_reclaiming()
        except OSError as error:
            raise self._fail("Moving large values", error) from error
        durable = Witnessed(self._synced.sequence, self._synced.wal)
        if durable == self._witness.latest:
            return False
        try:
            self._witness.record(durable)
        except OSError as error:
            raise self._fail("Writing the witness", error) from error
        return True

    def bytes_on_disk(self) -> int:
        """The disk blocks of all files of RocksDB, in bytes."""
        used = 0
        for entry in os.scandir(self._files):
            # RocksDB deletes files in the background.
            with suppress(FileNotFoundError):
                used += entry.stat().st_blocks * 512
        return used

    def bytes_free(self) -> int:
        """The bytes that are free on the disk (`Storage.bytes_free`)."""
        try:
            found = os.statvfs(self._files)
        except OSError:
            return -1
        return found.f_bavail * found.f_frsize

    def close(self) -> None:
        """Sync and release everything (`Storage.close`). A failure is not raised here: it was raised when it happened."""
        if self._closed:
            return
        self._closed = True
        for taken in list(self._snapshots):
            taken.close()
        with suppress(StorageFull):
            self.sync()
        self.large.close()
        # After a failure RocksDB reports it once more here.
        try:
            self._db.close()
            layout.close_files(self._files)
            layout.sync_directory(self._files)
        except BaseException as error:
            if not is_failure(error):
                raise
        with suppress(StorageFull):
            self.write_witness()
        self._witness.close()
        self._lock.release()

    def _rotate(self) -> None:
        """Sync, then switch memtable and log, with no write in between."""
        with self._writing:
            self.sync()
            try:
                self._db.flush(wait=False)
                self._wal = layout.newest_wal(self._files)
                layout.close_files(self._files)
            except BaseException as error:
                if not is_failure(error):
                    raise
                raise self._fail("Beginning a new log", error) from error
            self._log_bytes = 0
            self.rotations += 1

    # ── large values ──────────────────────────────────────────────────────────

    def _value_of(self, key: bytes, stored: bytes) -> bytes:
        """The value of a row that is marked."""
        for _ in range(_READS_MAX):
            place = large.place_of(stored)
            if place is None:
                return large.unmarked(stored) if is_marked(stored) else stored
            try:
                return self.large.read(place)
            except FileNotFoundError as error:  # A pass has moved it since the row was read.
                missing = error
                stored = self._db.get(key) or stored
        raise self._unreadable(missing) from missing

    def named_in(self, number: int) -> Iterator[tuple[bytes, Place]]:
        """The places in a file of large values that a row names, each after the row's key (`large.Table`)."""
        index = large.index_of(number)
        rows = self._db.iter(_ends_before(large.index_of(number + 1)))
        rows.seek(index)
        try:
            while rows.valid():
                key = rows.value()
                place = large.place_of(self._db.get(key))
                if place is not None and place.entry == rows.key():
                    yield key, place
                rows.next()
            rows.status()
        except BaseException as error:
            if not is_failure(error):
                raise
            raise self._unreadable(error) from error

    def move(self, moves: Sequence[tuple[bytes, Place, Place]]) -> None:
        """Let each of these rows name the second place, if it names the first one (`large.Table`)."""
        with self._writing:
            batch = engine.library.WriteBatch(raw_mode=True)
            for key, before, after in moves:
                if large.place_of(self._db.get(key)) == before:
                    batch.put(key, after.packed())
                    batch.put(after.entry, key)
            self._log_bytes += batch.size_in_bytes() + ROW_OVERHEAD_BYTES * batch.len()
            self._db.write(batch)

    def forget(self, number: int) -> None:
        """Make all writes durable, and delete the index of a file of large values (`large.Table`)."""
        self.sync()
        batch = engine.library.WriteBatch(raw_mode=True)
        batch.delete_range(large.index_of(number), large.index_of(number + 1))
        with self._writing:
            self._db.write(batch)

    def shown(self) -> frozenset[object]:
        """The snapshots that are open (`large.Table`)."""
        return frozenset(self._snapshots)

    def _wal_bytes(self, wal: int) -> int:
        try:
            return os.stat(self._files / layout.wal_name(wal)).st_size
        except FileNotFoundError:
            return 0  # A huge write on the other thread has rotated it away; it is synced, then.

    def _refuse_if_failed(self) -> None:
        if self.failed is not None:
            raise StorageFull(
                f"The store rejects writes since an earlier failure: {self.failed}. Check the disk, then open the store again."
            )

    def _fail(self, what: str, error: BaseException) -> StorageFull:
        self.failed = f"{what} failed in {self._directory}: {text_of(error)}"
        return StorageFull(
            f"{self.failed}. The writes since the last sync may or may not be on disk. Nothing more is written until "
            "the store is opened again: free some space or replace the disk first."
        )

    def _unreadable(self, error: BaseException) -> StorageError:
        if isinstance(error, engine.library.DbClosedError):
            return StorageError(f"the store in {self._directory} was closed. Nothing was written. Open it again.")
        return StoreCorrupt(
            f"{self._directory} cannot be read: {text_of(error)}. Nothing was written. "
            f"Run `shoal verify` to see what else is damaged. {START_OVER}"
        )


class _Inherited:
    """Stands in a forked child for what its parent has open."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __getattr__(self, name: str) -> Never:
        raise WrongProcess(
            f"{self._directory} is open in the process from which this one was forked. Nothing was written. "
            "Open a store of your own."
        )


def _ends_before(stop: bytes | None) -> ReadOptions:
    # Only the upper bound: this binding's set_iterate_lower_bound sets the upper one.
    bounds = engine.library.ReadOptions()
    if stop is not None:
        bounds.set_iterate_upper_bound(stop)
    return bounds
