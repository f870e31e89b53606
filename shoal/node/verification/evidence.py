"""Reads pieces of this node's rows, for comparison with those of its peers.

Laws:
- A piece is read in one step, at a vector that is durable as a whole, so that a crash cannot take back what it shows.
- It holds a bounded number of rows and bytes, and at least one row.
- Only rows of objects are compared, and of these none that expire (`shoal.node.collection.expiring`). Hash chains protect
  the log and the vectors; `shoal verify` checks the rows derived from these (request keys, the catalog, indexes, snapshots);
  the node's own rows have no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.cluster.scrub import Piece, vector_digest
from shoal.config import Config
from shoal.crdt.rows import successor
from shoal.errors import StoreCorrupt
from shoal.node.collection.entries import of_partition
from shoal.node.collection.expiring import range_end
from shoal.node.partitions import Partitions
from shoal.storage import keys
from shoal.storage.interface import Storage

ERASED_MAX = 256
"""A partition with more entries of garbage is compared only after they were swept."""

_SLACK = 4  # A peer may have so many times more rows in a range than the node that asks.


class Evidence:
    """Reads pieces of this node's rows. `None` instead of a piece: it cannot be compared now."""

    def __init__(self, storage: Storage, partitions: Partitions, config: Config) -> None:
        self._storage = storage
        self._partitions = partitions
        self._config = config

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
        rows_max, bytes_max = self._config.scrub_piece_rows * slack, self._config.scrub_piece_bytes * slack
        rows: list[tuple[bytes, bytes, bytes]] = []
        size, name = 0, b"\xff"
        try:
            erased = of_partition(self._storage, number, ERASED_MAX)
            if erased is None:
                return None
            for key, value in self._compared(start, stop, rows_max + 1):
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

    def _compared(self, start: bytes, stop: bytes, limit: int) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a range, without those that expire: these are passed over, not read."""
        name, at = b"\xff", start
        while at < stop:
            for key, value in self._storage.scan(at, stop, limit=limit):
                if not key.startswith(name):
                    name = object_of(key)
                end = range_end(name, key)
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
