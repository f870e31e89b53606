"""A list: values in an order that is the same on every node, at positions that never clash.

Laws:
- A position is a path in a tree, as in Fugue (Weidner and Kleppmann 2023), written so that the order of its bytes is the
  order of the list. Its last step has the dot of the change that made it, so no two changes make the same position.
- What one origin inserts one after the other, or each before the last, stands together: what others inserted there without
  having seen it stands before or after all of it.
- An element has one position at a time. Of concurrent moves the last counts, by their stamps (Kleppmann 2020), so an element
  that is moved on two nodes is there once.
- A removal removes the adds of an element that its origin knew, as in a set (`shoal.kinds.set.state`), wherever others
  have moved them. It leaves nothing: positions need no removed neighbours.
- A request that was sent to several nodes adds the same elements to each. Of the adds of one element that are live, the one
  that was moved last is shown, and before any move the one with the least dot: a move stays, whichever add arrives after it.
- An element whose position begins a *bucket* is so by a hash of the position. So the buckets, which count the elements between
  two of them, depend on the live elements alone; an index is found without reading all elements before it.

A step of a path: start₄, the origin₁₆ of the change, its turn₈ (sequence and nth; counted down for what was put before
something of the same origin), and nth₂ of the value in the change. Steps follow each other after a byte for the side on which
the next one hangs. An origin that goes on after (or before) its own last element stays beside it, in one step; any other
begins a step below the neighbour. Beyond `PATH_LONG` bytes it takes the next start beside the neighbour instead, so that
paths do not grow while nodes take turns; what others insert there unseen may then come between two turns.

Rows:
    I id₁₈                       msgpack [[dot₂₄, moved₃₄, path, value], …] of the live adds; the first is shown; its value: P
    P path 01                    msgpack [id, value] of the first
    B path 01                    elements₄ from this position up to that of the next such row; `B` alone: those before the first
    N                            elements₈; no row if there are none
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from hashlib import sha256
from itertools import islice
from zlib import crc32

import msgspec

from shoal.crdt.applier import NO_EFFECTS, Appliers, Effects, always, bare
from shoal.crdt.deletion import check_key
from shoal.crdt.dot import ORIGIN_BYTES, Dot, Origin
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation
from shoal.kinds import Kind
from shoal.records import NamedTuple

ELEMENT, PLACE, BUCKET, COUNT = b"I", b"P", b"B", b"N"
PATH_LONG = 256
"""A longer path grows only for want of another place. It decides what is issued here, and not the order of what is there."""
PATH_BYTES_MAX = 4096
ID_BYTES = 18

LEFT, HERE, RIGHT = b"\x00", b"\x01", b"\x02"
_STEP_BYTES = 4 + ORIGIN_BYTES + 8 + 2
_MIDDLE = 1 << 31  # The start of the first step on a level.
_FORWARD = 1 << 63
_BUCKET = 64  # Elements in a bucket, on average. Part of the format, as the hash is.


class Named(msgspec.Struct, array_like=True, frozen=True):
    """An element, and the dots of the adds of it that the issuer knew: origin and sequence."""

    id: bytes
    seen: tuple[tuple[bytes, int], ...] = ()


class Place(msgspec.Struct, array_like=True, frozen=True):
    """Where a change puts elements; with its stamp, their positions."""

    beneath: bytes = b""  # The path, and the side of it, on which the step hangs.
    start: int = _MIDDLE
    back: bool = False  # Whether the origin goes on before its last element, rather than after it.

    def path(self, stamp: Stamp, nth: int = 0) -> bytes:
        """The position of the change's `nth` value."""
        turn = stamp.dot.sequence << 16 | stamp.nth
        counted = _FORWARD - 1 - turn if self.back else _FORWARD + turn
        return b"".join(
            (self.beneath, self.start.to_bytes(4, "big"), stamp.dot.origin, counted.to_bytes(8, "big"), nth.to_bytes(2, "big"))
        )


class Insert(msgspec.Struct, array_like=True, frozen=True, tag="insert-elements"):
    """A mutation: adds elements, one after the other."""

    at: Place
    values: tuple[bytes, ...]
    request: str | None = None  # The request's own key.


class Move(msgspec.Struct, array_like=True, frozen=True, tag="move-element"):
    """A mutation: moves an element."""

    element: Named
    at: Place


class Remove(msgspec.Struct, array_like=True, frozen=True, tag="remove-elements"):
    """A mutation: removes elements."""

    elements: tuple[Named, ...]


