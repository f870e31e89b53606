"""Convert positions in a text between Python's characters and the engine's bytes.

Laws:
- A text is a sequence of characters (code points), each embedded object counting as one. The engine counts UTF-8 bytes, and
  one for each embedded object.
- Indices are checked as Python checks those of a list: negative ones count from the end, slices are clamped, an index
  outside raises IndexError, and one that is no integer TypeError. A place to insert at must exist: it is not clamped.

Indices that stay at a character of a text, whatever is edited.

The engine tells a character's id only if it begins an item: otherwise it takes bytes for the UTF-16 units that ids count. So
the item is split there first, by setting no formats, which changes nothing and tells nobody. The way back begins where
the engine sees the index, which is at or before its character and in the same item.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from operator import index as integer
from typing import TYPE_CHECKING, Any

import pycrdt

from shoal.errors import InvalidValue
from shoal.kinds.document.state.yjs import parse_state
from shoal.records import NamedTuple

if TYPE_CHECKING:
    from shoal.kinds.document.shared.texts import Text

EMBEDDED = b"\xff"
"""Stands for an embedded object among a text's bytes: it never occurs in UTF-8."""

HELD = "\udcff"
"""Stands for an embedded object among a text's characters."""

_SHOWN_EMBEDDED = "\ufffc"  # Unicode's object replacement character.
_ERRORS = "surrogateescape"  # `EMBEDDED` becomes one character, and the same byte again.


def packed(chunks: Iterable[Any]) -> bytes:
    """A text as the engine counts it: the bytes of its strings, and `EMBEDDED` for each object."""
    return b"".join(chunk.encode() if isinstance(chunk, str) else EMBEDDED for chunk in chunks)


def characters(text: bytes | bytearray) -> int:
    """How many characters `packed` bytes are."""
    return len(text) if text.isascii() else len(text.decode(errors=_ERRORS))


class Layout:
    """The characters of one text, and where they begin in the engine's count."""

    __slots__ = ("_near", "_units")

    def __init__(self, text: str | bytes) -> None:
        """`text` without embedded objects, or as `packed` makes it."""
        self._units = text if isinstance(text, str) else text.decode(errors=_ERRORS)
        self._near = (0, 0)  # A place and the engine's position of it: the next place is likely to be near.

    def __len__(self) -> int:
        return len(self._units)

    def __getitem__(self, key: int | slice) -> str:
        found = self._units[key]
        return found if found.isascii() else found.replace(HELD, _SHOWN_EMBEDDED)

    def at(self, place: int) -> int:
        """The engine's position of the place before a character, or at the end."""
        if self._units.isascii():
            return place
        near, at = self._near
        at += _size(self._units[near:place]) if near <= place else -_size(self._units[place:near])
        self._near = place, at
        return at

    def edited(self, start: int, stop: int, new: str) -> None:
        """Follow an edit that put `new` in the place of the characters from `start` to `stop`."""
        self._near = start, self.at(start)
        self._units = self._units[:start] + new + self._units[stop:]

    def size(self, start: int, stop: int) -> int:
        """How much the engine counts between two places."""
        return _size(self._units[start:stop])

    def units(self, place: int) -> int:
        """How many UTF-16 units, which Yjs's ids count, a character has."""
        return 1 + (ord(self._units[place]) > 0xFFFF)

    def place(self, at: int) -> int:
        """The place at an engine's position; if it lies within a character, the place before that."""
        if self._units.isascii():
            return min(at, len(self._units))
        text = self._units.encode(errors=_ERRORS)
        while at < len(text) and text[at] & 0xC0 == 0x80:  # A byte in the middle of a character.
            at -= 1
        return characters(text[:at])


def _size(units: str) -> int:
    return len(units) if units.isascii() else len(units.encode(errors=_ERRORS))


def item(index: Any, length: int, what: str) -> int:
    """The index of an element of a sequence (`what`).

    Raises:
        IndexError, TypeError: there is none.
    """
    at = _integer(index, what)
    if not -length <= at < length:
        raise IndexError(f"index {at} is outside of the {what}, which has length {length}. Nothing was written.")
    return at % length


