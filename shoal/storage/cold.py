"""Stubs: what is left here of a chunk whose bytes are in an object store; and the one place where a stub is seen.

Laws:
- A stub never passes as content: a read of one through `ColdStorage` gives its chunk, if that is in memory, or raises, whoever
  reads. Only what asks `raw` sees it.
- A stub is no content, and no content is a stub, whatever its bytes: a chunk is stored under its SHA-256, which a stub lacks.
- Only chunks have stubs: rows under the hash of their value. The row stays, with its key, so that it is deleted as before.
- A stub is a fact of one directory. It is neither replicated nor compared, and its value goes to no peer and no backup.
- A store without stubs pays nothing for them: its reads are those of the storage below.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from typing import Any, Protocol

from shoal.crdt.rows import successor
from shoal.errors import StoreCorrupt
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.commit import LoggedStorage
from shoal.storage.interface import Snapshot, Storage

NODE_BYTES = 1024
"""A node of the tree over chunks has so many bytes at most: what is not larger stays, so that no sweep has to fetch."""

_MAGIC = b"\xc1SHOLCLD"  # The first byte begins no msgpack.
_DIGEST, _KEY = 32, 32
_STUB_BYTES = len(_MAGIC) + _DIGEST + _KEY + 4 + 4
FILE_CHUNKS = b"Vc"
CHUNKS = (b"D", FILE_CHUNKS)
"""The tables of a thread's rows that hold chunks: of states, and of files."""

_GENERATION_BYTES = 5  # A 0 byte and the number, before the rows of a later generation.
_RECORDS = keys.meta("cold/")
_WARM = keys.meta("warm/")


class Stub(NamedTuple):
    """Where the bytes of a chunk are: in which pack, sealed with which key, and where in it."""

    pack: bytes  # The SHA-256 of the pack, which is its name.
    key: bytes  # To the whole pack. It is in the stubs alone.
    start: int  # In the pack.
    size: int  # Of the chunk; sealed it is `SEAL_BYTES` longer.

    def packed(self) -> bytes:
        """The stub as the value of a row."""
        return _MAGIC + self.pack + self.key + self.start.to_bytes(4, "big") + self.size.to_bytes(4, "big")


def digest_in(row: bytes) -> bytes | None:
    """The digest in the key of a row within an object, its generation included, if it is that of a chunk."""
    if row[:1] == b"\x00" and len(row) > _GENERATION_BYTES:
        row = row[_GENERATION_BYTES:]
    return next((row[len(table) :] for table in CHUNKS if row.startswith(table) and len(row) == len(table) + _DIGEST), None)


def stub_of(key: bytes, value: bytes) -> Stub | None:
    """The stub in a stored row; None if the value is content."""
    if not value.startswith(_MAGIC) or len(value) != _STUB_BYTES or key[:1] != keys.OBJECT or key[3] != keys.Kind.THREAD:
        return None
    digest = digest_in(key[len(keys.object_of(key)) :])
    if digest is None or sha256(value).digest() == digest:
        return None
    pack, after = len(_MAGIC) + _DIGEST, len(_MAGIC) + _DIGEST + _KEY
    start, size = int.from_bytes(value[after : after + 4], "big"), int.from_bytes(value[after + 4 :], "big")
    return Stub(value[len(_MAGIC) : pack], value[pack:after], start, size)


def is_of_file(row: bytes) -> bool:
    """Whether a row within an object, its generation included, is a chunk of a file."""
    digest = digest_in(row)
    return digest is not None and row.endswith(FILE_CHUNKS + digest)


def size_of(key: bytes, value: bytes) -> int:
    """The bytes of a stored row's content, wherever they are."""
    stub = stub_of(key, value) if value.startswith(_MAGIC) else None
    return len(value) if stub is None else stub.size


def record_key(target_rows: bytes, pack: bytes = b"") -> bytes:
    """The row that says that an object has chunks in a pack, given the prefix of the object's rows; or the prefix of these."""
    return _RECORDS + target_rows[1:] + pack


def warm_key(target_rows: bytes) -> bytes:
    """The row that says when something of an object came back, given the prefix of its rows."""
    return _WARM + target_rows[1:]


def records(storage: Storage, *, of: bytes = b"", after: bytes = b"") -> Iterator[tuple[bytes, bytes, bytes]]:
    """The packs that are recorded: the prefix of the object's rows, the name of the pack, and the record.

    `of`: those of this object alone. `after`: those after this prefix and name.
    """
    prefix = _RECORDS + of[1:]
    start = _RECORDS + after[1:] + b"\x00" if after else prefix
    for key, value in storage.scan(start, successor(prefix)):
        row = keys.OBJECT + key[len(_RECORDS) :]
        name = keys.object_of(row)
        yield name, row[len(name) :], value


def warm(storage: Storage, *, after: bytes = b"") -> Iterator[bytes]:
    """The objects of which something came back, after this one, as prefixes of their rows."""
    start = _WARM + after[1:] + b"\x00" if after else _WARM
    for key, _ in storage.scan(start, successor(_WARM)):
        yield keys.OBJECT + key[len(_WARM) :]