Change = Insert | Move | Remove


class Element(NamedTuple):
    """An element that is shown."""

    path: bytes
    id: bytes
    value: bytes


class _Add(NamedTuple):
    dot: bytes
    moved: bytes  # The position in time of the last move; empty: it was not moved.
    path: bytes
    value: bytes

    def is_among(self, dots: Collection[tuple[bytes, int]]) -> bool:
        """Whether it is one of these, which a peer may have made up."""
        return Dot.unpack(self.dot) in dots


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    id: bytes
    value: bytes


_encoder = msgspec.msgpack.Encoder()
_adds_decoder = msgspec.msgpack.Decoder(list[tuple[bytes, bytes, bytes, bytes]])
_stored_decoder = msgspec.msgpack.Decoder(_Stored)


# ── changes ───────────────────────────────────────────────────────────────────


def apply(rows: Rows, stamp: Stamp, change: Change) -> None:
    """Apply a mutation of any kind, and count the elements."""
    grown = 0
    match change:
        case Insert(at, values, request):
            dot = stamp.dot.pack()
            if len(values) > 1 and _is_gap(rows, at.path(stamp), at.path(stamp, len(values) - 1)):
                grown, values = _put_run(rows, stamp, change), ()
            for nth, value in enumerate(values):
                id = id_of(stamp, request, nth)
                before = _adds(rows, id)
                grown += _store(rows, id, before, [*before, _Add(dot, b"", at.path(stamp, nth), value)])
        case Move(element, at):
            now, path = stamp.pack_position(), at.path(stamp)
            before, seen = _adds(rows, element.id), set(element.seen)
            after = [add._replace(moved=now, path=path) if add.is_among(seen) and add.moved < now else add for add in before]
            _store(rows, element.id, before, after)
        case Remove(elements):
            for element in elements:
                before, seen = _adds(rows, element.id), set(element.seen)
                grown += _store(rows, element.id, before, [add for add in before if not add.is_among(seen)])
    if grown:
        _put_number(rows, COUNT, size(rows) + grown, 8)


def _put_run(rows: Rows, stamp: Stamp, insert: Insert) -> int:
    """Insert values where nothing stands between, with a look at each bucket, and return how many elements are new."""
    dot, grown = stamp.dot.pack(), 0
    bucket: bytes | None = None  # Of the element before, if that is counted by `counted` alone.
    counted = 0
    for nth, value in enumerate(insert.values):
        id, path = id_of(stamp, insert.request, nth), insert.at.path(stamp, nth)
        before = _adds(rows, id)
        if before or _begins(path):
            if bucket is not None:
                _put_number(rows, bucket, counted, 4)
                bucket = None
            grown += _store(rows, id, before, [*before, _Add(dot, b"", path, value)])
            continue
        if bucket is None:
            bucket = _bucket(rows, path)
            counted = _number(rows, bucket)
        counted += 1
        grown += 1
        rows.put(_key(PLACE, path), _encoder.encode((id, value)))
        rows.put(ELEMENT + id, _encoder.encode([_Add(dot, b"", path, b"")]))
    if bucket is not None:
        _put_number(rows, bucket, counted, 4)
    return grown


def _is_gap(rows: Rows, first: bytes, last: bytes) -> bool:
    """Whether nothing stands at one of these positions, or between them."""
    behind = neighbour(rows, first)
    return rows.get(_key(PLACE, first)) is None and (behind is None or behind + HERE > last + HERE)


def id_of(stamp: Stamp, request: str | None, nth: int) -> bytes:
    """The id of the `nth` value of an insert: of all inserts that one request makes, the same."""
    made = stamp.dot.pack() + stamp.nth.to_bytes(2, "big") if request is None else request.encode()
    return sha256(made).digest()[: ID_BYTES - 2] + nth.to_bytes(2, "big")


def _adds(rows: Rows, id: bytes) -> list[_Add]:
    """The live adds of an element, with their values."""
    stored = rows.get(ELEMENT + id)
    if stored is None:
        return []
    first, *others = (_Add(*fields) for fields in _adds_decoder.decode(stored))
    shown = rows.get(_key(PLACE, first.path))
    return [first if shown is None else first._replace(value=_stored_decoder.decode(shown).value), *others]


