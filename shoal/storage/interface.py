"""The storage interface: an ordered map of bytes with atomic writes and an explicit fsync. And its reference in memory.

Laws, which the contract suite (`tests/storage/test_contract.py`) checks for every
implementation:

- A write is atomic and visible to reads at once; it is durable once a `sync`
  that began after it has returned.
- After a crash the store holds a prefix of the writes, in the order in which
  they were made: all that were synced, and perhaps some after them.
- A scan either returns all rows or raises; it is never silently short.
- A snapshot shows the store as it was when the snapshot was taken, however long it is open.
- After a failed write or sync nothing more is written in this opening.

The reference storage: a sorted map in memory that can forget unsynced writes.

Law: `crash` returns what a disk could hold after a crash: the synced
writes, and the first few after them, in order and whole. Every other
implementation is compared with this one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, Protocol

from shoal.errors import Overloaded, StorageError, StorageFull
from shoal.records import NamedTuple

STORAGE_SNAPSHOTS_MAX = 16  # Snapshots open at once; each keeps what was deleted since on the disk.


LARGE_BYTES_MIN = 256 * 1024  # A value of so many bytes may be laid down before it is written.

DigestOf = Callable[[bytes], bytes]
"""Makes the SHA-256 of a value, or knows it."""
Laid = Callable[[], None]
"""Ends what was laid down: no further write may name it."""


class Snapshot(Protocol):
    """The store as it was at one moment. It holds memory and disk space until it is closed; close it where it was taken."""

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """The rows with `start` ≤ key < `stop`, in key order. A new scan ends the one before it.

        Raises:
            StoreCorrupt: while iterating, when a block does not pass its checksum.
            StorageError: the snapshot or the store was closed.
        """
        ...

    def close(self) -> None:
        """Release it. Closing twice is allowed."""
        ...


class Storage(Protocol):
    """All is called from one thread, except for what `begin_sync` returns: that runs in another, at the same time."""

    def get(self, key: bytes, /) -> bytes | None:
        """The value of `key`, or None.

        Raises:
            StoreCorrupt: the block that should hold it does not pass its checksum.
        """
        ...

    def scan(
        self, start: bytes, stop: bytes | None, /, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """The rows with `start` ≤ key < `stop` (None: to the end), in key order or its reverse.

        It shows the store as it was when the first row was asked for.

        Raises:
            StoreCorrupt: while iterating, when a block does not pass its checksum.
        """
        ...

    def snapshot(self) -> Snapshot:
        """The store as it is now, unsynced writes included. Closing the store closes its snapshots.

        Raises:
            Overloaded: `STORAGE_SNAPSHOTS_MAX` are open.
        """
        ...

    def write(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]] = (), /) -> int:
        """Delete `ranges` (start inclusive, stop exclusive), then put `rows` (None deletes), atomically.

        Returns the write's number: 1, 2, 3, … within this opening.

        Raises:
            StorageFull: no part of the write is visible; the store rejects further writes.
        """
        ...

    def begin_write(self, rows: Mapping[bytes, bytes | None], /) -> Callable[[], int]:
        """`write` in two steps, for large rows: they are copied now, and nothing is written before the call that it returns,
        which is made once at most. It returns and raises as `write`.
        """
        ...

    def begin_laying(self, values: Sequence[bytes], digest_of: DigestOf, /) -> Callable[[], Laid] | None:
        """Lay down large values before they are written: durable, and seen by nobody. None: here they are written like others.

        What it returns is called once, in any thread; it blocks. Until what that returns is called, where `write` is, a write
        of these very objects takes little: one row for each of them.

        Raises:
            StorageFull: in that call: the store rejects further writes.
        """
        ...

    def begin_sync(self) -> Callable[[], int]:
        """A sync of all writes before this call, to be called once, in any thread; it returns the number of the last one.

        It blocks, and releases the interpreter lock while it does.

        Raises:
            StorageFull: now or in that call: the writes since the last sync may or may not be on disk.
        """
        ...

    def sync(self) -> int:
        """`begin_sync` and that call at once."""
        ...

    def bytes_on_disk(self) -> int:
        """The space that the store's files occupy, the write-ahead log included; in memory, the size of the durable rows."""
        ...

    def bytes_free(self) -> int:
        """The bytes that are free on the disk for whoever runs this process; -1 if that is not known."""
        ...

    @property
    def identity(self) -> bytes:
        """Names this copy of the store: the same after every restart, different in a copied or restored directory."""
        ...

    def close(self) -> None:
        """Sync and release everything. Closing twice is allowed; no other call may follow."""
        ...


