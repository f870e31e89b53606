"""Indices that stay at a character of a text, whatever is edited.

The engine tells a character's id only if it begins an item: otherwise it takes bytes for the UTF-16 units that ids count. So
the item is split there first, by setting no formats, which changes nothing and tells nobody. The way back begins where
the engine sees the index, which is at or before its character and in the same item.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pycrdt

from shoal.errors import InvalidValue
from shoal.kinds.document.shared.positions import Layout, sticky
from shoal.kinds.document.state.yjs import parse_state
from shoal.records import NamedTuple

if TYPE_CHECKING:
    from shoal.kinds.document.shared.texts import Text


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