def _store(rows: Rows, id: bytes, before: list[_Add], after: list[_Add]) -> int:
    """Write the live adds of an element, and return by how much the list has grown: 1, 0 or -1."""
    if before == after:
        return 0
    after = sorted(sorted(after), key=lambda add: add.moved, reverse=True)
    old, new = (adds[0] if adds else None for adds in (before, after))
    if old is not None and (new is None or new.path != old.path):
        rows.delete(_key(PLACE, old.path))
        _uncount(rows, old.path)
    if new is None:
        rows.delete(ELEMENT + id)
        return -1
    if old is None or new.path != old.path:
        _count(rows, new.path)
    rows.put(_key(PLACE, new.path), _encoder.encode((id, new.value)))
    rows.put(ELEMENT + id, _encoder.encode([new._replace(value=b""), *after[1:]]))
    return int(old is None)


# ── places ────────────────────────────────────────────────────────────────────


def between(left: bytes | None, right: bytes | None, stamp: Stamp, count: int = 1) -> Place:
    """A place for so many elements between the paths of two neighbours; None is an end of the list."""
    for place in _places(left, right, stamp.dot.origin):
        first, last = place.path(stamp), place.path(stamp, count - 1)
        if (left is None or left + HERE < first + HERE) and (right is None or last + HERE < right + HERE):
            return place
    raise AssertionError("below a neighbour there is always a place")


def _places(left: bytes | None, right: bytes | None, origin: Origin) -> Iterator[Place]:
    """The best first. The last one is free, because nothing that is shown hangs on that side."""
    if left is not None and _origin(left) == origin:
        yield _beside(left, 0)
    if right is not None and _origin(right) == origin:
        yield _beside(right, 0, back=True)
    within = right is not None and (left is None or right.startswith(left + RIGHT))
    neighbour = right if within else left
    if neighbour is None:
        yield Place()
        return
    if len(neighbour) >= PATH_LONG:
        yield _beside(neighbour, -1 if within else 1)
    yield Place(neighbour + (LEFT if within else RIGHT))


def _beside(path: bytes, by: int, *, back: bool = False) -> Place:
    """The place of a step beside the last one of a path."""
    last = len(path) - _STEP_BYTES
    start = int.from_bytes(path[last : last + 4], "big") + by
    return Place(path[:last], min(max(0, start), 2 * _MIDDLE - 1), back)


def _origin(path: bytes) -> bytes:
    return path[4 - _STEP_BYTES :][:ORIGIN_BYTES]


def is_place(place: Place) -> bool:
    """Whether a place that a peer sent is one."""
    length, odd = divmod(len(place.beneath), _STEP_BYTES + 1)
    sides = place.beneath[_STEP_BYTES :: _STEP_BYTES + 1]
    return (
        not odd
        and len(place.beneath) + _STEP_BYTES <= PATH_BYTES_MAX
        and len(sides) == length
        and set(sides) <= {LEFT[0], RIGHT[0]}
        and 0 <= place.start < 2 * _MIDDLE
    )


# ── reads ─────────────────────────────────────────────────────────────────────


def size(rows: Rows) -> int:
    """How many elements there are."""
    return _number(rows, COUNT)


def named(rows: Rows, id: bytes) -> Named:
    """An element with the adds of it that these rows hold: the form in which a change based on them names it."""
    return Named(id, tuple(Dot.unpack(add.dot) for add in _adds(rows, id)))


def find(rows: Rows, id: bytes) -> Element | None:
    """The element with an id; None: there is no such element."""
    adds = _adds(rows, id)
    return Element(adds[0].path, id, adds[0].value) if adds else None


def elements(rows: Rows, *, after: bytes | None = None) -> Iterator[Element]:
    """The elements in their order, after a path."""
    for row, stored in rows.scan(PLACE, after=None if after is None else _key(PLACE, after)):
        yield _element(row, stored)


def element_at(rows: Rows, index: int) -> Element | None:
    """The element at an index from 0; None: the list is shorter."""
    begins: bytes | None = None
    for row, counted in rows.scan(BUCKET):
        if index < (many := int.from_bytes(counted, "big")):
            begins = row[1:-1]
            break
        index -= many
    if begins is None:
        return None
    return next(islice(_from(rows, begins), index, None), None)


def index_of(rows: Rows, path: bytes) -> int:
    """The index of the element at a path."""
    before = last = 0
    begins = b""
    for row, counted in rows.scan(BUCKET):
        if row > _key(BUCKET, path):
            break
        before, last, begins = before + last, int.from_bytes(counted, "big"), row[1:-1]
    elements = _from(rows, begins)
    return before + next((nth for nth, element in enumerate(elements) if element.path == path), 0)


