"""Which object a request is about: the second field of the request names it, and says its kind."""

from __future__ import annotations

from typing import Any, NamedTuple

from shoal.cluster.partition import partition_of
from shoal.protocol import requests
from shoal.storage import keys
from shoal.storage.keys import KINDS, Kind


class Target(NamedTuple):
    kind: Kind
    space: str
    name: str

    @property
    def partition(self) -> int:
        return partition_of(self.space, self.name)

    @property
    def snapshot_key(self) -> bytes:
        return keys.snapshot(self.partition, *self)


def target_of(request: requests.ObjectWrite[Any] | requests.ObjectRead[Any] | requests.Maintenance[Any]) -> Target:
    label = request.__struct_fields__[1]
    return Target(KINDS[label], request.space, getattr(request, label))