def too_many_snapshots(count: int) -> Overloaded:
    """The error of `Storage.snapshot` beyond the bound."""
    return Overloaded(f"{count} snapshots of the store are open, which is the maximum. Try again later.", retry_after_s=0.5)


SNAPSHOTS_MAX = STORAGE_SNAPSHOTS_MAX


class _Lying:
    """Values that are laid down together, beside the rows."""

    def __init__(self) -> None:
        self.is_durable = False


class _Write(NamedTuple):
    rows: Mapping[bytes, bytes | None]
    ranges: Sequence[tuple[bytes, bytes]]
    beside: Mapping[bytes, _Lying]  # The rows whose values stand elsewhere.


class _SortedMap:
    """A dict and its keys in order."""

    def __init__(self, rows: Mapping[bytes, bytes]) -> None:
        self.rows = dict(rows)
        self._keys = sorted(self.rows)

    def apply(self, write: _Write) -> None:
        for start, stop in write.ranges:
            for key in self.keys(start, stop):
                self._delete(key)
        for key, value in write.rows.items():
            if value is None:
                self._delete(key)
            else:
                self._put(key, value)

    def keys(self, start: bytes, stop: bytes | None, *, reverse: bool = False, limit: int | None = None) -> list[bytes]:
        begin = bisect_left(self._keys, start)
        end = len(self._keys) if stop is None else max(begin, bisect_left(self._keys, stop))
        if limit is not None and limit < end - begin:
            begin, end = (end - limit, end) if reverse else (begin, begin + limit)
        found = self._keys[begin:end]
        if reverse:
            found.reverse()
        return found

    def _put(self, key: bytes, value: bytes) -> None:
        if key not in self.rows:
            self._keys.insert(bisect_left(self._keys, key), key)
        self.rows[key] = value

    def _delete(self, key: bytes) -> None:
        if self.rows.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]


class MemorySnapshot:
    """A `Snapshot` of a `MemoryStorage`: a copy of its rows."""

    def __init__(self, rows: Mapping[bytes, bytes], ended: Callable[[MemorySnapshot], None]) -> None:
        self._rows: _SortedMap | None = _SortedMap(rows)
        self._ended = ended

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """The rows with `start` ≤ key < `stop`, in key order (`Snapshot.scan`)."""
        for key in self._open().keys(start, stop):
            yield key, self._open().rows[key]

    def close(self) -> None:
        """Release it (`Snapshot.close`)."""
        self._rows = None
        self._ended(self)

    def _open(self) -> _SortedMap:
        if self._rows is None:
            raise StorageError("This snapshot was closed. Nothing was written. Take another one.")
        return self._rows


