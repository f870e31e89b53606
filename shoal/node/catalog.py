"""The catalog: the objects that exist, derived from the operations that change them."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.crdt.rows import successor
from shoal.node.recent import Recent
from shoal.node.target import Target
from shoal.node.transaction import Transaction
from shoal.storage import keys
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind

_PAGE = 256


class Catalog:
    """The stored list of objects. `known_max` bounds the objects remembered as listed, which spare a write a lookup."""

    def __init__(self, storage: Storage, *, known_max: int) -> None:
        self._storage = storage
        self._listed: Recent[Target] = Recent(known_max)  # Known to be listed: a write need not look again.

    def enter(self, transaction: Transaction, target: Target) -> None:
        """List an object, if it is not listed yet."""
        if target in self._listed:
            return
        entry = _entry(target)
        if transaction.get(entry) is None:
            transaction.put(entry, b"")
        transaction.when_written(lambda: self._listed.put(target))

    def leave(self, transaction: Transaction, target: Target) -> None:
        """Remove a deleted object from the list."""
        self._listed.drop(target)
        transaction.when_written(lambda: self._listed.drop(target))
        transaction.delete(_entry(target))

    def holds(self, target: Target) -> bool:
        """Whether the object is listed in storage."""
        return self._storage.get(_entry(target)) is not None

    def lists(self, transaction: Transaction, target: Target) -> bool:
        """As `holds`, including the writes of the transaction."""
        return transaction.get(_entry(target)) is not None

    def names(self, space: str, kind: Kind, *, prefix: str, after: str | None, limit: int) -> list[str]:
        """Up to `limit` names that begin with `prefix`, above `after`, in byte order."""
        start = keys.catalog(space, kind, prefix)
        stop = successor(start)
        if after is not None:
            start = max(start, keys.catalog(space, kind, after) + b"\x00")
        if stop is not None and start >= stop:
            return []
        return [keys.split_catalog(key)[2] for key, _ in self._storage.scan(start, stop, limit=limit)]

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


def _entry(target: Target) -> bytes:
    return keys.catalog(target.space, target.kind, target.name)
