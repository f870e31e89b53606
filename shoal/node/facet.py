"""A facet: what a node knows of one family of requests.

Law: a facet checks a request at the edge (`checks`), decides a write within a
transaction and changes nothing else (`writers`), and answers a read from what is
stored (`readers`). Tables by request type, so that a new request is one entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from shoal.crdt.dot import VersionVector
from shoal.crdt.rows import Stamp
from shoal.node.decision import Decision
from shoal.node.target import Target
from shoal.node.transaction import ObjectRows, Transaction
from shoal.protocol.requests import AnyReply


class Site(Struct, frozen=True):
    """Where a write is decided."""

    transaction: Transaction
    target: Target
    rows: ObjectRows
    stamp: Stamp
    key: str | None  # Of the whole request: it makes a write one where the request went to two nodes.


class View(Struct, frozen=True):
    """What a read is answered from."""

    transaction: Transaction
    target: Target
    rows: ObjectRows
    vector: VersionVector  # Of the partition: what the answer shows.
    floor_hlc: Callable[[VersionVector], int | None]  # The least HLC of what a vector does not cover; None: not known.


# The tables are heterogeneous: each function takes the request that it is filed under.
Checks = Mapping[type, Callable[[Any], None]]
Writers = Mapping[type, Callable[[Site, Any], Decision]]
Readers = Mapping[type, Callable[[View, Any], AnyReply]]


class Facet(Protocol):
    @property
    def checks(self) -> Checks:
        """Raise InvalidInput, InvalidName, InvalidValue or TooLarge for a write that no node may accept."""

    @property
    def writers(self) -> Writers: ...

    @property
    def readers(self) -> Readers: ...
