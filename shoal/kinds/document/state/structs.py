"""The items of a Yjs v1 update: where each is put, and its content.

Law: the update must have passed `shoal.kinds.document.state.yjs.parse`. Every struct of it is returned, in the update's order.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from shoal.kinds.document.state.yjs import Reader
from shoal.records import NamedTuple

Id = tuple[int, int]
"""Client and clock."""

_GC, _SKIP = 0, 10
_DELETED, _BINARY, _STRING, _EMBED, _FORMAT, _TYPE, _ANY = 1, 3, 4, 5, 6, 7, 8
_HAS_ORIGIN, _HAS_RIGHT_ORIGIN, _HAS_KEY, _CONTENT = 0x80, 0x40, 0x20, 0x1F
_TYPES = {0: "array", 1: "map", 2: "text", 3: "element", 4: "fragment", 6: "xmltext"}


class Shared(NamedTuple):
    """The content of an item that is a shared type."""

    type: str  # One of `_TYPES`.
    tag: str = ""  # Of an element.


class Item(NamedTuple):
    """One struct of an update."""

    client: int
    clock: int
    length: int
    origin: Id | None = None
    right: Id | None = None
    parent: str | Id | None = None  # A root, or an item; None if the neighbours tell it.
    key: str | None = None  # None also if the neighbours tell it.
    held: tuple[Any, ...] | None = None  # Its values, characters or `Shared`; None if it was deleted, or has none.


class Walked(NamedTuple):
    """The content of an update."""

    items: list[Item]  # A garbage-collected one has no content and no place.
    deletes: list[tuple[int, int, int]]  # Client, clock, length.


def walk(update: bytes) -> Walked:
    """Read a whole update.

    Raises:
        InvalidValue: it is no update.
    """
    reader = _Walker(update)
    items = list(reader.items())
    deletes = reader.deletes()
    reader.end()
    return Walked(items, deletes)


class _Walker(Reader):
    __slots__ = ()

    def items(self) -> Iterator[Item]:
        for _ in range(self.count()):
            many, client, clock = self.count(), self.client(), self.integer()
            for _ in range(many):
                item = self._item(client, clock)
                clock += item.length
                if item.length and item.parent != _NOWHERE:
                    yield item

    def _item(self, client: int, clock: int) -> Item:
        flags = self._byte()
        if flags in (_GC, _SKIP):
            # Skipped clocks are in another update, so they are left out.
            return Item(client, clock, self._length(), parent=_NOWHERE if flags == _SKIP else None)
        origin = self._id() if flags & _HAS_ORIGIN else None
        right = self._id() if flags & _HAS_RIGHT_ORIGIN else None
        parent: str | Id | None = None
        key: str | None = None
        if origin is None and right is None:
            parent = self.text() if self.integer() else self._id()
            key = self.text() if flags & _HAS_KEY else None
        length, held = self._held(flags & _CONTENT)
        return Item(client, clock, length, origin, right, parent, key, held)

    def _held(self, content: int) -> tuple[int, tuple[Any, ...] | None]:
        if content == _ANY:
            values = tuple(self._value() for _ in range(self._length()))
            return len(values), values
        if content == _STRING:
            text = self.text()
            return len(text.encode("utf-16-le")) // 2, tuple(text)
        if content == _DELETED:
            return self._length(), None
        if content == _TYPE:
            shared = _TYPES[self.integer()]
            return 1, (Shared(shared, self.text() if shared == "element" else ""),)
        if content == _BINARY:
            return 1, (self._take(self.integer()),)
        if content == _FORMAT:
            self.text()
            self.text()
            return 1, ()
        return 1, (json.loads(self.text()),)

    def _value(self) -> Any:
        """One plain value. `parse` has bounded how deep it nests."""
        tag = self._byte()
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag == 125:
            return self._signed()
        if tag in _PACKED:
            packing = _PACKED[tag]
            return packing.unpack(self._take(packing.size))[0]
        if tag == 119:
            return self.text()
        if tag == 118:
            return {self.text(): self._value() for _ in range(self.count())}
        if tag == 117:
            return [self._value() for _ in range(self.count())]
        return self._take(self.integer())

    def _signed(self) -> int:
        """lib0's signed integer: seven bits a byte, but six and the sign in the first."""
        byte = self._byte()
        sign = -1 if byte & 0x40 else 1
        value, shift = byte & 0x3F, 6
        while byte & 0x80:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
        return sign * value


_NOWHERE: Id = (-1, -1)
_CONSTANTS: dict[int, Any] = {120: True, 121: False, 126: None, 127: None}
_PACKED = {124: struct.Struct(">f"), 123: struct.Struct(">d"), 122: struct.Struct(">q")}