def place(index: Any, length: int, what: str) -> int:
    """The place in a sequence (`what`) to insert at: before an element, or at the end.

    Raises:
        IndexError, TypeError: there is none.
    """
    at = _integer(index, what)
    if not -length <= at <= length:
        raise IndexError(f"position {at} is outside of the {what}, which has length {length}. Nothing was written.")
    return at + length if at < 0 else at


def sticky(index: Any, length: int, assoc: pycrdt.Assoc, what: str) -> int:
    """A place that an index can stick to: the engine panics where nothing is on that side.

    Raises:
        IndexError, TypeError: there is none.
    """
    at = place(index, length, what)
    if assoc == pycrdt.Assoc.AFTER and at == length:
        raise IndexError(f"nothing is after the end of the {what}, where an index could stick. Use Assoc.BEFORE.")
    return at


def span(key: slice, length: int, what: str) -> tuple[int, int]:
    """The first and the last place of a slice.

    Raises:
        TypeError: it has a step, or a bound is no integer.
    """
    if key.step not in (None, 1):
        raise TypeError(f"a slice of a document's {what} has no step. Nothing was written.")
    start, stop, _ = slice(key.start, key.stop).indices(length)
    return start, max(start, stop)


def _integer(index: Any, what: str) -> int:
    try:
        return integer(index)
    except TypeError:
        raise TypeError(
            f"a position in a {what} is an integer, not {type(index).__name__} ({index!r:.40}). Nothing was written."
        ) from None


class StickyIndex(pycrdt.StickyIndex):
    """An index that stays at its character."""

    def get_index(self, transaction: Any = None) -> int:
        """Where it is now, in characters."""
        text: Any = self._sequence
        found: int = text.index_of(self)
        return found


class _Id(NamedTuple):
    client: int
    clock: int  # Of the character's first UTF-16 unit.


def stuck(text: Text, layout: Layout, index: Any, assoc: pycrdt.Assoc) -> StickyIndex:
    """An index that sticks to the character after it, or before it.

    Raises:
        IndexError, TypeError: there is no such place, or nothing is on that side.
    """
    place = sticky(index, len(layout), assoc, "text")
    with text.doc.transaction() as transaction:
        if assoc == pycrdt.Assoc.BEFORE and place > 0:
            client, clock = _id(text, layout, place - 1)
            last = clock + layout.units(place - 1) - 1
            return StickyIndex.from_json({"item": {"client": client, "clock": last}, "assoc": int(assoc)}, text)
        if place < len(layout):
            _id(text, layout, place)
        return StickyIndex(text.integrated.sticky_index(transaction._txn, layout.at(place), assoc), text)


def index_of(text: Text, layout: Layout, found: pycrdt.StickyIndex) -> int:
    """Where an index sticks now.

    Raises:
        InvalidValue: it sticks to a character that this document does not hold.
    """
    wanted = found.to_json().get("item")
    is_before = found.assoc == pycrdt.Assoc.BEFORE
    if wanted is None:
        return 0 if is_before else len(layout)
    client, clock = int(wanted["client"]), int(wanted["clock"])
    if clock >= parse_state(text.doc.get_state()).get(client, 0):
        raise InvalidValue("this index sticks to a character that this document does not hold. Use it with its own document.")
    with text.doc.transaction() as transaction:
        assert transaction._txn is not None
        at = found._sticky_index.get_offset(transaction._txn)
        place = layout.place(max(0, at - is_before))
        if place < len(layout) and (began := _id(text, layout, place)).client == client:
            ahead = clock - began.clock
            while ahead >= 0 and place < len(layout) and ahead >= layout.units(place):
                ahead -= layout.units(place)
                place += 1
            if place < len(layout) and ahead >= 0 and _id(text, layout, place) == (client, clock - ahead):
                return place + is_before
        return layout.place(at)  # The character was deleted; the engine tells exactly where it was.


def _id(text: Text, layout: Layout, place: int) -> _Id:
    """The id of a character. Its item begins there until the transaction ends."""
    with text.doc.transaction() as transaction:
        at = layout.at(place)
        text.integrated.format(transaction._txn, at, layout.size(place, place + 1), iter(()))
        found = json.loads(text.integrated.sticky_index(transaction._txn, at, pycrdt.Assoc.AFTER).to_json_string())["item"]
        return _Id(found["client"], found["clock"])
