"""The storage interface: an ordered map of bytes with atomic writes and an explicit fsync.

Laws, which the contract suite (`tests/storage/test_contract.py`) checks for every
implementation:

- A write is atomic and visible to reads at once; it is durable once a `sync`
  that began after it has returned.
- After a crash the store holds a prefix of the writes, in the order in which
  they were made: all that were synced, and perhaps some after them.
- A scan either returns all rows or raises; it is never silently short.
- A snapshot shows the store as it was when the snapshot was taken, however long it is open.
- After a failed write or sync nothing more is written in this opening.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from shoal.errors import Overloaded

STORAGE_SNAPSHOTS_MAX = 16  # Snapshots open at once; each keeps what was deleted since on the disk.


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
