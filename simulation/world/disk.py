"""Disks that forget, tear, fill, rot and are put back.

Laws:
- What was synced survives a crash, and of the rest a prefix, write by write: the
  torn tail that `keep` names. A value that is being laid down beside the rows is lost, whatever becomes of its row.
- A row that cannot be read stays so until it is written again, and raises StoreCorrupt;
  a scan that meets one does not end silently short.
- A dead incarnation reaches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal, Protocol
from zlib import crc32

from shoal.cluster.operation import Tip
from shoal.crdt.dot import HORIZON, Origin
from shoal.crdt.rows import successor
from shoal.errors import StorageError, StoreCorrupt
from shoal.node.collection.expiring import expires
from shoal.node.retired import Retirement
from shoal.node.transaction import Readable
from shoal.storage import keys
from shoal.storage.interface import DigestOf, Laid, MemorySnapshot, MemoryStorage
from simulation.world.crash_points import CrashPoints
from simulation.world.incarnation import Incarnation
from simulation.world.trace import Trace

_CORRUPT_OF = 3  # One row of so many.


_ROW_BYTES = len(keys.retired(0, HORIZON))


class Watcher(Protocol):
    """Who is told at once what becomes of a disk; must not raise."""

    def mounted(self, storage: MemoryStorage, /) -> None:
        """A life begins on what is there."""
        ...

    def replaced(self) -> None:
        """What was there is lost: another disk, or an older state of it, is in its place."""
        ...

    def wrote(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]], /) -> None:
        """Rows were put, or deleted (None), also those in these ranges."""
        ...

    def synced(self) -> None:
        """All that was written is durable now."""
        ...


class Disk:
    """What is in the machine, whoever runs on it. `slow_s` is what a sync takes on top of what is usual."""

    def __init__(self) -> None:
        self.slow_s = 0.0
        self.watchers: list[Watcher] = []
        self.corrupt: set[bytes] = set()  # Keys; looked up only.
        self._storage = MemoryStorage()

    def mount(self, life: Incarnation, *, points: CrashPoints, trace: Trace) -> SimulatedDisk:
        """A storage for one incarnation. Nobody else may be running on it."""
        self._storage = self._storage.crash(None)
        for watcher in self.watchers:
            watcher.mounted(self._storage)
        return SimulatedDisk(self, self._storage, life=life, points=points, trace=trace)

    def crash(self, keep: int | None) -> None:
        """Cut the power; None keeps what was not synced, as `kill -9` does."""
        self._storage = self._storage.crash(keep)

    def wipe(self) -> None:
        """An empty disk takes its place. Nobody may be running on it."""
        self.put_back(MemoryStorage())

    def copy(self) -> MemoryStorage:
        """What is durable now."""
        return self._storage.left_by_crash(0)

    def put_back(self, copy: MemoryStorage, *, whole: bool = False) -> None:
        """Go back to a copy; `whole`: no file system tells that it is one. Nobody may be running on it."""
        identity = self._storage.identity
        self._storage = copy.left_by_crash(None)
        if whole:
            self._storage.identity = identity
        self.corrupt.clear()
        for watcher in self.watchers:
            watcher.replaced()

    def corrupt_rows(self, table: bytes) -> None:
        """Let a third of the rows of a table be unreadable: always the same of the same rows."""
        rows = self._storage.scan(table, table + b"\xff")
        self.corrupt.update(key for key, _ in rows if crc32(key) % _CORRUPT_OF == 0)

    def alter(self, key: bytes) -> bool:
        """Let the last bit of a row's value be another one; no checksum tells. False: its node has closed it, and stops."""
        try:
            value = self._storage.get(key) or b"\x00"
        except StorageError:
            return False
        self._storage.alter(key, value[:-1] + bytes([value[-1] ^ 1]))
        return True

    @contextmanager
    def slowed(self, seconds: float) -> Iterator[None]:
        """Each sync takes so much longer while the context is open."""
        self.slow_s += seconds
        try:
            yield
        finally:
            self.slow_s -= seconds

    def fail_next(self, operation: Literal["write", "sync"]) -> None:
        """The next `operation` finds the disk full."""
        self._storage.fail_next(operation)

    def rows(self) -> dict[bytes, bytes]:
        """All that a node on it would read, unreadable or not."""
        return dict(self._storage.left_by_crash(None).scan(b"", None))