class MemoryStorage:
    """A `LoggedStorage` without files, for tests and the simulator. `failed` says why it rejects writes, or is None."""

    def __init__(self, rows: Mapping[bytes, bytes] | None = None, *, identity: bytes = b"memory") -> None:
        self.identity = identity
        self._copies = 0
        self._shown = _SortedMap(rows or {})
        self._durable = _SortedMap(rows or {})
        self._unsynced: list[_Write] = []
        self._written = 0
        self._fails_next: set[Literal["write", "sync"]] = set()
        self._over: str | None = None
        self._snapshots: set[MemorySnapshot] = set()
        self._laid: dict[int, tuple[bytes, _Lying]] = {}  # By the identity of a value.
        self._beside: dict[bytes, _Lying] = {}  # Durable rows whose values were not durable when they were.
        self.failed: str | None = None

    def get(self, key: bytes, /) -> bytes | None:
        """The value of `key`, or None (`Storage.get`)."""
        self._refuse_if_over()
        return self._shown.rows.get(key)

    def scan(
        self, start: bytes, stop: bytes | None, /, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """The rows with `start` ≤ key < `stop` (None: to the end), in key order or its reverse (`Storage.scan`)."""
        self._refuse_if_over()
        rows = self._shown.rows
        yield from [(key, rows[key]) for key in self._shown.keys(start, stop, reverse=reverse, limit=limit)]

    def snapshot(self) -> MemorySnapshot:
        """The store as it is now, unsynced writes included (`Storage.snapshot`)."""
        self._refuse_if_over()
        if len(self._snapshots) >= SNAPSHOTS_MAX:
            raise too_many_snapshots(len(self._snapshots))
        taken = MemorySnapshot(self._shown.rows, self._snapshots.discard)
        self._snapshots.add(taken)
        return taken

    def write(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]] = (), /) -> int:
        """Delete `ranges` (start inclusive, stop exclusive), then put `rows` (None deletes), atomically (`Storage.write`)."""
        self._attempt("write")
        beside = {key: self._laid[id(value)][1] for key, value in rows.items() if id(value) in self._laid}
        write = _Write(dict(rows), tuple(ranges), beside)
        self._shown.apply(write)
        self._unsynced.append(write)
        self._written += 1
        return self._written

    def begin_write(self, rows: Mapping[bytes, bytes | None], /) -> Callable[[], int]:
        """`write` in two steps (`Storage.begin_write`)."""
        return partial(self.write, dict(rows))

    def begin_laying(self, values: Sequence[bytes], digest_of: DigestOf, /) -> Callable[[], Laid]:
        """Lay down large values (`Storage.begin_laying`). A crash takes the bytes of those that are not durable, also if
        their rows are.
        """
        lying = _Lying()
        laid = {id(value): (value, lying) for value in values}
        self._laid.update(laid)

        def end() -> None:
            for identity in laid:
                self._laid.pop(identity, None)

        def lay() -> Laid:
            self._attempt("write")
            lying.is_durable = True
            return end

        return lay

    def begin_sync(self) -> Callable[[], int]:
        """A sync of all writes before this call, to be called once, in any thread; it returns the number of the last one
        (`Storage.begin_sync`).
        """
        return self.sync

    def sync(self) -> int:
        """`begin_sync` and that call at once (`Storage.sync`)."""
        self._attempt("sync")
        # Writes made by another thread while this one runs wait for the next sync.
        number, count = self._written, len(self._unsynced)
        for write in self._unsynced[:count]:
            self._durable.apply(write)
            self._beside.update((key, lying) for key, lying in write.beside.items() if not lying.is_durable)
        del self._unsynced[:count]
        return number

    def rotate_if_due(self) -> bool:
        """There is no log to rotate."""
        return False

    def reclaim(self) -> None:
        """There is nothing to give back."""

    def begin_erasing(self) -> None:
        """A deleted row leaves nothing."""

    def erase(self, age_s: float) -> bool:
        """A deleted row leaves nothing."""
        return True

    def write_witness(self) -> bool:
        """There is no file that could be lost."""
        return False

    def bytes_on_disk(self) -> int:
        """The size of the durable keys and values."""
        return sum(len(key) + len(value) for key, value in self._durable.rows.items())

    def bytes_free(self) -> int:
        """Nobody knows how much memory is left."""
        return -1

    def close(self) -> None:
        """Sync and release everything (`Storage.close`). After a failure it does not sync."""
        if self._over is None and self.failed is None:
            self.sync()
        for taken in list(self._snapshots):
            taken.close()
        self._over = self._over or "closed"

    def fail_next(self, operation: Literal["write", "sync"], /) -> None:
        """Make the next `write` or `sync` fail, as on a full disk. All later ones fail too, as on a real one."""
        self._fails_next.add(operation)

    def alter(self, key: bytes, value: bytes, /) -> None:
        """Damage a row: reads return `value` instead of what was written, also after a crash."""
        self._shown.rows[key] = self._durable.rows[key] = value

    def left_by_crash(self, keep: int | None = 0) -> MemoryStorage:
        """A copy of what a crash now would leave: the synced writes and the first `keep` unsynced ones.

        0 is the worst power cut; None keeps all, as `kill -9` does.
        """
        self._copies += 1
        return self._left(keep, self.identity + b"/%d" % self._copies)

    def _left(self, keep: int | None, identity: bytes) -> MemoryStorage:
        left = MemoryStorage(self._durable.rows, identity=identity)
        beside = dict(self._beside)
        for write in self._unsynced[:keep]:
            left._shown.apply(write)
            left._durable.apply(write)
            beside.update(write.beside)
        if keep is not None:  # The power was cut: what was being laid down is lost.
            for key, lying in beside.items():
                if not lying.is_durable and (value := left._shown.rows.get(key)) is not None:
                    left.alter(key, bytes(len(value)))
        return left

    def crash(self, keep: int | None = 0) -> MemoryStorage:
        """Crash, and return what is left, as `left_by_crash` says. Every later call on this storage raises."""
        left = self._left(keep, self.identity)
        self._over = "lost in a crash"
        return left

    def _attempt(self, operation: Literal["write", "sync"]) -> None:
        self._refuse_if_over()
        if self.failed is None and operation in self._fails_next:
            self.failed = f"the disk was full at a {operation}"
        if self.failed is not None:
            raise StorageFull(f"Storage cannot {operation}: {self.failed}. Free some space and open the store again.")

    def _refuse_if_over(self) -> None:
        if self._over is not None:
            raise StorageError(f"This storage was {self._over}. Nothing was written. Open the store again.")
