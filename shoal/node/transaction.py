"""Writes that have not been made yet, over storage that has not seen them; and the form in which the bytes beside changes
(`shoal.crdt.applier.Blobs`) travel. They are stored once, as rows, and are read from there again.

Law: reads see the transaction's own writes, then storage; nothing reaches storage
until the caller passes `rows` to one atomic write. Work that depends on the outcome
(caches to update, or to drop) is registered here; the caller runs it once.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Generator, Iterable, Iterator
from hashlib import sha256
from itertools import islice
from typing import Any, Protocol

import msgspec

from shoal.crdt.applier import Blobs
from shoal.crdt.rows import successor
from shoal.errors import BadOperation, StoreCorrupt
from shoal.storage import cold
from shoal.values.work import counting, has_at_most

BLOBS_MAX = 49_152  # Values: as many chunks as a request may bring channels, 16,384, with those that are cut; and 4 a change.
BLOBS_STEP_MAX = 1 << 14  # Of those, counted in one step of a look at what a peer sent.
BLOB_BYTES_STEP_MAX = 4 * 1024 * 1024  # Hashed in one step: some 10 ms.
_HASH_BYTES = 1024  # To hash nothing takes as long as so many bytes.


class _Packed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    content: bytes
    chunks: list[bytes]
    erased: bool = False


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[_Packed])


def pack_blobs(attached: Iterable[Blobs]) -> bytes:
    """The bytes that go beside an operation: per mutation its content, its chunks without hashes, and if some were erased."""
    return _encoder.encode([_Packed(beside.content, list(beside.chunks.values()), beside.erased) for beside in attached])


def unpack_blobs(packed: bytes) -> list[Blobs]:
    """The blobs of each mutation. The key of a chunk is computed from its bytes, so a forged one is not found.

    Raises:
        BadOperation: `pack_blobs` did not make these bytes.
    """
    return [
        Blobs(each.content, {sha256(piece).digest(): piece for piece in each.chunks}, each.erased) for each in _unpacked(packed)
    ]


def _unpacked(packed: bytes) -> list[_Packed]:
    try:
        return _decoder.decode(packed)
    except ValueError as error:  # msgspec's own are ValueErrors too.
        raise BadOperation(f"the bytes beside it cannot be read ({error})", reason="content") from None


def unpack_sent(packed: bytes) -> list[Blobs]:
    """As `unpack_blobs`, of bytes that a peer sent.

    Raises:
        BadOperation: `pack_blobs` did not make these bytes, or they hold more blobs than any operation has.
    """
    if len(packed) > BLOBS_MAX and not has_at_most(packed, BLOBS_MAX):  # None is hashed then.
        raise _too_many()
    return unpack_blobs(packed)


def unpacking_sent(packed: bytes) -> Generator[None, None, list[Blobs]]:
    """As `unpack_sent`, in steps."""
    if len(packed) > BLOBS_MAX and not (yield from counting(packed, BLOBS_MAX, BLOBS_STEP_MAX)):
        raise _too_many()
    found: list[Blobs] = []
    size = 0
    for each in _unpacked(packed):
        chunks: dict[bytes, bytes] = {}
        for piece in each.chunks:
            size += len(piece) + _HASH_BYTES
            if size > BLOB_BYTES_STEP_MAX:
                yield
                size = 0
            chunks[sha256(piece).digest()] = piece
        found.append(Blobs(each.content, chunks, each.erased))
    return found


def _too_many() -> BadOperation:
    return BadOperation(f"more than {BLOBS_MAX} blobs are beside it", reason="content")


_UNREAD: Any = object()


class Readable(Protocol):
    """The reading half of a `Storage`."""

    def get(self, key: bytes, /) -> bytes | None:
        """The value of `key`, or None (`Storage.get`)."""
        ...

    def scan(
        self, start: bytes, stop: bytes | None, /, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """The rows with `start` ≤ key < `stop` (None: to the end), in key order or its reverse (`Storage.scan`)."""
        ...


class Transaction:
    """One write in the making. `rows` are its writes by key; None deletes. `lasts`: others get turns until it is made."""

    __slots__ = ("_abandoned", "_changed", "_get", "_keys", "_read", "_storage", "_written", "lasts", "rows")

    def __init__(self, storage: Readable, *, lasts: bool = False) -> None:
        self.lasts = lasts
        self._storage = storage
        self._get = _fresh_get(storage) if lasts else storage.get  # Within one turn storage has one way to read.
        self._read: dict[bytes, bytes | None] = {}  # Nobody else writes while a transaction decides.
        self.rows: dict[bytes, bytes | None] = {}  # No key is ever removed from it, so new ones are the last.
        self._keys: list[bytes] = []  # Of `rows`, sorted; those that were written since the last scan are missing.
        self._written: list[Callable[[], None]] = []
        self._changed: dict[Any, Callable[[], None]] | None = None
        self._abandoned: list[Callable[[], None]] = []

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`, or None; storage is asked once for each key."""
        value: bytes | None = self.rows.get(key, _UNREAD)
        if value is _UNREAD:
            value = self._read.get(key, _UNREAD)
            if value is _UNREAD:
                value = self._read[key] = self._get(key)
        return value

    def size(self, key: bytes) -> int | None:
        """The bytes of a value (`Rows.size`)."""
        mine: bytes | None = self.rows.get(key, _UNREAD)
        if mine is not _UNREAD:
            return None if mine is None else len(mine)
        if isinstance(self._storage, Transaction):
            return self._storage.size(key)
        value = cold.raw_of(self._storage).get(key)
        return None if value is None else cold.size_of(key, value)

    def put(self, key: bytes, value: bytes) -> None:
        """Set a row."""
        self.rows[key] = value

    def delete(self, key: bytes) -> None:
        """Delete a row, whether or not it exists."""
        self.rows[key] = None

    def scan(
        self, start: bytes, stop: bytes | None, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """As `Storage.scan`, merged with the transaction's own writes. Write nothing while it is iterated."""
        own = self._written_between(start, stop)
        if not own:
            return self._storage.scan(start, stop, reverse=reverse, limit=limit)
        if reverse:
            own.reverse()
        return islice(self._merged(own, start, stop, reverse=reverse), limit)

    def sizes(self, start: bytes, stop: bytes | None, *, limit: int) -> Iterator[tuple[bytes, int]]:
        """As `scan`, with the bytes of each value in its place; none is fetched. Nothing may have been written before."""
        assert not self.rows
        for key, value in cold.raw_of(self._storage).scan(start, stop, limit=limit):
            yield key, cold.size_of(key, value)

    def _written_between(self, start: bytes, stop: bytes | None) -> list[bytes]:
        keys = self._keys
        for key in islice(reversed(self.rows), len(self.rows) - len(keys)):  # From the end: the others are not passed again.
            insort(keys, key)
        return keys[bisect_left(keys, start) : None if stop is None else bisect_left(keys, stop)]

    def _merged(self, own: list[bytes], start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        stored = (row for row in self._storage.scan(start, stop, reverse=reverse) if row[0] not in self.rows)
        mine = ((key, value) for key in own if (value := self.rows[key]) is not None)
        return heapq.merge(stored, mine, key=lambda row: row[0], reverse=reverse)

    def absorb(self, inner: Transaction) -> None:
        """Take over the writes of a transaction that was begun on this one."""
        self.rows.update(inner.rows)
        if inner._written:
            self._written += inner._written
        if inner._abandoned:
            self._abandoned += inner._abandoned

    def when_changed(self, key: Any, then: Callable[[], None]) -> None:
        """Register work to do once the last change of the operation is in here; work with the same key is done once."""
        if self._changed is None:
            self._changed = {}
        self._changed[key] = then

    def changed(self) -> None:
        """Do what was registered with `when_changed`: the last change of an operation is in here."""
        if self._changed is not None:
            work, self._changed = self._changed, None
            for then in work.values():
                then()

    def when_written(self, then: Callable[[], None]) -> None:
        """Register work to do after the write was made."""
        self._written.append(then)

    def when_abandoned(self, then: Callable[[], None]) -> None:
        """Register work to do if the write is not made."""
        self._abandoned.append(then)

    def written(self) -> None:
        """Run the work registered with `when_written`. The caller has made the write."""
        for then in self._written:
            then()

    def abandoned(self) -> None:
        """Run the work registered with `when_abandoned`. The caller makes no write."""
        for then in self._abandoned:
            then()


def _fresh_get(storage: Readable) -> Callable[[bytes], bytes | None]:
    """Reads as the storage does at that time: it may begin to hold stubs (`shoal.storage.cold`)."""
    return lambda key: storage.get(key)


class Nested(Transaction):
    """A transaction begun on another one, which remembers reads. The outer one absorbs its writes or drops them."""

    __slots__ = ()

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`, or None. It is not remembered here."""
        value = self.rows.get(key, _UNREAD)
        return self._get(key) if value is _UNREAD else value

    def clear(self) -> None:
        """Begin anew: what was written here was absorbed, or is dropped."""
        self.rows.clear()
        self._keys.clear()
        self._written.clear()
        self._abandoned.clear()


class ObjectRows:
    """One object's rows within a transaction: `shoal.crdt.rows.Rows` under a key prefix."""

    __slots__ = ("_prefix", "transaction")

    def __init__(self, transaction: Transaction, prefix: bytes) -> None:
        self.transaction = transaction
        self._prefix = prefix

    def key(self, row: bytes) -> bytes:
        """A row's key in storage."""
        return self._prefix + row

    def wrote(self, row: bytes) -> bool:
        """Whether this transaction has written or deleted the row."""
        return self._prefix + row in self.transaction.rows

    def get(self, key: bytes, /) -> bytes | None:
        """The value of one of the object's rows, or None.

        Raises:
            StoreCorrupt: storage cannot read it; `lost` names the row.
        """
        try:
            return self.transaction.get(self._prefix + key)
        except StoreCorrupt as error:
            raise StoreCorrupt(error.message, lost=(key,)) from error

    def size(self, key: bytes, /) -> int | None:
        """The bytes of one of the object's rows, which is not fetched; None if there is no such row (`Rows.size`).

        Raises:
            StoreCorrupt: as `get`.
        """
        try:
            return self.transaction.size(self._prefix + key)
        except StoreCorrupt as error:
            raise StoreCorrupt(error.message, lost=(key,)) from error

    def put(self, key: bytes, value: bytes, /) -> None:
        """Write a row, in place of any that has this key (`Rows.put`)."""
        self.transaction.rows[self._prefix + key] = value

    def delete(self, key: bytes, /) -> None:
        """Remove a row, if it exists (`Rows.delete`)."""
        self.transaction.rows[self._prefix + key] = None

    def scan(
        self, prefix: bytes, /, *, after: bytes | None = None, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows whose key begins with `prefix`, in key order (or its reverse) (`Rows.scan`)."""
        start = self._prefix + prefix
        stop = successor(start)
        if after is not None:
            if reverse:
                stop = min(stop, self._prefix + after) if stop is not None else self._prefix + after
            else:
                start = max(start, self._prefix + after + b"\x00")
        size = len(self._prefix)
        if stop is not None and start >= stop:
            return
        for key, value in self.transaction.scan(start, stop, reverse=reverse, limit=limit):
            yield key[size:], value

    def sizes(self, *, after: bytes | None, limit: int) -> Iterator[tuple[bytes, int]]:
        """The object's rows after one of them, each with the bytes of its value, which is not fetched (`Transaction.sizes`)."""
        start = self._prefix if after is None else self._prefix + after + b"\x00"
        for key, size in self.transaction.sizes(start, successor(self._prefix), limit=limit):
            yield key[len(self._prefix) :], size
