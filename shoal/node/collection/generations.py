"""The current generation of an object, and the place of each generation's rows.

Law: memory remembers only objects that were never deleted. It forgets one before a
deletion is applied, and again after the deletion was written.
"""

from __future__ import annotations

from msgspec import Struct

from shoal.crdt import deletion
from shoal.crdt.rows import Stamp, successor
from shoal.errors import StoreCorrupt
from shoal.kinds.items.serving.indexes import Indexes
from shoal.node import blobs
from shoal.node.appliers import mutation
from shoal.node.appliers.mutation import Mutation
from shoal.node.blobs import ERASED, NOTHING, Blobs
from shoal.node.catalog import Recent
from shoal.node.handler import Target
from shoal.node.transaction import ObjectRows, Transaction
from shoal.storage import keys
from shoal.storage.keys import Kind

LIMBO = b"Z"  # In the rows of an ended generation: the blobs of a change that arrived after the end.


class Generation(Struct, frozen=True):
    """An object's generation; `number` counts its deletions from 0."""

    number: int
    rows: ObjectRows


class Generations:
    """Finds an object's generations. `known_max` bounds the objects remembered as never deleted."""

    def __init__(self, indexes: Indexes, *, known_max: int) -> None:
        self._indexes = indexes
        self._first: Recent[Target] = Recent(known_max)  # Known never to have been deleted: a request need not look.

    def current(self, transaction: Transaction, target: Target) -> Generation:
        """The current generation, whose rows reads show."""
        prefix = keys.object_rows(target.partition, *target)
        if target in self._first:
            return Generation(0, self._rows(transaction, target, prefix))
        packed = transaction.get(prefix + deletion.ROW)
        if packed is None:
            self._first.put(target)
            return Generation(0, self._rows(transaction, target, prefix))
        number = deletion.unpack(packed).generation
        return Generation(number, self._rows(transaction, target, prefix + deletion.prefix(number)))

    def _rows(self, transaction: Transaction, target: Target, prefix: bytes) -> ObjectRows:
        """The rows below the prefix of the current generation. Only items have indexes."""
        if target.kind is Kind.ITEMS:
            return self._indexes.rows(transaction, target, prefix)
        return ObjectRows(transaction, prefix)

    def last(self, transaction: Transaction, target: Target) -> deletion.Deletion | None:
        """The deletion that began the current generation; None: the object was never deleted."""
        if target in self._first:
            return None
        return deletion.last(ObjectRows(transaction, keys.object_rows(target.partition, *target)))

    def delete(self, transaction: Transaction, target: Target, stamp: Stamp, change: deletion.Delete) -> bool:
        """Apply a deletion. Returns whether a new generation is the current one."""
        self._first.drop(target)
        # Again after the write, because a lookup before it may have remembered the object.
        transaction.when_written(lambda: self._first.drop(target))
        return deletion.apply(ObjectRows(transaction, keys.object_rows(target.partition, *target)), stamp, change)

    def forget_all(self) -> None:
        """Forget what is remembered of all objects."""
        self._first.clear()

    def forget(self, target: Target) -> None:
        """Forget what is remembered of an object, so that the next request reads it."""
        self._first.drop(target)

    def bury(self, transaction: Transaction, target: Target, stamp: Stamp, change: Mutation, beside: Blobs) -> None:
        """Keep the blobs of a change of an ended generation, for peers that lack the change."""
        rows_of(transaction, target, change.generation).put(LIMBO + stamp.pack_position(), blobs.pack([beside]))

    def attached_of(self, transaction: Transaction, target: Target, stamp: Stamp, change: Mutation) -> Blobs:
        """The blobs of an applied change; `ERASED` if they were swept.

        Raises:
            StoreCorrupt: a row is missing, or does not match its hash in the log.
        """
        if mutation.ends(change.change):
            return NOTHING
        current = self.current(transaction, target)
        if change.generation == current.number:
            return mutation.attached_of(current.rows, stamp, change.change)
        rows = rows_of(transaction, target, change.generation)
        if (buried := rows.get(LIMBO + stamp.pack_position())) is not None:
            return blobs.unpack(buried)[0]
        if next(iter(transaction.scan(*dead_range(target, change.generation + 1), limit=1)), None) is None:
            return ERASED
        try:
            return mutation.attached_of(rows, stamp, change.change)
        except StoreCorrupt:  # The receiver finds the change dead and needs no blobs.
            return ERASED


def rows_of(transaction: Transaction, target: Target, generation: int) -> ObjectRows:
    """The rows of one generation of an object, without indexes."""
    return ObjectRows(transaction, keys.object_rows(target.partition, *target) + deletion.prefix(generation))


def dead_range(target: Target, current: int) -> tuple[bytes, bytes]:
    """The key range of the rows of generation `current - 1`."""
    prefix = keys.object_rows(target.partition, *target)
    ended = current - 1
    if ended == 0:
        stop = successor(prefix)
        assert stop is not None  # It begins with the table's byte.
        return prefix + b"\x01", stop
    return prefix + deletion.prefix(ended), prefix + deletion.prefix(current)


def current_of(row: bytes, value: bytes) -> bytes:
    """The prefix of the rows of an object's current generation, given the first of all its rows."""
    return deletion.prefix(deletion.unpack(value).generation) if row == deletion.ROW else b""


def split(row: bytes) -> tuple[int, bytes]:
    """The generation of an object's row, and the row's key within the generation."""
    if not row.startswith(deletion.ROW) or row == deletion.ROW:
        return 0, row
    at = 1 + deletion.GENERATION_BYTES
    return int.from_bytes(row[1:at], "big"), row[at:]
