"""Replaces a partition by a staged snapshot of a peer.

Laws:
- The marker is written after every piece was staged and checked. Once it is durable the switch is carried out, or, after a
  crash, carried out again when the node starts, before anything reads the partition.
- A snapshot replaces the partition. No row of the old state is left in its tables, and none is merged.
- The writes may be made again from the first one at any time. So the catalog's entries of the old objects go before the
  rows that list these objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec

from shoal.crdt.rows import successor
from shoal.errors import StoreCorrupt
from shoal.kinds.label.asks import Watch
from shoal.kinds.step import state as status
from shoal.node.catalog import STATUS_CODES, standing
from shoal.node.collection.entries import current_of
from shoal.node.handler import Target
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.commit import LoggedStorage
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind

_MARKER = keys.meta("switching/")  # Followed by the partition₂; the value is the number of staged pieces₄.
_LISTED, _OBJECT = keys.LISTED[0], keys.OBJECT[0]
_PAGE = 512  # Objects whose entries leave the catalog in one write.

Row = tuple[bytes, bytes]

_decoder = msgspec.msgpack.Decoder(list[Row])
_encoder = msgspec.msgpack.Encoder()


class Write(NamedTuple):
    """The arguments of `Storage.write`."""

    rows: dict[bytes, bytes | None]
    ranges: list[tuple[bytes, bytes]]


def pack(rows: list[Row]) -> bytes:
    """A piece with these rows."""
    return _encoder.encode(rows)


def unpack(piece: bytes) -> list[Row]:
    """The rows of a piece.

    Raises:
        ValueError: it is malformed.
    """
    return _decoder.decode(piece)


def marker(number: int, pieces: int) -> dict[bytes, bytes | None]:
    """The row which says that a partition is being replaced by so many staged pieces."""
    return {marker_of(number): pieces.to_bytes(4, "big")}


def marker_of(number: int) -> bytes:
    """The key of a partition's marker."""
    return _MARKER + number.to_bytes(2, "big")


def marked(storage: Storage) -> dict[int, int]:
    """The partitions that are being replaced, and the number of pieces of each."""
    found = storage.scan(_MARKER, successor(_MARKER))
    return {int.from_bytes(key[len(_MARKER) :], "big"): int.from_bytes(pieces, "big") for key, pieces in found}


def replaced_by(rows: Iterable[bytes]) -> list[int]:
    """The partitions that a write with rows of these keys begins or ends to replace."""
    return [int.from_bytes(key[len(_MARKER) :], "big") for key in rows if key.startswith(_MARKER)]


def discard(storage: Storage, number: int) -> Write:
    """The write that drops what is staged for a partition."""
    return Write({}, _filled(storage, [keys.rows_of(keys.STAGED, number)]))


def writes(storage: Storage, number: int, pieces: Iterable[list[Row]]) -> Iterator[Write]:
    """The writes that replace a partition by the rows of these pieces, in order.

    Each is made before the next one is asked for.
    """
    yield from _leaving(storage, number)
    vector, *others = (keys.rows_of(table, number) for table in (*keys.PARTITION_TABLES, *keys.DERIVED_TABLES))
    # A partition without a vector is empty: nothing else is written before it, or left when it goes.
    yield Write({}, [vector, *_filled(storage, others)] if _filled(storage, [vector]) else [])
    entries = Entries()
    for rows in pieces:
        yield Write(entries.added_to(rows), [])
    yield Write({marker_of(number): None}, discard(storage, number).ranges)


