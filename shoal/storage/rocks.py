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
from shoal.storage import engine, layout
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
from shoal.storage.interface import STORAGE_SNAPSHOTS_MAX, too_many_snapshots
from shoal.storage.layout import Holder, StoreLock, Witness, Witnessed, identity_of

# The cost of a row in a memtable beyond its bytes in a batch: sequence number, skip list links, alignment.
ROW_OVERHEAD_BYTES = 64
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
        self, rows: RdictIter, unreadable: Callable[[BaseException], StorageError], ended: Callable[[RocksSnapshot], None]
    ):
        self._rows: RdictIter | None = rows
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
                yield key, rows.value()
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
        return value

    def scan(
        self, start: bytes, stop: bytes | None, /, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """The rows with `start` ≤ key < `stop` (None: to the end), in key order or its reverse (`Storage.scan`)."""
        if (stop is not None and start >= stop) or limit == 0:
            return
        try:
            rows = self._db.iter(_ends_before(stop))
            step = rows.prev if reverse else rows.next
            rows.seek_to_last() if reverse else rows.seek(start)
            taken = 0
            while rows.valid() and taken != limit and (key := rows.key()) >= start:
                yield key, rows.value()
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
        taken = RocksSnapshot(rows, self._unreadable, self._snapshots.discard)
        self._snapshots.add(taken)
        return taken

    def write(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]] = (), /) -> int:
        """Delete `ranges` (start inclusive, stop exclusive), then put `rows` (None deletes), atomically (`Storage.write`).
        Beyond twice `memtable_bytes` it also syncs, and begins a new log.
        """
        return self._write(_batch(rows, ranges))

    def begin_write(self, rows: Mapping[bytes, bytes | None], /) -> Callable[[], int]:
        """`write` in two steps (`Storage.begin_write`)."""
        return partial(self._write, _batch(rows, ()))

    def _write(self, batch: WriteBatch) -> int:
        self._refuse_if_failed()
        size = batch.size_in_bytes() + ROW_OVERHEAD_BYTES * batch.len()
        try:
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
        self._erasing = ErasingPass(self._db)

    def erase(self, age_s: float) -> bool:
        """Carry on the pass that began `age_s` seconds ago; True once the bytes of all rows deleted before it are gone.

        Called where a sync runs. It returns at once: RocksDB works in the background.

        Raises:
            StorageFull: the store rejects further writes.
        """
        if self._closed or self._erasing is None:
            return False
        try:
            if not self._erasing.advance(age_s):
                return False
            if self._reclaiming:  # The pass has set the usual trigger again.
                self._db.set_options({COMPACTS_AT: "1"})
        except BaseException as error:
            if not is_failure(error):
                raise
            raise self._fail("Erasing", error) from error
        self._erasing = None
        self._blobs.forget()
        return True

    def _end_reclaiming(self) -> None:
        """Set the usual trigger of compactions again when nothing is left to compact."""
        # First the memtable becomes a file of the first level, then that is compacted.
        left = ("rocksdb.num-immutable-mem-table", "rocksdb.num-files-at-level0")
        if self._erasing is not None or self._closed:
            return
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
        self._end_reclaiming()
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


def _batch(rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]]) -> WriteBatch:
    batch = engine.library.WriteBatch(raw_mode=True)
    for start, stop in ranges:
        # RocksDB fails the whole batch over a range that ends before it starts.
        if start < stop:
            batch.delete_range(start, stop)
    for key, value in rows.items():
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value)
    return batch


def _ends_before(stop: bytes | None) -> ReadOptions:
    # Only the upper bound: this binding's set_iterate_lower_bound sets the upper one.
    bounds = engine.library.ReadOptions()
    if stop is not None:
        bounds.set_iterate_upper_bound(stop)
    return bounds