def objects(storage: Storage, number: int, start: bytes = b"", stop: bytes | None = None) -> set[bytes]:
    """The objects of a partition that have chunks in packs, as prefixes of their rows: they are not compared with others.

    With `start` and `stop`, keys of rows: those that may have rows in between, and perhaps one more.
    """
    whole = len(keys.OBJECT) + 2  # Bytes of a key that names no object.
    first = keys.object_of(start)[1:] if len(start) > whole else number.to_bytes(2, "big")
    end = (number + 1).to_bytes(2, "big")
    if stop is not None and len(stop) > whole:
        end = successor(keys.object_of(stop)[1:]) or end
    found: set[bytes] = set()
    at = _RECORDS + first
    while (row := next(iter(storage.scan(at, _RECORDS + end, limit=1)), None)) is not None:
        name = keys.object_of(keys.OBJECT + row[0][len(_RECORDS) :])
        found.add(name)
        after = successor(_RECORDS + name[1:])
        assert after is not None  # It begins with the table's byte.
        at = after
    return found


class HeldPack(Protocol):
    """A pack that was read."""

    @property
    def size(self) -> int:
        """Bytes."""

    def chunk(self, row: bytes) -> bytes:
        """The chunk of a row.

        Raises:
            StoreCorrupt: the pack holds another one, or none.
        """


def raw_of(storage: Any) -> Any:
    """The storage below, which shows stubs as they are stored."""
    return getattr(storage, "raw", storage)


class ColdStorage:
    """A storage whose stubs cannot be taken for content. Until `arm` is called, its reads are those of `raw`."""

    def __init__(self, raw: LoggedStorage) -> None:
        self.raw = raw
        self.begin_laying = raw.begin_laying
        self.begin_sync = raw.begin_sync
        self.sync = raw.sync
        self.rotate_if_due = raw.rotate_if_due
        self.reclaim = raw.reclaim
        self.begin_erasing = raw.begin_erasing
        self.erase = raw.erase
        self.write_witness = raw.write_witness
        self.close = raw.close
        self.held: OrderedDict[bytes, HeldPack] = OrderedDict()
        """Packs in memory, by their names. Chunks of files are read from these; who fetches packs fills and bounds it."""
        self.armed = False
        """Whether there may be stubs."""
        if next(iter(raw.scan(_RECORDS, successor(_RECORDS), limit=1)), None) is not None:
            self.arm()

    @property
    def identity(self) -> bytes:
        """As `Storage.identity`."""
        return self.raw.identity

    @property
    def write(self) -> Any:
        """As `Storage.write`."""
        return self.raw.write

    @property
    def begin_write(self) -> Any:
        """As `LoggedStorage.begin_write`."""
        return self.raw.begin_write

    def bytes_on_disk(self) -> int:
        """As `Storage.bytes_on_disk`."""
        return self.raw.bytes_on_disk()

    def bytes_free(self) -> int:
        """As `Storage.bytes_free`."""
        return self.raw.bytes_free()

    @property
    def failed(self) -> str | None:
        """As `LoggedStorage.failed`."""
        return self.raw.failed

    def arm(self) -> None:
        """From now on there may be stubs. To be called before the first one is written."""
        self.armed = True

    @property
    def get(self) -> Callable[[bytes], bytes | None]:
        """As `Storage.get`.

        Raises:
            StoreCorrupt: the value is a stub, and nothing that is `held` has its chunk.
        """
        return self._get if self.armed else self.raw.get

    @property
    def scan(self) -> Any:
        """As `Storage.scan`.

        Raises:
            StoreCorrupt: while iterating, when a value is a stub.
        """
        return self._scan if self.armed else self.raw.scan

    @property
    def snapshot(self) -> Callable[[], Snapshot]:
        """As `Storage.snapshot`; its scans raise as `scan`."""
        return self._snapshot if self.armed else self.raw.snapshot

    def size(self, key: bytes) -> int | None:
        """The bytes of the content of a row, which is not fetched; None if there is no such row."""
        value = self.raw.get(key)
        return None if value is None else size_of(key, value)

    def _get(self, key: bytes, /) -> bytes | None:
        value = self.raw.get(key)
        if value is not None and value.startswith(_MAGIC) and (stub := stub_of(key, value)) is not None:
            value = self._in_memory(key, stub)
            if value is None:
                raise _away(key)
        return value

    def _in_memory(self, key: bytes, stub: Stub) -> bytes | None:
        row = key[len(keys.object_of(key)) :]
        pack = self.held.get(stub.pack) if is_of_file(row) else None
        with suppress(StoreCorrupt):
            return None if pack is None else pack.chunk(row)
        return None

    def _scan(
        self, start: bytes, stop: bytes | None, /, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        return _checked(self.raw.scan(start, stop, reverse=reverse, limit=limit))

    def _snapshot(self) -> Snapshot:
        return _ColdSnapshot(self.raw.snapshot())


class _ColdSnapshot:
    def __init__(self, raw: Snapshot) -> None:
        self._raw = raw
        self.close = raw.close

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        return _checked(self._raw.scan(start, stop))


def _checked(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    for row in rows:
        if row[1].startswith(_MAGIC) and stub_of(*row) is not None:
            raise _away(row[0])
        yield row


def _away(key: bytes) -> StoreCorrupt:
    """The error for a chunk that is not here: as for a damaged one, which is fetched before the request is tried again."""
    _, kind, space, name, _ = keys.split_object(key)
    return StoreCorrupt(f"a chunk of {kind.label} {name!r} of space {space!r} is in the object store, and was not fetched.")
