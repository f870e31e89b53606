"""The items of a Yjs v1 update, and the kinds of the roots that it uses.

The items of a Yjs v1 update: where each is put, and its content.

Law: the update must have passed `shoal.kinds.document.state.yjs.parse`. Every struct of it is returned, in the update's order.

How an update uses a root, and the kind that follows from it if nobody declared the root.

Law: a standard Yjs client names a root without its kind, so the
first update that uses it must tell. The rule, in this order:

1. if the items without a key hold XML elements or texts and nothing else, the root is XML, even if there are keys:
   these are the attributes of a client for which the root is an XML text;
2. if it has keys, it is a map, even if there are items without a key;
3. if its items hold text, formatting or embedded objects, it is a text;
4. if its items hold values, bytes or shared types, it is an array;
5. if the update shows only deleted items of it, it is a text.

An item that has a neighbour does not name its root; its neighbours lead there.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

from shoal.kinds.document.state.yjs import (
    ANY,
    ARRAY_CONTENT,
    BINARY,
    CONTENT,
    DELETED,
    FORMAT,
    GC,
    HAS_KEY,
    HAS_ORIGIN,
    HAS_RIGHT_ORIGIN,
    NODE,
    SKIP,
    STRING,
    TEXT_CONTENT,
    TYPE,
    Parsed,
    Reader,
    RootKind,
    Struct,
)
from shoal.records import NamedTuple

Id = tuple[int, int]
"""Client and clock."""

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
        if flags in (GC, SKIP):
            # Skipped clocks are in another update, so they are left out.
            return Item(client, clock, self._length(), parent=_NOWHERE if flags == SKIP else None)
        origin = self._id() if flags & HAS_ORIGIN else None
        right = self._id() if flags & HAS_RIGHT_ORIGIN else None
        parent: str | Id | None = None
        key: str | None = None
        if origin is None and right is None:
            parent = self.text() if self.integer() else self._id()
            key = self.text() if flags & HAS_KEY else None
        length, held = self._held(flags & CONTENT)
        return Item(client, clock, length, origin, right, parent, key, held)

    def _held(self, content: int) -> tuple[int, tuple[Any, ...] | None]:
        if content == ANY:
            values = tuple(self._value() for _ in range(self._length()))
            return len(values), values
        if content == STRING:
            text = self.text()
            return len(text.encode("utf-16-le")) // 2, tuple(text)
        if content == DELETED:
            return self._length(), None
        if content == TYPE:
            shared = _TYPES[self.integer()]
            return 1, (Shared(shared, self.text() if shared == "element" else ""),)
        if content == BINARY:
            return 1, (self._take(self.integer()),)
        if content == FORMAT:
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


_NOTHING = {GC, DELETED}
_At = tuple[int, int]  # Client, and index among its structs.


def infer(parsed: Parsed, known: Iterable[str]) -> dict[str, RootKind]:
    """The kinds of the roots that an update uses and that are not `known`."""
    unknown = (parsed.keyed | parsed.listed).difference(known)
    contents = _contents(parsed, sorted(unknown & parsed.listed), keyed=False)
    return {name: _kind(contents.get(name, set()), keyed=name in parsed.keyed) for name in sorted(unknown)}


def _kind(listed: set[int], *, keyed: bool) -> RootKind:
    """`listed`: the kinds of content of the items without a key."""
    if NODE in listed and not listed & (TEXT_CONTENT | ARRAY_CONTENT):
        return "xml"
    if keyed:
        return "map"
    if listed & TEXT_CONTENT or not listed & ARRAY_CONTENT:
        return "text"
    return "array"


def brings(parsed: Parsed, root: str, *, keyed: bool) -> bool:
    """Whether an update gives a root more than deleted items, at keys or else without."""
    return bool(_contents(parsed, [root], keyed=keyed)[root] - _NOTHING)


def _contents(parsed: Parsed, names: list[str], *, keyed: bool) -> dict[str, set[int]]:
    """The kinds of content of each root's items, of those at keys or else of the others."""
    contents: dict[str, set[int]] = {name: set() for name in names}
    known: dict[_At, Struct | None] = {}
    clocks = {client: [struct.clock for struct in structs] for client, structs in parsed.structs.items()}
    for client, structs in parsed.structs.items():
        for index, each in enumerate(structs):
            first = _first((client, index), parsed.structs, clocks, known)
            if first is not None and first.root in contents and first.keyed == keyed:
                contents[first.root].add(each.content)
    return contents


def _first(
    at: _At, structs: dict[int, list[Struct]], clocks: dict[int, list[int]], known: dict[_At, Struct | None]
) -> Struct | None:
    """The item that names the root of an item, found along its neighbours.

    None if the item is in another item, or its root is not known here.
    """
    path: list[_At] = []
    first: Struct | None = None
    while at not in known:
        known[at] = None  # So the walk ends even if neighbours form a circle.
        path.append(at)
        struct = structs[at[0]][at[1]]
        if struct.root is not None:
            first = struct
            break
        if struct.inside or not struct.needs:
            break
        client, clock = struct.needs[0]
        index = bisect_right(clocks.get(client, ()), clock) - 1
        if index < 0:
            break
        at = client, index
    else:
        first = known[at]
    for passed in path:
        known[passed] = first
    return first
