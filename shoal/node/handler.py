"""The interface of a handler, which serves one family of requests, and the object that a request is about.

The second field of such a request holds the object's name, and that field's name is its kind.

Laws:
- A handler checks a request (`checks`), decides a write (`writers`), and answers a read from
  stored rows (`readers`). It changes an object only through `WriteContext.apply`. These are tables
  by request type, so that a new request is one entry, and code that serves every request names none.

What is kept in memory of objects beside their rows follows these (`Memory`).

Some handlers have further tables: `scans` for reads that take long, `maintenance` for requests that become many writes,
`preparations` for what takes long before a write is decided or a read answered, and `contests` for writes that two nodes
may decide at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from shoal.cluster.handshake import PEER_PROTOCOL
from shoal.cluster.operation import partition_of
from shoal.crdt.applier import NOTHING, Blobs
from shoal.crdt.deletion import Delete
from shoal.crdt.dot import VersionVector
from shoal.crdt.rows import Stamp, successor
from shoal.names import MEMOIZED_MAX
from shoal.node import mutation
from shoal.node.mutation import Change
from shoal.node.naming import implied_key
from shoal.node.transaction import ObjectRows, Transaction
from shoal.node.turns import Steps
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import AnyReply, Edit, Imported, ObjectWrite
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


@lru_cache(maxsize=MEMOIZED_MAX)
def rows_prefix(target: Target) -> bytes:
    """The beginning of the keys of an object's rows."""
    return keys.object_rows(target.partition, *target)


class Place(Struct, frozen=True):
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


class Made(Struct, frozen=True):
    """A change that a handler made."""

    stamp: Stamp
    change: Change
    attached: Blobs
    edit: Edit | None = None  # The push to followers of a document, if it holds more than the change.


class WriteContext:
    """The input of a write's decision, and the changes that it makes to one object."""

    __slots__ = (
        *("_first", "_place", "_spoken", "imported", "key", "made"),
        *("rows", "target", "transaction", "unclaimed"),
    )

    def __init__(
        self,
        target: Target,
        rows: ObjectRows,
        first: Stamp,
        key: str | None,
        place: int = 0,
        unclaimed: frozenset[bytes] = frozenset(),
        spoken: Callable[[], int] = lambda: PEER_PROTOCOL,
    ) -> None:
        self.transaction = rows.transaction
        self.target = target
        self.rows = rows
        self.key = key  # Of the whole request: if the request went to two nodes, it makes their two writes count as one.
        self.made: list[Made] = []
        self.unclaimed = unclaimed  # The ids of entries of which it is known that nobody has claimed them.
        self._first = first
        self._place = place  # Of this write in the request.
        self._spoken = spoken
        self.imported: Imported | None = None  # What is said of the write if it was made elsewhere before.

    def importing(self, first: Stamp, imported: Imported) -> WriteContext:
        """The context of the same write, as one that was made elsewhere before."""
        made = WriteContext(self.target, self.rows, first, imported.key or None, 0, self.unclaimed, self._spoken)
        made.imported = imported
        return made

    @property
    def stamp(self) -> Stamp:
        """The stamp of the next change."""
        return self._first.at(self._first.nth + len(self.made)) if self.made else self._first

    @property
    def implied_key(self) -> str | None:
        """The key of the next change, derived from the request's; None if that has none."""
        if self.key is None:
            return None
        return implied_key(self.key, f"{self._place}.{len(self.made)}" if self.made else str(self._place))

    def is_known_to_peers(self, change: Change) -> bool:
        """Whether all peers run a version that can apply such a change. One that they cannot is not issued."""
        return mutation.since(change) <= self._spoken()

    def end(self, change: Delete) -> None:
        """Note the deletion that ends the object's generation. Its row belongs to no generation and is not written here."""
        self.made.append(Made(self.stamp, change, NOTHING))

    def apply(self, change: Change, attached: Blobs = NOTHING) -> Any:
        """Make a change in the object's rows and in the operation. Returns the outcome that its type defines, if any."""
        stamp = self.stamp
        outcome = mutation.apply(self.rows, stamp, change, attached)
        self.made.append(Made(stamp, change, attached))
        return outcome

    def tell(self, edit: Edit | None) -> None:
        """Set the push that followers of a document get for the last change."""
        self.made[-1] = replace(self.made[-1], edit=edit)


class View(Struct, frozen=True):
    """The input of a read."""

    transaction: Transaction
    target: Target
    rows: ObjectRows
    vector: VersionVector  # Of the partition: the operations that the answer can show.
    floor_hlc: Callable[[VersionVector], int | None]  # The least HLC of the operations that a vector lacks; None: not known.


class Piece(NamedTuple):
    """One of the writes that carry out a maintenance."""

    write: ObjectWrite[Any]
    done: str = ""  # What the pieces before it did, for the error if this one fails; empty: nothing.


