"""The two arguments of every data type: the rows of one object, and an operation's stamp.

The node puts a storage transaction behind `Rows`; tests put a dict. Keys are
relative to the object and begin with a byte that tells the kinds of rows apart;
`docs/STORAGE.md` lists them by type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from shoal.crdt.dot import Dot, VersionVector


class Rows(Protocol):
    """The rows of one object. Reads see the writes made before them."""

    def get(self, key: bytes, /) -> bytes | None:
        """The value under `key`; None if there is no such row."""
        ...

    def size(self, key: bytes, /) -> int | None:
        """The bytes of the value under `key`, also of one that would have to be fetched; None if there is no such row."""
        ...

    def put(self, key: bytes, value: bytes, /) -> None:
        """Write a row, in place of any that has this key."""
        ...

    def delete(self, key: bytes, /) -> None:
        """Remove a row, if it exists."""
        ...

    def scan(
        self, prefix: bytes, /, *, after: bytes | None = None, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows whose key begins with `prefix`, in key order (or its reverse).

        `after` is exclusive, in the direction of the scan, and a whole key, `prefix` included.
        """
        ...


class Stamp(Struct, frozen=True, gc=False):
    """When and by whom an operation was issued. Equal on every replica."""

    dot: Dot
    hlc: int
    wall_ms: int  # The issuer's wall clock: for "as of" and TTL, never for order.
    context: VersionVector  # Of the partition, as the origin knew it before this operation.
    nth: int = 0  # Of the mutation within its operation.

    def at(self, nth: int) -> Stamp:
        """The stamp of the `nth` mutation of the same operation."""
        return self if nth == self.nth else replace(self, nth=nth)

    def pack_position(self) -> bytes:
        """34 bytes: HLC, dot, nth. Their order is a causal order of mutations."""
        return self.hlc.to_bytes(8, "big") + self.dot.pack() + self.nth.to_bytes(2, "big")


POSITION_BYTES = 8 + 24 + 2


def successor(prefix: bytes) -> bytes | None:
    """The least key above every key that begins with `prefix`; None if there is none."""
    trimmed = prefix.rstrip(b"\xff")
    if not trimmed:
        return None
    return trimmed[:-1] + bytes([trimmed[-1] + 1])


class Within:
    """The rows below a prefix, as rows of their own: for a type that is part of another type's object."""

    __slots__ = ("_prefix", "_rows")

    def __init__(self, rows: Rows, prefix: bytes) -> None:
        self._rows = rows
        self._prefix = prefix

    def get(self, key: bytes, /) -> bytes | None:
        """As `Rows.get`."""
        return self._rows.get(self._prefix + key)

    def size(self, key: bytes, /) -> int | None:
        """As `Rows.size`."""
        return self._rows.size(self._prefix + key)

    def put(self, key: bytes, value: bytes, /) -> None:
        """As `Rows.put`."""
        self._rows.put(self._prefix + key, value)

    def delete(self, key: bytes, /) -> None:
        """As `Rows.delete`."""
        self._rows.delete(self._prefix + key)

    def scan(
        self, prefix: bytes, /, *, after: bytes | None = None, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """As `Rows.scan`; keys come without the prefix."""
        start = None if after is None else self._prefix + after
        for key, value in self._rows.scan(self._prefix + prefix, after=start, reverse=reverse, limit=limit):
            yield key[len(self._prefix) :], value
