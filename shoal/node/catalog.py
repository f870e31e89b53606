"""The catalog: the objects that exist, and the threads by their standing, derived from the operations that change them.

Laws:
- An object has an entry here, and a row in the list of its partition, which goes into snapshots of that.
- The entry of a thread that is not running, or that has an open step, holds its standing: its status, or the time of its
  oldest open step. The thread has one row under it.
- These rows are complete once the directory is marked as indexed: from its first object on, or, if an older version
  wrote it, when `shoal.kinds.step.handler` has entered its threads.
- A thread with questions of a graph, whose status is none of these, has one row more, under `keys.ASKING`: it is listed beside
  one with an open step. A save, and a note that asks nothing, look at the thread only if it has that row, or notes came before
  the label.
- Threads with an open step are in the order of its time, the oldest first, whatever their names are.
- The entry of such a thread holds the position of that step, so that a write of a step looks at no step that is settled.

A bounded set that forgets its least recently used members first.

Law: the last `members_max / 2` members that were put or found are never forgotten. The set keeps two
halves and drops the older one as a whole once the newer one is full, so that a lookup costs no more
than in a plain set.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar

from shoal.crdt.rows import POSITION_BYTES, Rows, successor
from shoal.kinds.label import asks
from shoal.kinds.step import state as steps
from shoal.node.handler import Target
from shoal.node.transaction import Transaction
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind

T = TypeVar("T", bound=Hashable)


class _Newer(dict[Any, bool]):
    """Members, all True; of another one it is asked."""

    __slots__ = ("_ask",)

    def __init__(self, ask: Callable[[Any], bool]) -> None:
        self._ask = ask

    def __missing__(self, member: Any) -> bool:
        return self._ask(member)


class Recent(Generic[T]):
    """A set of at most `members_max` members, at least two. A lookup that finds a member renews it."""

    def __init__(self, members_max: int) -> None:
        self._half = max(1, members_max // 2)
        self._newer = _Newer(self._renewed)
        self._older: set[T] = set()
        self.holds = self._newer.__getitem__
        """As `in`, by the lookup of a dict: each write asks several times."""

    def __contains__(self, member: T) -> bool:
        return self.holds(member)

    def __len__(self) -> int:
        return len(self._newer.keys() | self._older)

    def _renewed(self, member: T) -> bool:
        """Whether the older half holds a member; it is a newer one from then on."""
        if member in self._older:
            self.put(member)
            return True
        return False

    def put(self, member: T) -> None:
        """Add or renew a member; this may drop the older half."""
        if len(self._newer) >= self._half and member not in self._newer:
            self._older = set(self._newer)
            self._newer.clear()
        self._newer[member] = True

    def clear(self) -> None:
        """Remove all members."""
        self._newer.clear()
        self._older.clear()

    def drop(self, member: T) -> None:
        """Remove a member, if it is there."""
        self._newer.pop(member, None)
        self._older.discard(member)


_PAGE = 256
_ABOVE_ALL = b"\xff" * POSITION_BYTES
_INDEXED = keys.meta("standings/2")
_ASKING = bytes([keys.ASKING])
ASKING = "asking"
"""Of `Catalog.threads`: those that a graph's question keeps waiting. It is no status of a thread."""
STATUS_CODES: dict[str, int] = {"paused": 2, "waiting": 3, "done": 4, "failed": 5}
"""On disk, and never reused. Threads that are running and have no open step, most of all threads, need no row."""


def standing_of(rows: Rows, *, since: bytes = b"") -> bytes:
    """Under what a thread with these rows is listed: nothing if it is running, and no step is open.

    `since`: no step is open below this position.

    Raises:
        StoreCorrupt: its status cannot be decoded.
    """
    current = steps.current(rows)
    status = "running" if current is None else current.status
    return standing(status, None if status in STATUS_CODES else steps.oldest_open(rows, since=since))


def standing(status: str, oldest: bytes | None) -> bytes:
    """The same of a thread with this status, whose oldest open step has this position."""
    if (code := STATUS_CODES.get(status)) is not None:
        return bytes([code])
    return b"" if oldest is None else keys.open_since(oldest)


def is_asking(rows: Rows) -> bool:
    """Whether a thread with these rows is listed as one that asks: a graph in it waits for an answer, and its status is none.

    Raises:
        StoreCorrupt: its status or its notes cannot be decoded.
    """
    current = steps.current(rows)
    return (current is None or current.status not in STATUS_CODES) and asks.is_asking(rows)