class SimulatedDisk:
    """The `LoggedStorage` of one incarnation."""

    def __init__(self, disk: Disk, storage: MemoryStorage, *, life: Incarnation, points: CrashPoints, trace: Trace) -> None:
        self._disk = disk
        self._storage = storage
        self._life = life
        self._points = points
        self._trace = trace

    @property
    def failed(self) -> str | None:
        return self._storage.failed

    def get(self, key: bytes, /) -> bytes | None:
        self._life.check()
        if key in self._disk.corrupt:
            raise _unreadable(key)
        return self._storage.get(key)

    def scan(
        self, start: bytes, stop: bytes | None, /, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        self._life.check()
        for row in self._storage.scan(start, stop, reverse=reverse, limit=limit):
            if row[0] in self._disk.corrupt:
                raise _unreadable(row[0])
            yield row

    def snapshot(self) -> SimulatedSnapshot:
        self._life.check()
        return SimulatedSnapshot(self._disk, self._storage.snapshot(), self._life)

    def write(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]] = (), /) -> int:
        self._life.check()
        holds_snapshot = any(key[:1] == keys.SNAPSHOT for key in rows)
        if holds_snapshot:
            self._points.passed("snapshot")
        deleted = [key for start, stop in ranges for key, _ in self._storage.scan(start, stop)] if ranges else []
        number = self._storage.write(rows, ranges)
        self._disk.corrupt.difference_update(rows)
        for watcher in self._disk.watchers:
            watcher.wrote({**dict.fromkeys(deleted), **rows} if deleted else rows, ranges)
        self._trace.note(self._life.name, "writes", f"{number}: {len(rows)} rows {_checksum(rows):08x}")
        if holds_snapshot:
            self._points.passed("snapshot")
        return number

    def begin_write(self, rows: Mapping[bytes, bytes | None], /) -> Callable[[], int]:
        return partial(self.write, rows)

    def begin_laying(self, values: Sequence[bytes], digest_of: DigestOf, /) -> Callable[[], Laid]:
        self._life.check()
        lay = self._storage.begin_laying(values, digest_of)

        def laid() -> Laid:
            self._life.check()
            self._points.passed("appended")
            end = lay()
            self._trace.note(self._life.name, "lays", f"{len(values)} values")
            self._points.passed("synced")
            return end

        return laid

    def begin_sync(self) -> Callable[[], int]:
        return self.sync

    def sync(self) -> int:
        self._life.check()
        self._points.passed("appended")
        number = self._storage.sync()
        for watcher in self._disk.watchers:
            watcher.synced()
        self._trace.note(self._life.name, "syncs", number)
        self._points.passed("synced")
        return number

    def rotate_if_due(self) -> bool:
        """There is no log to rotate."""
        self._life.check()
        return False

    def reclaim(self) -> None:
        """There is nothing to give back."""
        self._life.check()

    def begin_erasing(self) -> None:
        """A deleted row leaves nothing."""
        self._life.check()

    def erase(self, age_s: float) -> bool:
        """A deleted row leaves nothing."""
        self._life.check()
        return True

    def write_witness(self) -> bool:
        """There is no file that could be lost."""
        self._life.check()
        return False

    @property
    def identity(self) -> bytes:
        return self._storage.identity

    def bytes_on_disk(self) -> int:
        self._life.check()
        return self._storage.bytes_on_disk()

    def bytes_free(self) -> int:
        self._life.check()
        return self._storage.bytes_free()

    def close(self) -> None:
        self._life.check()
        self._storage.close()


class SimulatedSnapshot:
    """A `Snapshot` of one incarnation."""

    def __init__(self, disk: Disk, snapshot: MemorySnapshot, life: Incarnation) -> None:
        self._disk = disk
        self._snapshot = snapshot
        self._life = life

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        self._life.check()
        for row in self._snapshot.scan(start, stop):
            if row[0] in self._disk.corrupt:
                raise _unreadable(row[0])
            yield row

    def close(self) -> None:
        self._snapshot.close()


def _unreadable(key: bytes) -> StoreCorrupt:
    return StoreCorrupt(
        f"the block that holds the row {key[:40].hex()} does not pass its checksum. Nothing was written. "
        "Restore a backup, or rebuild the node from its peers."
    )


def _checksum(rows: Mapping[bytes, bytes | None]) -> int:
    found = 0
    for key, value in rows.items():
        found = crc32(value or b"", crc32(key, found))
    return found


def passes(key: bytes) -> bool:
    """Whether a row of an object is one that nodes remove at different times, and do not compare."""
    _, kind, _, _, row = keys.split_object(key)
    return expires(kind, row)


def tips_on(storage: Readable) -> dict[tuple[int, Origin], Tip]:
    """The last operation of each origin that a disk holds, by partition; those of retired origins too."""
    return tips_of(row for table in (keys.RETIRED, keys.VECTOR) for row in storage.scan(table, successor(table)))


def tips_of(rows: Iterable[tuple[bytes, bytes]]) -> dict[tuple[int, Origin], Tip]:
    """As `tips_on`, of rows of any tables."""
    found: dict[tuple[int, Origin], Tip] = {}
    for key, packed in rows:
        place = int.from_bytes(key[1:3], "big"), Origin(key[3:])
        if key[:1] == keys.VECTOR:
            found[place] = Tip.unpack(packed)
        elif key[:1] == keys.RETIRED and len(key) == _ROW_BYTES and key[3:] != HORIZON:
            found[place] = Retirement.unpack(packed).tip
    return found


def has_log(storage: Readable, place: tuple[int, Origin]) -> bool:
    """Whether some of an origin's operations are, or should be, in the log of a disk."""
    row = storage.get(keys.retired(*place))
    return row is None or Retirement.unpack(row).is_logged


def is_truncated(storage: Readable) -> bool:
    """Whether operations have left the log of a disk."""
    return next(iter(storage.scan(keys.BASE, successor(keys.BASE))), None) is not None or not all(
        has_log(storage, place) for place in tips_on(storage)
    )
