"""A handler: what a node knows of one family of requests.

Law: a handler checks a request at the edge (`checks`), decides a write (`writers`), and answers a
read from what is stored (`readers`). It changes an object through `WriteContext.apply` alone. Tables
by request type, so that a new request is one entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from shoal.crdt.deletion import Delete
from shoal.crdt.dot import VersionVector
from shoal.crdt.rows import Stamp
from shoal.node.appliers import mutation
from shoal.node.appliers.mutation import Change
from shoal.node.blobs import NOTHING, Blobs
from shoal.node.target import Target
from shoal.node.transaction import ObjectRows, Transaction
from shoal.protocol.requests import AnyReply, Edit


class Made(NamedTuple):
    """A change that a handler made."""

    stamp: Stamp
    change: Change
    attached: Blobs
    id: str  # Of the checkpoint or event, for watchers.
    edit: Edit | None = None  # What followers of a document are told, if that is more than the change.


class WriteContext:
    """What a write is decided in, and what it makes of the object."""

    __slots__ = ("_first", "is_remembered", "key", "made", "rows", "target", "transaction")

    def __init__(self, transaction: Transaction, target: Target, rows: ObjectRows, first: Stamp, key: str | None) -> None:
        self.transaction = transaction
        self.target = target
        self.rows = rows
        self.key = key  # Of the whole request: it makes a write one where the request went to two nodes.
        self.made: list[Made] = []
        # Whether the request's key is kept though nothing changed: what was to be removed may be made before it comes again.
        self.is_remembered = False
        self._first = first

    @property
    def stamp(self) -> Stamp:
        """Of the change that is made next."""
        return self._first.at(self._first.nth + len(self.made)) if self.made else self._first

    def end(self, change: Delete) -> None:
        """End the object's generation. The row of a deletion stands beside the generations', and is not written here."""
        self.made.append(Made(self.stamp, change, NOTHING, ""))

    def apply(self, change: Change, attached: Blobs = NOTHING, *, id: str = "") -> Any:
        """Make a change, in the object's rows and in the operation. Returns what its type tells of it, if anything."""
        stamp = self.stamp
        outcome = mutation.apply(self.rows, stamp, change, attached)
        self.made.append(Made(stamp, change, attached, id))
        return outcome

    def tell(self, edit: Edit | None) -> None:
        """Tell followers of a document this of the change that was made last."""
        self.made[-1] = self.made[-1]._replace(edit=edit)


class View(Struct, frozen=True):
    """What a read is answered from."""

    transaction: Transaction
    target: Target
    rows: ObjectRows
    vector: VersionVector  # Of the partition: what the answer shows.
    floor_hlc: Callable[[VersionVector], int | None]  # The least HLC of what a vector does not cover; None: not known.


# The tables are heterogeneous: each function takes the request that it is filed under.
Checks = Mapping[type, Callable[[Any], None]]
Writers = Mapping[type, Callable[[WriteContext, Any], AnyReply]]
Readers = Mapping[type, Callable[[View, Any], AnyReply]]


class Handler(Protocol):
    @property
    def checks(self) -> Checks:
        """Raise InvalidInput, InvalidName, InvalidValue or TooLarge for a write that no node may accept."""

    @property
    def writers(self) -> Writers: ...

    @property
    def readers(self) -> Readers: ...
