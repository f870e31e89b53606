"""The operations in the log of a directory that nobody has open, and how to ask a node whether it holds them.

Law: a read of an object in the partition, with the bookmark of `naming`, is answered only by a node that holds these
operations, and those before them of their origins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

from shoal.cluster import operation
from shoal.cluster.operation import TIP_BYTES, Tip
from shoal.cluster.partition import partition_of
from shoal.crdt.dot import HORIZON, ORIGIN_BYTES, Dot, Origin, VersionVector
from shoal.crdt.rows import successor
from shoal.kinds.counter import state as counter
from shoal.node.appliers import mutation
from shoal.protocol.bookmark import Bookmark
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind


class Held(NamedTuple):
    """An operation in a log."""

    partition: int
    dot: Dot
    objects: tuple[tuple[str, str, str], ...]  # Kind, space and name of each that it changes.
    added: dict[tuple[str, str, str], int]  # What it adds to those that are counters.


def operations(storage: Storage) -> Iterator[Held]:
    """All operations in the log, in the order of partitions, origins and sequences.

    Raises:
        InvalidValue, StoreCorrupt: one of them cannot be read.
    """
    for key, row in storage.scan(keys.LOG, successor(keys.LOG)):
        partition, dot = keys.split_log(key)
        body = operation.decode(operation.LogEntry.unpack(row).packed)
        changed: dict[tuple[str, str, str], int] = {}
        for each in mutation.decode(body.payload):
            named = Kind(each.kind).label, each.space, each.name
            amount = each.change.amount if isinstance(each.change, counter.Add) else 0
            changed[named] = changed.get(named, 0) + amount
        yield Held(partition, dot, tuple(sorted(changed)), {named: amount for named, amount in changed.items() if amount})


def logged_before(storage: Storage) -> Iterator[Held]:
    """The last operations that have left the log, of live and of retired origins, with all objects of their partitions."""
    objects: dict[int, tuple[tuple[str, str, str], ...]] = {}
    for table in (keys.BASE, keys.RETIRED):
        for key, packed in storage.scan(table, successor(table)):
            partition, origin = int.from_bytes(key[1:3], "big"), Origin(key[3:])
            if len(origin) != ORIGIN_BYTES or origin == HORIZON:
                continue  # A row about retired origins.
            if partition not in objects:
                objects[partition] = tuple(_objects(storage, partition))
            sequence = Tip.unpack(packed[:TIP_BYTES]).sequence
            yield Held(partition, Dot(origin, sequence), objects[partition], {})


def naming(partition: int, held: Iterable[Held]) -> str:
    """The text of a bookmark that names these operations of a partition; of one origin, the last one given counts."""
    bookmark = Bookmark()
    bookmark.note(partition, VersionVector(dict(each.dot for each in held)))
    return bookmark.text()


def name_in(space: str, partition: int) -> str:
    """The name of an object that would be in this partition."""
    return next(name for number in count() if partition_of(space, name := f"leftovers-{number}") == partition)


def _objects(storage: Storage, partition: int) -> Iterator[tuple[str, str, str]]:
    for key, _ in storage.scan(*keys.rows_of(keys.LISTED, partition)):
        space, kind, name = keys.split_catalog(keys.catalog_of_listed(key))
        yield kind.label, space, name