class Entry(NamedTuple):
    """A thread in the catalog."""

    name: str
    may_match: bool  # Whether it may have the status that was asked for.


class Catalog:
    """The stored list of objects. `known_max` bounds the objects remembered as listed, which spare a write a lookup."""

    def __init__(self, storage: Storage, *, known_max: int) -> None:
        self._storage = storage
        self._listed: Recent[Target] = Recent(known_max)  # Known to be listed: a write need not look again.
        self.is_indexed = storage.get(_INDEXED) is not None
        self._is_blank = not self.is_indexed and not self.spaces(after=None, limit=1)

    def enter(self, transaction: Transaction, target: Target) -> None:
        """List an object, if it is not listed yet."""
        if self._listed.holds(target):
            return
        entry = _entry(target)
        if transaction.get(entry) is None:
            transaction.put(entry, b"")
            transaction.put(keys.listed(target.partition, *target), b"")
            if self._is_blank:  # Nothing was written without its status.
                self.mark_indexed(transaction)
        transaction.when_written(lambda: self._listed.put(target))

    def leave(self, transaction: Transaction, target: Target) -> None:
        """Remove a deleted object from the list."""
        self._listed.drop(target)
        transaction.when_written(lambda: self._listed.drop(target))
        if listed := transaction.get(_entry(target)):
            transaction.delete(keys.status(target.space, listed, target.name))
        if target.kind is Kind.THREAD and self.is_asking(transaction, target):
            transaction.delete(_asking(target))
        transaction.delete(_entry(target))
        transaction.delete(keys.listed(target.partition, *target))

    def unmarked(self) -> dict[bytes, bytes | None]:
        """The row to write with the first objects of a blank directory, if a snapshot brings them with their standings."""
        return {_INDEXED: b""} if self._is_blank else {}

    def replaced(self) -> None:
        """Entries were written, with standings, by another way: forget which objects are known to be listed."""
        self._listed.clear()
        if self._is_blank:
            self.is_indexed, self._is_blank = True, False

    def set_standing(self, transaction: Transaction, target: Target, after: bytes) -> None:
        """List a thread under its standing, if it is listed at all."""
        before = transaction.get(_entry(target))
        if before is None or before == after:
            return
        transaction.put(_entry(target), after)
        if keys.listed_under(before) == keys.listed_under(after):
            return
        if before:
            transaction.delete(keys.status(target.space, before, target.name))
        if after:
            transaction.put(keys.status(target.space, after, target.name), b"")

    def is_asking(self, transaction: Transaction, target: Target) -> bool:
        """Whether a thread is listed as one that asks."""
        return transaction.get(_asking(target)) is not None

    def may_ask(self, target: Target) -> bool:
        """Whether a thread that is stored may ask something; the same as `is_asking` once the directory is indexed."""
        return not self.is_indexed or self._storage.get(_asking(target)) is not None

    def set_asking(self, transaction: Transaction, target: Target, asks: bool) -> None:
        """List a thread as one that asks, or not any more, if it is listed at all."""
        if asks == self.is_asking(transaction, target) or transaction.get(_entry(target)) is None:
            return
        if asks:
            transaction.put(_asking(target), b"")
        else:
            transaction.delete(_asking(target))

    def settled_below(self, transaction: Transaction, target: Target, first: bytes | None) -> bytes:
        """Below which position a thread has no open step, if only one step has changed since it was listed.

        `first` is the position of that one. Empty: it is not known.
        """
        listed = transaction.get(_entry(target))
        if listed is None or self.is_due or listed[:1] not in (b"", bytes([keys.OPEN])):
            return b""
        return min(each for each in (first, listed[1:], _ABOVE_ALL) if each)

    @property
    def is_due(self) -> bool:
        """Whether threads may have to be listed under their standings."""
        return not self.is_indexed and not self._is_blank

    def mark_indexed(self, transaction: Transaction) -> None:
        """Record that all threads that are not running, or have an open step, are listed under their standings."""

        def marked() -> None:
            self.is_indexed, self._is_blank = True, False

        transaction.put(_INDEXED, b"")
        transaction.when_written(marked)

    def holds(self, target: Target) -> bool:
        """Whether the object is listed in storage."""
        return self._storage.get(_entry(target)) is not None

    def lists(self, transaction: Transaction, target: Target) -> bool:
        """As `holds`, including the writes of the transaction."""
        return transaction.get(_entry(target)) is not None

    def names(self, space: str, kind: Kind, *, prefix: str, after: str | None, limit: int) -> list[str]:
        """Up to `limit` names that begin with `prefix`, above `after`, in byte order."""
        above = None if after is None else keys.catalog(space, kind, after)
        return [keys.split_catalog(key)[2] for key, _ in self._rows(keys.catalog(space, kind, prefix), above, limit)]

    def threads(self, space: str, status: str, *, prefix: str, after: str | None, limit: int) -> list[Entry]:
        """The same of threads that may have a status (empty: any), and maybe others."""
        if not status or not self.is_indexed:
            return [Entry(name, True) for name in self.names(space, Kind.THREAD, prefix=prefix, after=after, limit=limit)]
        code = keys.ASKING if status == ASKING else STATUS_CODES.get(status)
        if code is not None:
            above = None if after is None else keys.status(space, bytes([code]), after)
            found = self._rows(keys.status(space, bytes([code]), prefix), above, limit)
            return [Entry(keys.split_status(key)[2], True) for key, _ in found]
        above = None if after is None else keys.catalog(space, Kind.THREAD, after)
        listed = self._rows(keys.catalog(space, Kind.THREAD, prefix), above, limit)
        return [Entry(keys.split_catalog(key)[2], stored[:1] in (b"", bytes([keys.OPEN]))) for key, stored in listed]

    def opened(self, space: str, *, after: bytes, limit: int) -> list[tuple[bytes, str]]:
        """Up to `limit` threads that run and have an open step, the oldest first: the place of each, and its name.

        They are all of them if the directory is indexed. `after` is the place of the last one before; empty: from the first.
        """
        prefix = keys.status(space, bytes([keys.OPEN]))
        found = self._rows(prefix, prefix + after if after else None, limit)
        return [(key[len(prefix) :], keys.split_status(key)[2]) for key, _ in found]

    def _rows(self, prefix: bytes, above: bytes | None, limit: int) -> Iterator[tuple[bytes, bytes]]:
        start, stop = prefix, successor(prefix)
        if above is not None:
            start = max(start, above + b"\x00")
        return iter(()) if stop is not None and start >= stop else self._storage.scan(start, stop, limit=limit)

    def spaces(self, *, after: str | None, limit: int) -> list[str]:
        """Up to `limit` spaces, in the order of (length, bytes) of their names; skips from one to the next."""
        found: list[str] = []
        start = keys.CATALOG if after is None else successor(keys.catalog_of(after))
        stop = successor(keys.CATALOG)
        while len(found) < limit and start is not None:
            row = next(iter(self._storage.scan(start, stop, limit=1)), None)
            if row is None:
                break
            found.append(keys.split_catalog(row[0])[0])
            start = successor(keys.catalog_of(found[-1]))
        return found

    def all_of(self, kind: Kind) -> Iterator[Target]:
        """The objects of a kind in all spaces. It reads a page at a time, so others may write between two steps."""
        space: str | None = None
        while spaces := self.spaces(after=space, limit=1):
            (space,) = spaces
            name: str | None = None
            while names := self.names(space, kind, prefix="", after=name, limit=_PAGE):
                for name in names:
                    yield Target(kind, space, name)


