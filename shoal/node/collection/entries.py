"""Generations of an object, and the entries of the queue of garbage: what an operation leaves to be swept.

The current generation of an object, and the place of each generation's rows.

Law: memory remembers only objects that were never deleted. It forgets one before a
deletion is applied, and again after the deletion was written.

The entries of the queue of garbage: what an operation leaves to be swept, and how that is written.

Laws:
- An entry is believed only as far as its operation makes it: while that is in the log, an entry that a disk altered is written
  again from it.
- An ended generation is swept only if the object's rows say that it has ended, whatever the log says.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from shoal.cluster import operation
from shoal.crdt import deletion
from shoal.crdt.applier import ERASED, NOTHING, Blobs, What
from shoal.crdt.dot import NOTHING_SEEN, Dot
from shoal.crdt.rows import Stamp, successor
from shoal.errors import InvalidValue, StoreCorrupt
from shoal.kinds.items.serving.indexes import Indexes
from shoal.logs import events
from shoal.logs.lines import log
from shoal.node import mutation
from shoal.node.catalog import Recent
from shoal.node.handler import Target, rows_prefix
from shoal.node.mutation import Mutation
from shoal.node.transaction import ObjectRows, Readable, Transaction, pack_blobs, unpack_blobs
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.commit import GroupCommit, LoggedStorage
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
        prefix = rows_prefix(target)
        if self._first.holds(target):
            if target.kind is not Kind.ITEMS:  # A call less for each write.
                return Generation(0, ObjectRows(transaction, prefix))
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
        rows_of(transaction, target, change.generation).put(LIMBO + stamp.pack_position(), pack_blobs([beside]))

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
            return unpack_blobs(buried)[0]
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


class Garbage(msgspec.Struct, array_like=True, frozen=True):
    """The value of an entry: what its operation erased. The key names the operation."""

    what: What
    kind: int
    space: str
    name: str
    generation: int
    # Of a trim, 32 bytes each; of a compaction the position₃₄ of its rows, and its digest₃₂; of an erasure positions₃₄; of a
    # cut of notes what `notes.pack_cut` returns.
    ends: bytes = b""

    @property
    def target(self) -> Target:
        """The object whose rows were erased."""
        return Target(Kind(self.kind), self.space, self.name)


class GarbageEntry(NamedTuple):
    """An entry as it is in the queue: the key in storage, and what it names."""

    key: bytes
    partition: int
    dot: Dot
    garbage: Garbage


class Left(NamedTuple):
    """The rows that a change leaves to be swept, whatever they are."""

    what: What
    generation: int
    ends: bytes = b""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Garbage)


class Made:
    """Tells what the entries of a directory are, and writes those again that were altered."""

    def __init__(self, storage: LoggedStorage, commit: GroupCommit) -> None:
        self._storage = storage
        self._commit = commit

    def of(self, key: bytes, packed: bytes) -> Garbage | None:
        """The object that an entry names. If its operation makes another one, that is written in its place; None if nothing
        tells it.

        Raises:
            StoreCorrupt: its operation cannot be decoded, or has no such change.
        """
        partition, dot = keys.split_garbage(key)
        try:
            named = unpack(packed)
        except ValueError:
            named = None
        change = self._change(partition, dot, int.from_bytes(key[-2:], "big"))
        if change is None:  # It has left the log.
            return named if named is not None and self._is_over(partition, named) else None
        stamp, made = change
        target = Target(Kind(made.kind), made.space, made.name)
        lefts = [] if (left := left_by(stamp, made)) is None else [left]
        if self._has_ended(target, made.generation):  # Then it may have arrived too late, and its blobs go with the generation.
            lefts.append(Left(What.GENERATION, made.generation))
        right = [Garbage(left.what, *target, left.generation, left.ends) for left in lefts]
        if named is not None and (named in right or self._is_told_by_rows(target, made, named)):
            return named if self._is_over(partition, named) else None
        if not right or not self._is_over(partition, right[-1]):
            return None
        log(events.GARBAGE_ALTERED)
        self._commit.write({key: _encoder.encode(right[-1])})
        return right[-1]

    def _change(self, partition: int, dot: Dot, nth: int) -> tuple[Stamp, Mutation] | None:
        """The change that made an entry; None if its operation has left the log.

        Raises:
            StoreCorrupt: it cannot be decoded, or has no such change.
        """
        stored = self._storage.get(keys.log(partition, dot))
        if stored is None:
            return None
        try:
            body = operation.decode(operation.LogEntry.unpack(stored).packed)
            made = mutation.decode(body.payload)[nth]
        except (InvalidValue, IndexError):
            raise StoreCorrupt(f"an entry of garbage names no change of operation {dot}. Run `shoal verify`.") from None
        return made.stamp(dot, body, NOTHING_SEEN, nth), made

    def _is_told_by_rows(self, target: Target, made: Mutation, named: Garbage) -> bool:
        """Whether this may be the entry of a change whose object's rows, as they were then, said what goes."""
        effects = mutation.effects_of(made.change)
        if effects is None or effects.sweeps is None or effects.sweeps.names is not None:
            return False
        return named == Garbage(effects.sweeps.what, *target, made.generation, named.ends)

    def _is_over(self, partition: int, named: Garbage) -> bool:
        """Whether the rows of an object say that what an entry names is over, as far as they can."""
        is_here = named.target.partition == partition
        return is_here and (named.what is not What.GENERATION or self._has_ended(named.target, named.generation))

    def _has_ended(self, target: Target, generation: int) -> bool:
        packed = self._storage.get(keys.object_rows(target.partition, *target) + deletion.ROW)
        return packed is not None and deletion.unpack(packed).generation > generation


def left_by(stamp: Stamp, change: Mutation) -> Left | None:
    """The rows that a change leaves to be swept, if that follows from it alone. None if it leaves none, or the rows decide."""
    effects = mutation.effects_of(change.change)
    if effects is None or effects.sweeps is None or effects.sweeps.names is None:
        return None
    return Left(effects.sweeps.what, change.generation, effects.sweeps.names(stamp, change.change))


def pack(garbage: Garbage) -> bytes:
    """The value of an entry."""
    return _encoder.encode(garbage)


def unpack(packed: bytes) -> Garbage:
    """The garbage in the value of an entry.

    Raises:
        ValueError: it is malformed.
    """
    return _decoder.decode(packed)


def _read(packed: bytes) -> Garbage:
    try:
        return unpack(packed)
    except ValueError as error:
        raise StoreCorrupt(f"an entry of garbage cannot be decoded ({error}). Run `shoal verify`.") from None


def of_partition(storage: Readable, partition: int, most: int) -> frozenset[bytes] | None:
    """The objects of a partition that the queue names, as prefixes of their rows' keys; None if it has over `most` entries.

    Raises:
        StoreCorrupt: an entry cannot be decoded.
    """
    prefix = keys.GARBAGE + partition.to_bytes(2, "big")
    packed = [packed for _, packed in storage.scan(prefix, successor(prefix), limit=most + 1)]
    if len(packed) > most:
        return None
    targets = {_read(entry).target for entry in packed}
    return frozenset(keys.object_rows(partition, *target) for target in targets)
