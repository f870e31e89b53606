"""Reads pieces of this node's rows, for comparison with those of its peers.

Laws:
- A piece is read in one step, at a vector that is durable as a whole, so that a crash cannot take back what it shows.
- It holds a bounded number of rows and bytes, and at least one row.
- Only rows of objects are compared, and of these none that expire (`shoal.node.collection.expiring`). Hash chains protect
  the log and the vectors; `shoal verify` checks the rows derived from these (request keys, the catalog, indexes, snapshots);
  the node's own rows have no counterpart. An object with chunks in an object store is told as one that cannot be compared.

The part of a log that has left this node, as a peer shows it that says it still has it all.

Laws:
- It is nobody's word: the operations of each origin, from its first one, must end in the chain hash of the base here.
- Of an origin that was forgotten here nothing can be checked, so no log shows anything then.
- Operations that do not change the object are dropped once their hash was checked. Those kept have `rebuild_bytes_max` bytes.
- A peer has `_WAITS_MAX` times the time for one answer, and each answer must bring something new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from msgspec import Raw

from shoal.cluster import operation
from shoal.cluster.messages import Range, Shipment, Supply
from shoal.cluster.operation import CHAIN_START, Tip
from shoal.cluster.scrub import Piece, vector_digest
from shoal.config import Config
from shoal.crdt.applier import Blobs
from shoal.crdt.dot import Dot, Origin
from shoal.crdt.rows import successor
from shoal.errors import ShoalError, StoreCorrupt
from shoal.node import mutation, transaction
from shoal.node.collection.entries import of_partition
from shoal.node.collection.expiring import range_end
from shoal.node.mutation import ImportedMutation
from shoal.node.partitions import Partitions
from shoal.node.verification.report import Logged, ObjectPlace
from shoal.records import NamedTuple
from shoal.storage import cold, keys
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind

REPAIR_WAIT_S = 5.0  # For one peer's answer to a read repair; then the next peer is asked.
SCRUB_PIECE_ROWS = 128  # Compared in one step, so that scrub does not delay other work.
SCRUB_PIECE_BYTES = 64 * 1024  # The same in bytes; the first row may exceed it.

ERASED_MAX = 256
"""A partition with more entries of garbage is compared only after they were swept."""

_SLACK = 4  # A peer may have so many times more rows in a range than the node that asks.


class Evidence:
    """Reads pieces of this node's rows. `None` instead of a piece: it cannot be compared now."""

    def __init__(self, storage: Storage, partitions: Partitions) -> None:
        self._storage = storage
        self._raw = cold.raw_of(storage)  # Stubs are of objects that are passed over.
        self._partitions = partitions

    def next(self, number: int, start: bytes) -> Piece | None:
        """The piece of a partition that begins at `start`, which is empty for the first piece."""
        first, stop = bounds(number)
        return self._read(number, start or first, stop, slack=1)

    def within(self, number: int, start: bytes, stop: bytes) -> Piece | None:
        """All rows of a range of one partition, or as many as fit; the piece's own `stop` says how far it goes."""
        first, end = bounds(number)
        if not first <= start < stop <= end:
            return None
        return self._read(number, start, stop, slack=_SLACK)

    def _read(self, number: int, start: bytes, stop: bytes, *, slack: int) -> Piece | None:
        partition = self._partitions.load(number)
        if partition.closed or partition.vector != partition.durable:
            return None
        rows_max, bytes_max = SCRUB_PIECE_ROWS * slack, SCRUB_PIECE_BYTES * slack
        rows: list[tuple[bytes, bytes, bytes]] = []
        size, name = 0, b"\xff"
        try:
            erased = of_partition(self._storage, number, ERASED_MAX)
            if erased is None:
                return None
            away = cold.objects(self._raw, number, start, stop)
            erased = erased.union(away)
            for key, value in self._compared(start, stop, rows_max + 1, away):
                if len(rows) == rows_max or (rows and size + len(value) > bytes_max):
                    stop = key
                    break
                if not key.startswith(name):
                    name = object_of(key)
                rows.append((name, key, value))
                size += len(key) + len(value)
        except StoreCorrupt:
            return None  # A request that reads the damaged block reports and repairs it.
        return Piece(number, vector_digest(partition.vector), start, stop, size, rows, erased)

    def _compared(self, start: bytes, stop: bytes, limit: int, away: Collection[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a range, without those that expire, and of objects that are away: these are passed over, not read."""
        name, at = b"\xff", start
        while at < stop:
            for key, value in self._raw.scan(at, stop, limit=limit):
                if not key.startswith(name):
                    name = object_of(key)
                end = successor(name) if name in away else range_end(name, key)
                if end is not None:
                    at = end
                    break
                yield key, value
            else:
                return


def bounds(number: int) -> tuple[bytes, bytes]:
    """The key range of the objects of a partition."""
    prefix = keys.OBJECT + number.to_bytes(2, "big")
    stop = successor(prefix)
    assert stop is not None  # It begins with the table's byte.
    return prefix, stop


def object_of(key: bytes) -> bytes:
    """The prefix of the rows of an object, from the key of any of its rows."""
    at = 6 + int.from_bytes(key[4:6], "big")
    return key[: at + 2 + int.from_bytes(key[at : at + 2], "big")]


_ORIGINS_AT_ONCE = 256  # In one question.
_WAITS_MAX = 12

Ask = Callable[[bytes, list[Range]], Awaitable[Supply | None]]
"""Asks a peer for operations; None if no answer came in time."""


class Changes(NamedTuple):
    """An operation that changes an object."""

    logged: Logged
    changes: list[ImportedMutation]


class Shown(NamedTuple):
    """The operations of an object up to the bases, which were checked, with the blobs that the peer sent beside them."""

    bases: Mapping[Origin, Tip]
    entries: list[Changes]
    supplied: dict[Dot, list[Blobs]]


async def shown_by(peer: bytes, place: ObjectPlace, bases: Mapping[Origin, Tip], *, ask: Ask, config: Config) -> Shown | None:
    """Fetch what has left the log here from a peer; None if it does not show it, or shows another log."""
    reading = _Reading(place, bases, config.rebuild_bytes_max)
    with suppress(TimeoutError, ShoalError, ValueError):
        async with asyncio.timeout(_WAITS_MAX * REPAIR_WAIT_S):
            while wanted := reading.wanted():
                supply = await ask(peer, wanted)
                if not reading.take(() if supply is None else supply.operations):
                    return None
            return reading.shown
    return None


def changes_of(place: ObjectPlace, body: operation.Body) -> list[ImportedMutation] | None:
    """The changes of an operation, if one of them is of this object.

    Raises:
        StoreCorrupt: they cannot be decoded.
    """
    made = mutation.decode(body.payload)
    is_of_it = any((Kind(each.kind), each.space, each.name) == tuple(place[1:]) for each in made)
    return list(made) if is_of_it else None


class _Reading:
    """How far a peer has shown its log."""

    def __init__(self, place: ObjectPlace, bases: Mapping[Origin, Tip], bytes_max: int) -> None:
        self._place = place
        self._left = dict(bases)
        self._ends: dict[Origin, tuple[int, bytes]] = {}
        self._bytes_left = bytes_max
        self.shown = Shown(bases, [], {})

    def wanted(self) -> list[Range]:
        """The next operations to ask for; none: all are here, and are those that have left."""
        some = islice(self._left.items(), _ORIGINS_AT_ONCE)
        return [(self._place.partition, origin, self._end(origin)[0] + 1, base.sequence) for origin, base in some]

    def take(self, shipments: Sequence[Shipment | Raw]) -> bool:
        """Take an answer. Returns whether it brought anything, and nothing but what has left the log here.

        Raises:
            ShoalError, ValueError: an operation cannot be decoded.
        """
        is_new = False
        for shipment in shipments:
            if isinstance(shipment, Raw) or not self._is_next(shipment):
                continue
            if not self._follows(shipment):
                return False
            self._keep(shipment)
            is_new = True
        return is_new and self._bytes_left >= 0

    def _end(self, origin: Origin) -> tuple[int, bytes]:
        return self._ends.get(origin, (0, CHAIN_START))

    def _is_next(self, shipment: Shipment) -> bool:
        dot = shipment.dot
        is_wanted = shipment.partition == self._place.partition and dot.origin in self._left
        return is_wanted and dot.sequence == self._end(dot.origin)[0] + 1

    def _follows(self, shipment: Shipment) -> bool:
        """Whether the operation may be what has left: at the base this is known."""
        dot, base = shipment.dot, self._left[shipment.dot.origin]
        chain = operation.chain(self._end(dot.origin)[1], shipment.partition, dot, shipment.packed)
        self._ends[dot.origin] = dot.sequence, chain
        if dot.sequence == base.sequence:
            del self._left[dot.origin]
            return chain == base.chain
        return True

    def _keep(self, shipment: Shipment) -> None:
        body = operation.decode(shipment.packed)
        changes = changes_of(self._place, body)
        if changes is not None:
            self._bytes_left -= len(shipment.packed) + len(shipment.attached)
            self.shown.entries.append(Changes(Logged(shipment.partition, body.hlc, shipment.dot, body), changes))
            self.shown.supplied[shipment.dot] = transaction.unpack_sent(shipment.attached)