def _filled(storage: Storage, spans: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Those of these spans in which there are rows: each range that was deleted makes every scan of RocksDB slower."""
    return [span for span in spans if next(iter(storage.scan(*span, limit=1)), None) is not None]


def at_once(made: Iterator[Write]) -> Write:
    """All these writes as one."""
    together = Write({}, [])
    for write in made:
        together.rows.update(write.rows)
        together.ranges.extend(write.ranges)
    return together


def all_staged(storage: Storage, number: int, pieces: int) -> Iterator[list[Row]]:
    """The rows of the staged pieces, piece by piece.

    Raises:
        StoreCorrupt: one is missing or damaged.
    """
    return (staged(storage, number, piece) for piece in range(pieces))


def staged(storage: Storage, number: int, piece: int) -> list[Row]:
    """The rows of a staged piece.

    Raises:
        StoreCorrupt: it is missing or damaged.
    """
    stored = storage.get(keys.staged(number, piece))
    with suppress(ValueError):
        if stored is not None:
            return unpack(stored)
    raise StoreCorrupt(
        f"piece {piece} of the snapshot that replaces partition {number} is {'missing' if stored is None else 'damaged'}. "
        "Nothing was written. Move the directory aside, and start with an empty one: the peers have the data."
    )


def recover(storage: LoggedStorage) -> list[int]:
    """Carry out the switches that the last incarnation began, and drop other staged pieces. Returns the partitions.

    Raises:
        StoreCorrupt: a staged piece is missing or damaged.
        StorageFull: the disk is full; the next start tries again.
    """
    found = marked(storage)
    for number, pieces in found.items():
        for write in writes(storage, number, all_staged(storage, number, pieces)):
            storage.write(*write)
            storage.rotate_if_due()
    leftover = next(iter(storage.scan(keys.STAGED, successor(keys.STAGED), limit=1)), None)
    if leftover is not None:
        storage.write({}, [(keys.STAGED, keys.STAGED + b"\xff\xff\xff")])
    if found or leftover is not None:
        storage.sync()
    return list(found)


def listed(storage: Storage, number: int, of: Kind | None = None) -> Iterator[Target]:
    """The objects in the list of a partition, or those of one kind."""
    start, stop = keys.rows_of(keys.LISTED, number)
    if of is not None:
        start, stop = start + bytes([of]), start + bytes([of + 1])
    for key, _ in storage.scan(start, stop):
        _, kind, space, name, _ = keys.split_object(key)
        yield Target(kind, space, name)


def spaces_of(storage: Storage, number: int) -> set[str]:
    """The spaces of the objects in the list of a partition."""
    found: set[str] = set()
    last = b"\xff"
    for key, _ in storage.scan(*keys.rows_of(keys.LISTED, number)):
        if not key.startswith(last):
            last = keys.space_of(key)
            found.add(keys.split_object(key)[2])
    return found


def _leaving(storage: Storage, number: int) -> Iterator[Write]:
    """Remove the catalog's entries of the objects that the partition lists now."""
    leaving = Write({}, [])
    for count, target in enumerate(listed(storage, number), 1):
        entry = keys.catalog(target.space, target.kind, target.name)
        leaving.rows[entry] = None
        if target.kind is Kind.THREAD:
            leaving.rows.update(dict.fromkeys(_statuses(target.space, target.name)))
            if before := storage.get(entry):
                leaving.rows[keys.status(target.space, before, target.name)] = None
        if count % _PAGE == 0:
            yield leaving
            leaving = Write({}, [])
    yield leaving


def _statuses(space: str, name: str) -> list[bytes]:
    """The rows of a thread under all statuses, of which it has at most one, and as one that asks."""
    return [keys.status(space, bytes([code]), name) for code in (*STATUS_CODES.values(), keys.ASKING)]


class Entries:
    """Adds the catalog's entries to the rows of a snapshot, which come in their order."""

    def __init__(self) -> None:
        self._object = b"\xff"  # The prefix of all rows of the thread whose rows come now,
        self._current = self._open = self._moves = b""  # of its current generation, of the open steps and the moves in that.
        self._oldest: bytes | None = None  # The position of its first open step.
        self._watch = Watch()  # Of its labels and notes.
        self._is_due = self._is_asking = False  # Whether notes came since that was looked at; and what was found.

    def added_to(self, rows: list[Row]) -> dict[bytes, bytes | None]:
        """These rows, with those that follow from them."""
        made: dict[bytes, bytes | None] = dict(rows)
        for key, value in rows:
            if key.startswith(self._object):
                self._follow(made, key, value)
            elif key[0] == _LISTED:
                made[keys.catalog_of_listed(key)] = b""
            elif key[0] == _OBJECT and key[3] == Kind.THREAD:
                self._ask(made)
                self._object = keys.object_of(key)
                self._current = current = self._object + current_of(key[len(self._object) :], value)
                self._open, self._moves, self._oldest = current + status.OPEN, current + status.MOVE, None
                self._watch, self._is_asking = Watch(), False
                self._follow(made, key, value)
        self._ask(made)
        return made

    def _follow(self, made: dict[bytes, bytes | None], key: bytes, value: bytes) -> None:
        """List a thread under the first open step, and then the last status, of its current generation.

        Rows come in the order of their keys: labels, notes, open steps, moves. A row that the sender's disk altered is copied
        as it is, and is no reason to stop: the scrub replaces it, and lists the thread under its status then.
        """
        if key.startswith(self._moves):
            with suppress(StoreCorrupt):
                self._list(made, standing(status.decode(value).status, self._oldest))
        elif key.startswith(self._open) and self._oldest is None:
            self._oldest = key[len(self._open) :]
            self._list(made, standing("running", self._oldest))
        elif key.startswith(self._current):
            self._is_due |= self._watch.take(key[len(self._current) :], value)

    def _ask(self, made: dict[bytes, bytes | None]) -> None:
        """List the thread as one that asks, or not, if notes of it came; no status of it came yet."""
        if self._is_due:
            self._is_due, self._is_asking = False, self._watch.is_asking
            made[self._asking] = b"" if self._is_asking else None

    @property
    def _asking(self) -> bytes:
        _, _, space, name, _ = keys.split_object(self._object)
        return keys.status(space, bytes([keys.ASKING]), name)

    def _list(self, made: dict[bytes, bytes | None], now: bytes) -> None:
        self._ask(made)
        _, _, space, name, _ = keys.split_object(self._object)
        made.update(dict.fromkeys(_statuses(space, name)))
        if self._is_asking and now[:1] in (b"", bytes([keys.OPEN])):
            made[self._asking] = b""
        if self._oldest is not None:
            made[keys.status(space, keys.open_since(self._oldest), name)] = None
        made[keys.catalog(space, Kind.THREAD, name)] = now
        if now:
            made[keys.status(space, now, name)] = b""
