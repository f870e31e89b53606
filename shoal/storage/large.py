"""Large values in files of their own, beside RocksDB's: each is written once, past its log and its tables.

Laws:
- A value is durable in its file before a row can say where it is. So no row leads to bytes that a crash took.
- A row holds the value's place and SHA-256. Bytes that do not have it raise.
- A place belongs to one row. The index, which is written with the row, says to which: what the row does not name is garbage.
- An opening writes only files that it made. None is written once it was left.
- A file goes once nothing in it is named, the writes that say so are durable, and no snapshot is open.
- A pass moves a value by writing it again. Its row follows only if nobody has changed it since.
- No caller's value is taken for a place, whatever its bytes.

Only values that were laid down before their write stand here (`Storage.begin_laying`). Others are RocksDB's, however large.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from shoal.errors import StoreCorrupt
from shoal.records import NamedTuple
from shoal.storage import layout

LARGE_FILE_BYTES = 64 * 1024 * 1024  # A file is left before it holds more, if it holds anything.
READERS_MAX = 64  # Files that are open to be read.
_MOVED_BYTES = 8 * 1024 * 1024  # In memory, in a pass.

INDEX = b"\xff" * 16
"""The prefix of the rows of the index: INDEX number₈ offset₈ → the key of the row that names the place. No other is above."""

_MARK = b"\xc1SHOLBIG"  # The first byte begins no msgpack.
_PLAIN, _PLACED = 0, 1
_POINTER = struct.Struct(f">{len(_MARK)}sBQQI32s")
_SUFFIX = ".large"
_PRIVATE_FILE = 0o600


class Place(NamedTuple):
    """Where a value stands."""

    number: int  # Of the file.
    offset: int
    size: int
    digest: bytes  # SHA-256 of the value.

    def packed(self) -> bytes:
        """It, in the place of the value of a row."""
        return _POINTER.pack(_MARK, _PLACED, *self)

    @property
    def entry(self) -> bytes:
        """The key of its row in the index."""
        return index_of(self.number) + self.offset.to_bytes(8, "big")


def index_of(number: int) -> bytes:
    """The prefix of the index of a file."""
    return INDEX + number.to_bytes(8, "big")


def is_marked(stored: bytes) -> bool:
    """Whether a stored value is not just the caller's: `place_of` tells a place, and `unmarked` what else it is."""
    return stored.startswith(_MARK)


def marked(value: bytes) -> bytes:
    """A caller's value that begins like a place, as it is stored."""
    return _MARK + bytes([_PLAIN]) + value


def unmarked(stored: bytes) -> bytes:
    """The caller's value again."""
    return stored[len(_MARK) + 1 :]


def place_of(stored: bytes | None) -> Place | None:
    """The place that a stored value names; None if it is a value."""
    if stored is None or len(stored) != _POINTER.size or not is_marked(stored) or stored[len(_MARK)] != _PLACED:
        return None
    _, _, number, offset, size, digest = _POINTER.unpack(stored)
    return Place(number, offset, size, digest)


_read_last: list[tuple[bytes, bytes]] = [(b"", sha256().digest())]  # A value, and its SHA-256.


def digest_of(value: bytes) -> bytes:
    """The SHA-256 of a value, which need not be made again of the one that was read last from a file."""
    read, digest = _read_last[0]
    return digest if value is read else sha256(value).digest()


class _Open:
    """An open file. It is closed after its last user, who may be in another thread."""

    def __init__(self, path: Path, flags: int) -> None:
        self.descriptor = os.open(path, flags | os.O_CLOEXEC, _PRIVATE_FILE)

    def __del__(self) -> None:
        with suppress(AttributeError):  # It was never opened.
            os.close(self.descriptor)


