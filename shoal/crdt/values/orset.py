"""A set: adding wins over a removal that has not seen it, and nothing stays of what was removed.

Laws (ORSWOT, the observed-remove set without tombstones; Bieniusa et al. 2012):
- An element is a member while an add of it is live. An add replaces the adds of its
  element that its origin knew, and a removal removes them; neither touches any other. So of
  an add and a removal that did not know of each other the add wins.
- What an origin knew of an element travels in the change, as the dots of its adds. Causal
  delivery has brought these to every replica before the change itself: no add can arrive
  after the removal that has seen it, so the live adds are all the state there is.
- Of one operation's changes the later one has seen the earlier ones.
- Of the adds of one element that one request made, sent again to another node, each is live until
  it is seen: an add that is made twice is the same member.

Elements are opaque bytes; two are one element if their bytes are equal.

Rows:
    E element                    dots₂₄ of its live adds, sorted
    N                            members₈; no row if there are none
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shoal.crdt.dot import DOT_BYTES, Dot
from shoal.crdt.rows import Rows, Stamp

ELEMENT, COUNT = b"E", b"N"


class Named(msgspec.Struct, array_like=True, frozen=True):
    """An element, and the dots of the adds of it that the issuer knew: origin and sequence."""

    element: bytes
    seen: tuple[tuple[bytes, int], ...] = ()


class Alter(msgspec.Struct, array_like=True, frozen=True, tag="alter-set"):
    """The mutation. What it both removes and adds is a member afterwards."""

    add: tuple[Named, ...] = ()
    remove: tuple[Named, ...] = ()


def apply(rows: Rows, stamp: Stamp, alter: Alter) -> None:
    grown = 0
    for named in alter.remove:
        before = _dots(rows, named.element)
        grown += _store(rows, named.element, before, _unseen(before, named, stamp))
    for named in alter.add:
        before = _dots(rows, named.element)
        grown += _store(rows, named.element, before, sorted([*_unseen(before, named, stamp), stamp.dot]))
    if grown:
        _count(rows, size(rows) + grown)


def named(rows: Rows, element: bytes) -> Named:
    """An element as a change names it that is based on these rows."""
    return Named(element, tuple(_dots(rows, element)))


def size(rows: Rows) -> int:
    """How many members there are."""
    stored = rows.get(COUNT)
    return 0 if stored is None else int.from_bytes(stored, "big")


def contains(rows: Rows, element: bytes) -> bool:
    return rows.get(ELEMENT + element) is not None


def members(rows: Rows, *, after: bytes | None = None) -> Iterator[bytes]:
    """In the order of their bytes."""
    for row, _ in rows.scan(ELEMENT, after=None if after is None else ELEMENT + after):
        yield row[len(ELEMENT) :]


def _unseen(dots: list[Dot], named: Named, stamp: Stamp) -> list[Dot]:
    return [dot for dot in dots if dot not in named.seen and dot != stamp.dot]


def _dots(rows: Rows, element: bytes) -> list[Dot]:
    stored = rows.get(ELEMENT + element) or b""
    return [Dot.unpack(stored[start : start + DOT_BYTES]) for start in range(0, len(stored), DOT_BYTES)]


def _store(rows: Rows, element: bytes, before: list[Dot], after: list[Dot]) -> int:
    """By how much the set has grown."""
    if after:
        rows.put(ELEMENT + element, b"".join(dot.pack() for dot in after))
    elif before:
        rows.delete(ELEMENT + element)
    return bool(after) - bool(before)


def _count(rows: Rows, members: int) -> None:
    if members:
        rows.put(COUNT, members.to_bytes(8, "big"))
    else:
        rows.delete(COUNT)
