"""A set: an add wins over a removal that has not seen it, and a removed element leaves nothing.

Laws (ORSWOT, the observed-remove set without tombstones; Bieniusa et al. 2012):
- An element is a member while an add of it is live. An add replaces the adds of its
  element that its origin knew, and a removal removes them; neither touches any other. So of
  a concurrent add and removal the add wins.
- A change carries the dots of the adds that its origin knew of each element. Causal
  delivery has brought these adds to every replica before the change itself: no add can arrive
  after the removal that has seen it, so the live adds are all the state there is.
- Within one operation, a later change has seen the earlier ones.
- If a request was sent to several nodes, each of the adds that it made is live until
  it is seen: an element that is added twice is one member.

Elements are opaque bytes; two are one element if their bytes are equal.

Rows:
    E element                    dots₂₄ of its live adds, sorted
    N                            members₈; no row if there are none
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shoal.crdt.applier import Appliers, Effects, bare
from shoal.crdt.dot import DOT_BYTES, Dot
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds import Kind

ELEMENT, COUNT = b"E", b"N"


class Named(msgspec.Struct, array_like=True, frozen=True):
    """An element, and the dots of the adds of it that the issuer knew: origin and sequence."""

    element: bytes
    seen: tuple[tuple[bytes, int], ...] = ()


class Alter(msgspec.Struct, array_like=True, frozen=True, tag="alter-set"):
    """The mutation: adds and removes members. An element in both lists is a member afterwards."""

    add: tuple[Named, ...] = ()
    remove: tuple[Named, ...] = ()


def apply(rows: Rows, stamp: Stamp, alter: Alter) -> None:
    """Remove, then add, and count the members."""
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
    """An element with the adds of it that these rows hold: the form in which a change based on them names it."""
    return Named(element, tuple(_dots(rows, element)))


def size(rows: Rows) -> int:
    """How many members there are."""
    stored = rows.get(COUNT)
    return 0 if stored is None else int.from_bytes(stored, "big")


def contains(rows: Rows, element: bytes) -> bool:
    """Whether the element is a member."""
    return rows.get(ELEMENT + element) is not None


def members(rows: Rows, *, after: bytes | None = None) -> Iterator[bytes]:
    """All members, in the order of their bytes; `after` is exclusive."""
    for row, _ in rows.scan(ELEMENT, after=None if after is None else ELEMENT + after):
        yield row[len(ELEMENT) :]


def _unseen(dots: list[Dot], named: Named, stamp: Stamp) -> list[Dot]:
    return [dot for dot in dots if dot not in named.seen and dot != stamp.dot]


def _dots(rows: Rows, element: bytes) -> list[Dot]:
    stored = rows.get(ELEMENT + element) or b""
    return [Dot.unpack(stored[start : start + DOT_BYTES]) for start in range(0, len(stored), DOT_BYTES)]


def _store(rows: Rows, element: bytes, before: list[Dot], after: list[Dot]) -> int:
    """Write the live adds of an element, and return by how much the set has grown: 1, 0 or -1."""
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


HIDDEN = {ord("E"): 1}
"""Where content begins in the keys of rows, by their first byte: an encrypted store hides it."""


def parts(alter: Alter, most: int) -> Iterator[Alter]:
    """An alteration as several: all removals come first, as in one."""
    for start in range(0, len(alter.remove), most):
        yield Alter(remove=alter.remove[start : start + most])
    for start in range(0, len(alter.add), most):
        yield Alter(alter.add[start : start + most])


APPLIERS: Appliers = {
    Alter: bare(Kind.SET, apply, effects=Effects(frees=lambda alter: bool(alter.remove)))._replace(parts=parts),
}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    size(rows)
    list(members(rows))
