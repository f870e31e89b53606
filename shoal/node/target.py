"""The object that a request is about. The second field of the request holds its name, and that field's name is its kind."""

from __future__ import annotations

from typing import Any, NamedTuple

from shoal.cluster.partition import partition_of
from shoal.protocol import requests
from shoal.storage import keys
from shoal.storage.keys import KINDS, Kind


class Target(NamedTuple):
    """Names one object."""

    kind: Kind
    space: str
    name: str

    @property
    def partition(self) -> int:
        """The number of the partition that holds it; see `cluster.partition`."""
        return partition_of(self.space, self.name)

    @property
    def snapshot_key(self) -> bytes:
        """The key of its snapshot, if it is a document."""
        return keys.snapshot(self.partition, *self)


def target_of(request: requests.ObjectWrite[Any] | requests.ObjectRead[Any] | requests.Maintenance[Any]) -> Target:
    """The object that a request names. The names must be checked before, or partition and keys would be wrong."""
    label = request.__struct_fields__[1]
    return Target(KINDS[label], request.space, getattr(request, label))


def named_by(request: requests.ObjectWrite[Any]) -> tuple[str, str]:
    """The kind of the object that a request names, and its name, which may not be checked yet."""
    label = request.__struct_fields__[1]
    return label, getattr(request, label)
