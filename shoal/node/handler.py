"""The interface of a handler, which serves one family of requests.

Law: a handler checks a request (`checks`), decides a write (`writers`), and answers a read from
stored rows (`readers`). It changes an object only through `WriteContext.apply`. These are tables
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
    edit: Edit | None = None  # The push to followers of a document, if it holds more than the change.


class WriteContext:
    """The input of a write's decision, and the changes that it makes to one object."""

    __slots__ = ("_first", "is_remembered", "key", "made", "rows", "target", "transaction")

    def __init__(self, transaction: Transaction, target: Target, rows: ObjectRows, first: Stamp, key: str | None) -> None:
        self.transaction = transaction
        self.target = target
        self.rows = rows
        self.key = key  # Of the whole request: if the request went to two nodes, it makes their two writes count as one.
        self.made: list[Made] = []
        # Whether the request's key is kept although nothing changed. A removal needs that: if the request is sent again
        # after somebody has added the entry, it must not remove it.
        self.is_remembered = False
        self._first = first

    @property
    def stamp(self) -> Stamp:
        """The stamp of the next change."""
        return self._first.at(self._first.nth + len(self.made)) if self.made else self._first

    def end(self, change: Delete) -> None:
        """Note the deletion that ends the object's generation. Its row belongs to no generation and is not written here."""
        self.made.append(Made(self.stamp, change, NOTHING, ""))

    def apply(self, change: Change, attached: Blobs = NOTHING, *, id: str = "") -> Any:
        """Make a change in the object's rows and in the operation. Returns the outcome that its type defines, if any."""
        stamp = self.stamp
        outcome = mutation.apply(self.rows, stamp, change, attached)
        self.made.append(Made(stamp, change, attached, id))
        return outcome

    def tell(self, edit: Edit | None) -> None:
        """Set the push that followers of a document get for the last change."""
        self.made[-1] = self.made[-1]._replace(edit=edit)


class View(Struct, frozen=True):
    """The input of a read."""

    transaction: Transaction
    target: Target
    rows: ObjectRows
    vector: VersionVector  # Of the partition: the operations that the answer can show.
    floor_hlc: Callable[[VersionVector], int | None]  # The least HLC of the operations that a vector lacks; None: not known.


# The tables are heterogeneous: each function takes the request that it is filed under.
Checks = Mapping[type, Callable[[Any], None]]
Writers = Mapping[type, Callable[[WriteContext, Any], AnyReply]]
Readers = Mapping[type, Callable[[View, Any], AnyReply]]


class Handler(Protocol):
    """One family of requests, as three tables by request type."""

    @property
    def checks(self) -> Checks:
        """Raise InvalidInput, InvalidName, InvalidValue or TooLarge for a write that no node may accept."""

    @property
    def writers(self) -> Writers:
        """Decide a write, apply its changes, and return the reply. A raised error means that nothing is written."""
        ...

    @property
    def readers(self) -> Readers:
        """Answer a read from the view; nothing is written."""
        ...
