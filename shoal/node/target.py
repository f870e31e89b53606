"""The object that a request is about. The second field of the request holds its name, and that field's name is its kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from shoal.cluster.operation import partition_of
from shoal.crdt.rows import successor
from shoal.node.transaction import ObjectRows, Transaction
from shoal.protocol import requests
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.interface import Storage
from shoal.storage.keys import KINDS, Kind


class Target(NamedTuple):
    """Names one object."""

    kind: Kind
    space: str
    name: str

    @property
    def partition(self) -> int:
        """The number of the partition that holds it; see `cluster.operation`."""
        return partition_of(self.space, self.name)

    @property
    def snapshot_key(self) -> bytes:
        """The key of its snapshot, if it is a document."""
        return keys.snapshot(self.partition, *self)


class Place(NamedTuple):
    """Where an object is, within a transaction."""

    transaction: Transaction
    rows: ObjectRows  # Of its current generation.
    target: Target

    @property
    def snapshot_key(self) -> bytes:
        """The key in storage of the snapshot, if it is a document."""
        return self.target.snapshot_key


def target_of(request: requests.ObjectWrite[Any] | requests.ObjectRead[Any] | requests.Maintenance[Any]) -> Target:
    """The object that a request names. The names must be checked before, or partition and keys would be wrong."""
    label = request.__struct_fields__[1]
    return Target(KINDS[label], request.space, getattr(request, label))


def named_by(request: requests.ObjectWrite[Any]) -> tuple[str, str]:
    """The kind of the object that a request names, and its name, which may not be checked yet."""
    label = request.__struct_fields__[1]
    return label, getattr(request, label)


def stored(storage: Storage, partition: int, kinds: Iterable[Kind]) -> Iterator[Target]:
    """The objects of these kinds that a partition holds, in the order of their keys. It reads one row of each."""
    for kind in kinds:
        prefix = keys.OBJECT + partition.to_bytes(2, "big") + bytes([kind])
        start: bytes | None = prefix
        while start is not None:
            row = next(iter(storage.scan(start, successor(prefix), limit=1)), None)
            if row is None:
                break
            target = Target(*keys.split_object(row[0])[1:4])
            yield target
            start = successor(keys.object_rows(partition, *target))
