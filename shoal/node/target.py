"""Which object a request is about."""

from __future__ import annotations

from typing import NamedTuple

from shoal.cluster.partition import partition_of
from shoal.protocol import requests
from shoal.storage import keys
from shoal.storage.keys import Kind

SingleWrite = requests.Save | requests.Append | requests.Update | requests.Patch | requests.Add | requests.Assign


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


def target_of(request: SingleWrite | requests.AnyRead) -> Target:
    match request:
        case requests.Save() | requests.Append() | requests.Load() | requests.History() | requests.Heads():
            return Target(Kind.THREAD, request.space, request.thread)
        case requests.ReadJournal():
            return Target(Kind.THREAD, request.space, request.thread)
        case requests.Update() | requests.Patch() | requests.ReadDocument() | requests.ReadDocumentJson():
            return Target(Kind.DOCUMENT, request.space, request.document)
        case requests.Add() | requests.ReadCounter():
            return Target(Kind.COUNTER, request.space, request.counter)
        case requests.Assign() | requests.ReadRegister():
            return Target(Kind.REGISTER, request.space, request.register)
        case _:
            raise AssertionError(f"{type(request).__name__} is about no object")
