"""The entries of the queue of garbage: what an operation leaves to be swept, and how that is written.

Laws:
- An entry is believed only as far as its operation makes it: while that is in the log, an entry that a disk altered is written
  again from it.
- An ended generation is swept only if the object's rows say that it has ended, whatever the log says.
"""

from __future__ import annotations

import msgspec

from shoal.cluster import operation
from shoal.crdt import deletion
from shoal.crdt.dot import NOTHING_SEEN, Dot
from shoal.crdt.rows import Stamp, successor
from shoal.errors import InvalidValue, StoreCorrupt
from shoal.logs import events
from shoal.logs.lines import log
from shoal.node.appliers import mutation
from shoal.node.appliers.applier import What
from shoal.node.appliers.mutation import Mutation
from shoal.node.handler import Target
from shoal.node.transaction import Readable
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.commit import GroupCommit, LoggedStorage
from shoal.storage.keys import Kind


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