class Contest(NamedTuple):
    """How to answer a write that two nodes may decide at once, each for itself.

    With durability `quorum` or `all` the node catches up with a quorum before it decides, and again once the write is
    copied: of two such writes at least one sees the other. If one does, all but the last of them give way, one at a time
    under a lease.
    """

    won: Callable[[Any], bool]  # By the reply: whether another write may still have come first.
    again: Callable[[View, Any, Any], AnyReply]  # The reply to a request and its first reply, as the object is now.
    tied: Callable[[Any, Any], bool]  # By a request and its second reply: whether another write may have come first.
    about: Callable[[Any], str]  # The part of the object that a request is about.
    gives_way: Callable[[Any, Any], ObjectWrite[Any]]  # Takes a request back, which was replied to so.
    unknown: Callable[[Any, str], str]  # The error's text, of the request and the reason, if the node cannot catch up again.


# The tables are heterogeneous: each function takes the request that it is filed under.
Checks = Mapping[type, Callable[[Any], None]]
Writers = Mapping[type, Callable[[WriteContext, Any], AnyReply]]
Readers = Mapping[type, Callable[[View, Any], AnyReply]]
Scan = Generator[None, None, AnyReply]
"""Answers a read in steps of bounded time, between which other requests get their turn."""
Scans = Mapping[type, Callable[[Callable[[], View], Any], Scan]]
Preparation = Steps[None]
"""The preparation that a request needs, in steps of bounded time; it raises nothing: the request's writer or reader says what
is wrong.
"""
Preparations = Mapping[type, Callable[[Target, Callable[[], View], Any], Preparation | None]]
Upkeep = Generator[Piece | None, Any, AnyReply]
"""Carries out a maintenance: yields None between steps of bounded time, and each write, whose reply is sent to it."""
Maintainers = Mapping[type, Callable[[Callable[[], ObjectRows], Any], Upkeep]]
Contests = Mapping[type, Contest]
Flow = Callable[[Any], Awaitable[AnyReply]]
"""Answers a write that takes more than one operation, or asks other nodes."""
Flows = Mapping[type, Flow]
Answers = Mapping[type, Callable[[Any, Bookmark], Awaitable[AnyReply]]]
"""Answers reads that are not about one object."""


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


class Applied(Struct, frozen=True):
    """A peer's change that is in the rows now."""

    stamp: Stamp
    change: Change
    attached: Blobs
    outcome: Any  # As its type defines.
    fresh: str | None  # The key of its request, if no other operation has it.


class Memory:
    """The memory of a node about objects of one kind, beside their rows: open documents, sums, shapes, compiled schemas.

    It follows the rows: it hears of each change that a peer made, of each generation that ends, and of rows that are replaced.
    Each method does nothing unless a subclass says what.
    """

    is_within = False
    """Whether `applied` only registers work with a transaction that lasts, so that others may have turns before the write."""

    def applied(self, place: Place, applied: Applied) -> None:
        """A peer's change was applied; the write is not made yet."""

    def told(self, place: Place, applied: Applied) -> Edit | None:
        """The push to followers for it."""
        return None

    def ended(self, transaction: Transaction, target: Target) -> None:
        """This transaction ends the generation of an object."""

    def replaced(self, transaction: Transaction, target: Target) -> None:
        """This transaction replaces rows of an object."""

    def forget_partition(self, number: int) -> None:
        """The rows of a partition were replaced."""


_NOTHING: Sequence[Memory] = ()


class Memories:
    """The memory of all kinds of objects."""

    def __init__(self, memories: Mapping[Kind, Sequence[Memory]]) -> None:
        self._of = memories
        self.concerned: Mapping[Kind, Sequence[Memory]] = {
            kind: [each for each in memories.get(kind, ()) if type(each).applied is not Memory.applied] for kind in Kind
        }
        """By kind, those for which a peer's change of an object means something."""

    def of(self, kind: Kind) -> Iterable[Memory]:
        """The memory about objects of a kind."""
        return self._of.get(kind, _NOTHING)

    def are_within(self, kind: Kind) -> bool:
        """Whether a change of an object of this kind may be applied long before it is written."""
        return all(each.is_within for each in self.concerned[kind])

    def ended(self, transaction: Transaction, target: Target) -> None:
        """Drop what is kept of an object whose generation this transaction ends."""
        for memory in self.of(target.kind):
            memory.ended(transaction, target)

    def replaced(self, transaction: Transaction, target: Target) -> None:
        """Drop what is kept of an object whose rows this transaction replaces."""
        for memory in self.of(target.kind):
            memory.replaced(transaction, target)

    def forget_partition(self, number: int) -> None:
        """Drop what is kept of a partition whose rows were replaced."""
        for memories in self._of.values():
            for memory in memories:
                memory.forget_partition(number)
