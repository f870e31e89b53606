"""The operations in the log of a directory that nobody has open, and how to ask a node whether it holds them.

Law: a read of an object in the partition, with the bookmark of `naming`, is answered only by a node that holds these
operations, and those before them of their origins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import NamedTuple

from shoal.cluster import operation
from shoal.cluster.partition import partition_of
from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import successor
from shoal.node.appliers import mutation
from shoal.protocol.bookmark import Bookmark
from shoal.storage import keys
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind


class Held(NamedTuple):
    """An operation in a log."""

    partition: int
    dot: Dot
    objects: tuple[tuple[str, str, str], ...]  # Kind, space and name of each that it changes.


def operations(storage: Storage) -> Iterator[Held]:
    """All operations in the log, in the order of partitions, origins and sequences.

    Raises:
        InvalidValue, StoreCorrupt: one of them cannot be read.
    """
    for key, row in storage.scan(keys.LOG, successor(keys.LOG)):
        partition, dot = keys.split_log(key)
        body = operation.decode(operation.LogEntry.unpack(row).packed)
        changed = {(Kind(each.kind).label, each.space, each.name) for each in mutation.decode(body.payload)}
        yield Held(partition, dot, tuple(sorted(changed)))


def naming(partition: int, held: Iterable[Held]) -> str:
    """The text of a bookmark that names these operations of a partition; of one origin, the last one given counts."""
    bookmark = Bookmark()
    bookmark.note(partition, VersionVector(dict(each.dot for each in held)))
    return bookmark.text()


def name_in(space: str, partition: int) -> str:
    """The name of an object that would be in this partition."""
    return next(name for number in count() if partition_of(space, name := f"leftovers-{number}") == partition)