def is_empty(storage: Storage, space: str) -> bool:
    """Whether nothing is in a space."""
    start = keys.catalog_of(space)
    return next(iter(storage.scan(start, successor(start), limit=1)), None) is None


def _asking(target: Target) -> bytes:
    return keys.status(target.space, _ASKING, target.name)


def _entry(target: Target) -> bytes:
    return keys.catalog(target.space, target.kind, target.name)


_UNDER = {keys.OPEN: "as one with an open step", keys.ASKING: "as one that asks"}


def status_flaws(storage: Storage, standings: dict[tuple[str, str], bytes], asking: set[tuple[str, str]]) -> Iterator[str]:
    """The flaws in the rows of standings. `standings` are those of threads that have one, by their spaces and names.

    `asking` are the threads that ask, likewise.
    """
    if storage.get(_INDEXED) is None:
        return
    rows = {(space, name, standing) for space, standing, name in map(keys.split_status, _keys(storage, keys.STATUS))}
    wanted = {(*thread, keys.listed_under(standing)) for thread, standing in standings.items() if standing}
    wanted |= {(*thread, _ASKING) for thread in asking}
    for space, name, standing in sorted(rows ^ wanted):
        how = "wrongly" if (space, name, standing) in rows else "not"
        under = _UNDER.get(standing[0], "under a status")
        yield f"thread {name!r} of space {space!r} is {how} listed {under}"


def _keys(storage: Storage, prefix: bytes) -> Iterator[bytes]:
    return (key for key, _ in storage.scan(prefix, successor(prefix)))