class _File(_Open):
    """A file that is written."""

    def __init__(self, number: int, path: Path) -> None:
        super().__init__(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self.number = number
        self.size = 0


class LargeFiles:
    """The files in a database's directory, during one opening. Any thread may call it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._guard = threading.Lock()
        self._written: _File | None = None
        self._next = max(self.numbers(), default=0) + 1
        self._readers: OrderedDict[int, _Open] = OrderedDict()
        self._laid: Counter[int] = Counter()  # By file: what was laid down, and may still get its rows.
        self.unsynced: set[tuple[int, int, int]] = set()
        """Parts that a power cut may take: file, start, stop."""

    def numbers(self) -> list[int]:
        """The files that are there, oldest first."""
        names = [name.removesuffix(_SUFFIX) for name in os.listdir(self._directory) if name.endswith(_SUFFIX)]
        return sorted(int(name) for name in names if name.isdigit())

    def path(self, number: int) -> Path:
        """The path of a file."""
        return self._directory / f"{number:08}{_SUFFIX}"

    def lay(self, values: Iterable[tuple[bytes, bytes]]) -> list[Place]:
        """Write values, each after its SHA-256, and sync them. What they are in stays until `let_go` is called with their file.

        Raises:
            OSError: the disk is full, or failed.
        """
        laid = list(values)
        whole = sum(len(value) for _, value in laid)
        with self._guard:
            file = self._file_for(whole)
            start, file.size = file.size, file.size + whole
            self._laid[file.number] += 1
            self.unsynced.add((file.number, start, start + whole))
        places: list[Place] = []
        offset = start
        for digest, value in laid:
            places.append(Place(file.number, offset, len(value), digest))
            _write(file.descriptor, value, offset)
            offset += len(value)
        self._sync(file, start, offset)
        return places

    def let_go(self, number: int) -> None:
        """A group of values that were laid down in a file has its rows, or gets none."""
        with self._guard:
            self._laid[number] -= 1
            if not self._laid[number]:
                del self._laid[number]

    def leave(self) -> None:
        """Write no more to the present file."""
        with self._guard:
            self._written = None

    def left(self) -> list[int]:
        """The files of which each place is named in the index, or garbage, oldest first."""
        found = self.numbers()
        with self._guard:
            written = 0 if self._written is None else self._written.number
            return [number for number in found if number != written and number not in self._laid]

    def read(self, place: Place) -> bytes:
        """A value.

        Raises:
            FileNotFoundError: the file is gone: its row was changed.
            StoreCorrupt: the bytes there cannot be read, or have another hash.
        """
        reader = self._reader(place.number)
        try:
            value = os.pread(reader.descriptor, place.size, place.offset)
        except OSError as error:
            raise self._damaged(place, str(error)) from error
        if (digest := sha256(value).digest()) != place.digest:
            raise self._damaged(place, "they do not have their hash")
        _read_last[0] = value, digest
        return value

    def size(self, number: int) -> int:
        """The bytes of a file."""
        return os.stat(self.path(number)).st_size

    def remove(self, number: int) -> None:
        """Remove a file that nothing names."""
        with self._guard:
            self._readers.pop(number, None)
        with suppress(FileNotFoundError):
            os.unlink(self.path(number))

    def close(self) -> None:
        """Close all files."""
        with self._guard:
            self._written = None
            self._readers.clear()

    def _damaged(self, place: Place, how: str) -> StoreCorrupt:
        return StoreCorrupt(
            f"{self.path(place.number)} is damaged in its {place.size} bytes at {place.offset}: {how}. Nothing was written. "
            "Run `shoal verify` to see what else is damaged."
        )

    def _file_for(self, size: int) -> _File:
        file = self._written
        if file is None or (file.size and file.size + size > LARGE_FILE_BYTES):
            file = self._written = _File(self._next, self.path(self._next))
            self._next += 1
            layout.sync_directory(self._directory)
        return file

    def _sync(self, file: _File, start: int, stop: int) -> None:
        _fdatasync(file.descriptor)
        self.unsynced.discard((file.number, start, stop))

    def _reader(self, number: int) -> _Open:
        with self._guard:
            reader = self._readers.get(number)
            if reader is None:
                reader = self._readers[number] = _Open(self.path(number), os.O_RDONLY)
                if len(self._readers) > READERS_MAX:
                    self._readers.popitem(last=False)
            else:
                self._readers.move_to_end(number)
            return reader


class Table(Protocol):
    """The rows beside the files, for a pass. All is called where a sync runs."""

    def named_in(self, number: int) -> Iterator[tuple[bytes, Place]]:
        """The places in a file that a row names, each after the row's key."""
        ...

    def move(self, moves: Sequence[tuple[bytes, Place, Place]]) -> None:
        """Let each of these rows name the second place, if it names the first one."""
        ...

    def forget(self, number: int) -> None:
        """Make all writes durable, and delete the index of a file."""
        ...

    def shown(self) -> Set[object]:
        """The snapshots that are open: they may need what no row names any more."""
        ...


class LargePass:
    """One pass over the files that are left when it begins, one with each call.

    `share`: what has to be garbage of a file before the rest of it moves. 0: any.
    """

    def __init__(self, files: LargeFiles, table: Table, share: float) -> None:
        self._files = files
        self._table = table
        self._share = share
        self._waiting = files.left()
        self._empty: list[int] = []
        self._shown: Set[object] = frozenset()  # The snapshots that may need them.
        self.removed = 0
        """Files that are gone."""

    def advance(self) -> bool:
        """Go on; True when the pass is over."""
        if self._empty and not self._waiting and not self._shown & self._table.shown():
            for number in self._empty:
                self._table.forget(number)
                self._files.remove(number)
            self.removed += len(self._empty)
            self._empty = []
        if self._waiting:
            self._look(self._waiting.pop(0))
            self._shown = self._table.shown()
        return not self._waiting and not self._empty

    def _look(self, number: int) -> None:
        # A file stays for what is damaged in it, or of its index, until that is repaired.
        with suppress(StoreCorrupt, FileNotFoundError):
            size = self._files.size(number)
            named = list(self._table.named_in(number))
            garbage = size - sum(place.size for _, place in named)
            if not garbage or (named and garbage < self._share * size):
                return
            while named:
                self._move(_taken(named))
            self._empty.append(number)

    def _move(self, some: list[tuple[bytes, Place]]) -> None:
        places = self._files.lay([(place.digest, self._files.read(place)) for _, place in some])
        try:
            self._table.move([(key, old, new) for (key, old), new in zip(some, places, strict=True)])
        finally:
            self._files.let_go(places[0].number)


def _taken(named: list[tuple[bytes, Place]]) -> list[tuple[bytes, Place]]:
    """The first few, taken from the list."""
    size = count = 0
    for _, place in named:
        if count and size + place.size > _MOVED_BYTES:
            break
        size, count = size + place.size, count + 1
    some = named[:count]
    del named[:count]
    return some


def _write(descriptor: int, value: bytes, offset: int) -> None:
    with memoryview(value) as left:
        at = 0
        while at < len(left):
            at += os.pwrite(descriptor, left[at:], offset + at)


_fdatasync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)  # macOS has none.