def neighbour(rows: Rows, path: bytes, *, before: bool = False) -> bytes | None:
    """The position after a path, or the one before it; None: there is none."""
    found = next(iter(rows.scan(PLACE, after=_key(PLACE, path), reverse=before, limit=1)), None)
    return None if found is None else found[0][1:-1]


def end(rows: Rows) -> bytes | None:
    """The last position; None: the list is empty."""
    found = next(iter(rows.scan(PLACE, reverse=True, limit=1)), None)
    return None if found is None else found[0][1:-1]


def _from(rows: Rows, path: bytes) -> Iterator[Element]:
    if path:
        row = _key(PLACE, path)
        yield _element(row, rows.get(row) or b"")
    yield from elements(rows, after=path or None)


def _element(row: bytes, stored: bytes) -> Element:
    found = _stored_decoder.decode(stored)
    return Element(row[1:-1], found.id, found.value)


# ── counts ────────────────────────────────────────────────────────────────────


def _begins(path: bytes) -> bool:
    """Whether an element at this position begins a bucket."""
    return crc32(path) % _BUCKET == 0


def _bucket(rows: Rows, path: bytes) -> bytes:
    """The row of the bucket that counts what stands just before a position."""
    return next((row for row, _ in rows.scan(BUCKET, after=_key(BUCKET, path), reverse=True, limit=1)), BUCKET)


def _count(rows: Rows, path: bytes) -> None:
    """Count an element that is about to be put at a position."""
    bucket = _bucket(rows, path)
    if not _begins(path):
        _put_number(rows, bucket, _number(rows, bucket) + 1, 4)
        return
    behind = 0
    for element in elements(rows, after=path):
        if _begins(element.path):
            break
        behind += 1
    _put_number(rows, bucket, _number(rows, bucket) - behind, 4)
    _put_number(rows, _key(BUCKET, path), behind + 1, 4)


def _uncount(rows: Rows, path: bytes) -> None:
    """Count an element no longer that was at a position."""
    bucket, own = _bucket(rows, path), 0
    if _begins(path):
        own = _number(rows, _key(BUCKET, path))
        rows.delete(_key(BUCKET, path))
    _put_number(rows, bucket, _number(rows, bucket) + own - 1, 4)


def _key(table: bytes, path: bytes) -> bytes:
    return table + path + HERE


def _number(rows: Rows, row: bytes) -> int:
    return int.from_bytes(rows.get(row) or b"", "big")


def _put_number(rows: Rows, row: bytes, number: int, size: int) -> None:
    if number:
        rows.put(row, number.to_bytes(size, "big"))
    else:
        rows.delete(row)


HIDDEN: dict[int, int] = {}
"""Where content begins in the keys of rows, by their first byte: nowhere."""

_SEQUENCES = 1 << 47  # As many as a step of a path can name.
_NTHS = 1 << 16  # The same of mutations in an operation.
_VALUES_MAX = 4096  # The most that `page_items_max`, the bound of a request, may be.


def _check(stamp: Stamp, change: Change) -> None:
    sound = stamp.dot.sequence < _SEQUENCES and stamp.nth < _NTHS
    many = change.values if isinstance(change, Insert) else change.elements if isinstance(change, Remove) else ()
    if len(many) > _VALUES_MAX:
        raise BadOperation(
            f"a change of a list has more than {_VALUES_MAX} elements. Nothing of it was written.", reason="content"
        )
    match change:
        case Insert(at, values, request):
            check_key(request)
            sound = sound and is_place(at) and bool(values)
        case Move(element, at):
            sound = sound and is_place(at) and _are_named((element,))
        case Remove(elements):
            sound = _are_named(elements)
    if not sound:
        raise BadOperation("a change of a list names impossible places. Nothing of it was written.", reason="content")


def _are_named(elements: Collection[Named]) -> bool:
    return all(len(element.id) == ID_BYTES for element in elements)


def _id_of(_name: str, stamp: Stamp, change: Change) -> str:
    """The element that it is about; empty if it is about several."""
    match change:
        case Insert(_, [_], request):
            return id_of(stamp, request, 0).hex()
        case Move(element, _) | Remove([element]):
            return element.id.hex()
        case _:
            return ""


APPLIERS: Appliers = {
    kind: bare(Kind.LIST, apply, _check, id_of=_id_of, effects=effects, since=lambda _: 7)
    for kind, effects in ((Insert, NO_EFFECTS), (Move, NO_EFFECTS), (Remove, Effects(frees=always)))
}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    size(rows)
    for element in elements(rows):
        named(rows, element.id)
