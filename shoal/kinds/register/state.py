"""A register: the values that were assigned concurrently, none of them lost.

Laws (dotted version vectors, Preguiça et al. 2010):
- An assign removes the siblings that its context covers, and those that its own
  operation assigned before; every other sibling stays beside it. Time decides
  nothing: it only orders the siblings that causality leaves.
- A context is clipped, when it is issued, to the operations that the assign's origin had
  applied (`clipped`). Causal delivery then brings everything that the context covers to
  every replica before the assign itself. So no sibling can arrive after the assign that
  replaces it, and the live siblings are all the state there is. If a client read more than
  the origin had applied, the clip keeps a sibling that the client saw: one too
  many, never one too few.
- A reader has seen, per origin, the greatest sequence among the live
  siblings. That covers each of them. It covers other assigns of those origins
  too, but only earlier ones; the replica had applied them (its vector is
  contiguous), so it showed them as siblings, or they were already replaced by a write
  in the past of a shown sibling. Origins without a live sibling need no entry for the
  same reason. The partition's whole vector would be correct too, but it would make every
  context as long as the list of origins.
- A `Swap` has a fencing number: of two, that with the greater one counts, whichever came first, and its value is the
  `latest`. So if a swap was never acknowledged, and a later one was made without it, it does not come back
  (docs/decisions/0072-compare-and-set.md). Whatever it covers is replaced nevertheless.
- If one request was sent to several nodes and left several live siblings, the one with the
  least dot is shown. The others stay in the row, so that order does not matter.
- The history has the `HISTORY_MAX` noted assigns with the greatest positions, whether they are live or replaced. A request
  that was sent to several nodes is one of them, at the greatest position that it got. The positions of a request, and of
  the requests as a set, only grow, so one that has left the greatest never comes back unless it is made anew: order does
  not matter here either.

The replica's vector prevents redelivery. The node bounds the number of siblings
before it issues an assign: `apply` is total.

Rows:
    S                            msgpack [[position₃₄, wall_ms, key, value], …] of the live siblings, by position

There is one row for all siblings. With a row for each, every assign would leave a tombstone in
storage, and a read of a key that is written often would pass all of them.

    F                            msgpack [number, position₃₄] of the swap with the greatest number; no row if there is none
    H                            msgpack [[position₃₄, wall_ms, key, by, size, value], …], by position; no row if none is noted
    V position₃₄                 the value of an entry of `H` that is empty there

The history is one row for the same reason. As each assign writes it, only values up to `HISTORY_INLINE_BYTES_MAX` are in it.
A larger one has a row of its own, which is read by its whole key, so that no tombstone is passed. One above
`HISTORY_VALUE_BYTES_MAX` is not kept, only its size: a large value is stored once.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from hashlib import sha256
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from shoal.crdt.applier import Appliers, bare
from shoal.crdt.dot import DOT_BYTES, Dot, Origin, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, InvalidValue, StoreCorrupt
from shoal.kinds import Kind
from shoal.kinds.label.state import FENCE_MAX
from shoal.records import NamedTuple

SIBLINGS, FENCE, HISTORY, PAST = b"S", b"F", b"H", b"V"
HISTORY_MAX = 16
"""The values in a history. Part of the format: replicas that kept different numbers would have different rows."""
HISTORY_VALUE_BYTES_MAX = 4096
"""The largest value in a history. Part of the format."""
HISTORY_INLINE_BYTES_MAX = 64
"""The largest value in the row of a history. Part of the format: a row of its own costs more than such a value in the other."""
NO_VALUE = ""
"""The version of a register without a value."""

_CONTEXT_VERSION = b"\x01"

Entries = tuple[tuple[Origin, int], ...]


class Assign(msgspec.Struct, array_like=True, frozen=True, tag="assign"):
    """The mutation: assigns a value. A context of None covers everything that the origin had applied."""

    value: bytes
    context: tuple[tuple[bytes, int], ...] | None = None
    key: str | None = None  # Of the request.


class AssignBy(msgspec.Struct, array_like=True, frozen=True, tag="assign-by", gc=False):
    """The mutation: assigns a value as `Assign` does, and notes it in the history."""

    value: bytes
    context: tuple[tuple[bytes, int], ...]
    key: str | None
    by: str  # The author; empty if none was named.


class Swap(msgspec.Struct, array_like=True, frozen=True, tag="swap"):
    """The mutation: assigns a value, or none, under a fencing number. With `by` it is noted in the history."""

    value: bytes | None
    context: tuple[tuple[bytes, int], ...]
    fence: int
    key: str
    by: str | None = None  # As in `AssignBy`; None: the value was there before.


class Fence(NamedTuple):
    """The swap with the greatest number, which may have been replaced since."""

    number: int
    position: bytes


class AssignedValue(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A live sibling, as it is stored."""

    position: bytes
    wall_ms: int
    key: str | None
    value: bytes

    @property
    def dot(self) -> Dot:
        """The operation that assigned it."""
        return Dot.unpack(self.position[8 : 8 + DOT_BYTES])


class NotedValue(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A value in the history, as it is stored."""

    position: bytes
    wall_ms: int
    key: str | None
    by: str
    size: int
    value: bytes  # Empty if it is larger than `HISTORY_VALUE_BYTES_MAX`; in the row, also if it has a row of its own.

    @property
    def has_row(self) -> bool:
        """Whether its value has a row of its own."""
        return HISTORY_INLINE_BYTES_MAX < self.size <= HISTORY_VALUE_BYTES_MAX


class Sibling(NamedTuple):
    """A value of the register, as a reader is shown it."""

    value: bytes
    dot: Dot
    hlc: int
    wall_ms: int
    name: bytes  # The key of the request that made it, or else its position. A request that was sent twice has one name.
    is_swap: bool = False


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[AssignedValue])
_history_decoder = msgspec.msgpack.Decoder(list[NotedValue])
_fence_decoder = msgspec.msgpack.Decoder(tuple[int, bytes])
_position = attrgetter("position")


def apply_by(rows: Rows, stamp: Stamp, assign: AssignBy) -> None:
    """As `apply`, and note the value."""
    apply(rows, stamp, assign)
    _note(rows, stamp, assign.value, assign.key, assign.by)


def apply(rows: Rows, stamp: Stamp, assign: Assign | AssignBy) -> None:
    """Assign the value, and remove the siblings that its context covers."""
    seen = stamp.context if assign.context is None else context_from(assign.context)
    left = [entry for entry in entries(rows) if not _replaces(stamp, seen, entry.dot)]
    left.append(AssignedValue(stamp.pack_position(), stamp.wall_ms, assign.key, assign.value))
    store(rows, left)


def apply_swap(rows: Rows, stamp: Stamp, swap: Swap) -> None:
    """Remove the siblings that its context covers, and assign the value unless a swap of a greater number is known."""
    seen, known, own = context_from(swap.context), fence(rows), Fence(swap.fence, stamp.pack_position())
    left = [entry for entry in entries(rows) if not _replaces(stamp, seen, entry.dot)]
    if own >= known:
        left = [entry for entry in left if entry.position != known.position]
        if swap.value is not None:
            left.append(AssignedValue(own.position, stamp.wall_ms, swap.key, swap.value))
        rows.put(FENCE, _encoder.encode(own))
    store(rows, left)
    if swap.by is not None and swap.value is not None:
        # Also if a greater number is known here: another replica may have got this one first, and keeps the same rows.
        _note(rows, stamp, swap.value, swap.key, swap.by)


def history(rows: Rows) -> list[NotedValue]:
    """The values that were noted last, the latest first. Of a request that was sent twice, the last that was made.

    Raises:
        StoreCorrupt: the row of a value is missing or changed.
    """
    return [replace(noted, value=_past(rows, noted)) if noted.has_row else noted for noted in reversed(_noted(rows))]


def _past(rows: Rows, noted: NotedValue) -> bytes:
    value = rows.get(PAST + noted.position)
    if value is None or len(value) != noted.size:
        raise StoreCorrupt("a value in a register's history is missing or damaged. Nothing was written; run `shoal verify`.")
    return value


def _note(rows: Rows, stamp: Stamp, value: bytes, key: str | None, by: str) -> None:
    inline = value if len(value) <= HISTORY_INLINE_BYTES_MAX else b""
    noted = NotedValue(stamp.pack_position(), stamp.wall_ms, key, by, len(value), inline)
    kept = _noted(rows)
    gone = [each for each in kept if each.key == key] if key is not None else []  # The same request's: at most one.
    if gone and gone[0].position > noted.position:
        return
    if gone:
        kept.remove(gone[0])
    insort(kept, noted, key=_position)
    if len(kept) > HISTORY_MAX:
        gone.append(kept.pop(0))
    if noted.has_row:
        rows.put(PAST + noted.position, value)
    for each in gone:
        if each.has_row:
            rows.delete(PAST + each.position)
    rows.put(HISTORY, _encoder.encode(kept))


def _noted(rows: Rows) -> list[NotedValue]:
    stored = rows.get(HISTORY)
    return [] if stored is None else _history_decoder.decode(stored)


def fence(rows: Rows) -> Fence:
    """The swap with the greatest number; the number is 0 if there is none."""
    stored = rows.get(FENCE)
    return Fence(0, b"") if stored is None else Fence(*_fence_decoder.decode(stored))


def _replaces(stamp: Stamp, seen: VersionVector, dot: Dot) -> bool:
    return dot == stamp.dot or (seen.covers(dot) and stamp.context.bound(dot.origin) >= dot.sequence)


def entries(rows: Rows) -> list[AssignedValue]:
    """All live siblings, by position."""
    stored = rows.get(SIBLINGS)
    return [] if stored is None else _decoder.decode(stored)


def store(rows: Rows, live: list[AssignedValue]) -> None:
    """Write the live siblings, in any order; none removes the row."""
    if live:
        rows.put(SIBLINGS, _encoder.encode(sorted(live, key=_position)))
    else:
        rows.delete(SIBLINGS)


def siblings(rows: Rows) -> list[Sibling]:
    """The values that are shown: that of a swap, then the greatest (HLC, dot) first. The first is the `latest`."""
    live = entries(rows)
    return siblings_of(live, fence(rows).position if len(live) > 1 else b"")


def siblings_of(live: Iterable[AssignedValue], swapped: bytes = b"") -> list[Sibling]:
    """As `siblings`, of the result of `entries`; `swapped` is the position of a swap."""
    shown: dict[bytes, Sibling] = {}
    for entry in live:
        name = entry.position if entry.key is None else entry.key.encode()
        hlc, is_swap = int.from_bytes(entry.position[:8], "big"), entry.position == swapped
        sibling = Sibling(entry.value, entry.dot, hlc, entry.wall_ms, name, is_swap)
        if name not in shown or sibling.dot < shown[name].dot:
            shown[name] = sibling
    return sorted(shown.values(), key=_rank, reverse=True)


def version_of(siblings: Iterable[Sibling]) -> str:
    """32 hex digits, which differ if the values differ; `NO_VALUE` for none."""
    names = sorted(sibling.name for sibling in siblings)
    return sha256(b"".join(len(name).to_bytes(2, "big") + name for name in names)).hexdigest()[:32] if names else NO_VALUE


def context_of(rows: Rows) -> VersionVector:
    """The context of an assign that is based on a read of these rows."""
    return context_in(entries(rows))


def context_in(live: Iterable[AssignedValue]) -> VersionVector:
    """As `context_of`, of the result of `entries`."""
    greatest: dict[Origin, int] = {}
    for entry in live:
        origin, sequence = entry.dot
        if sequence > greatest.get(origin, 0):
            greatest[origin] = sequence
    return VersionVector(greatest)


def clipped(context: VersionVector, applied: VersionVector, live: Iterable[AssignedValue]) -> VersionVector:
    """The part of a context that a replica at `applied` may issue. It had applied the `live` siblings, whoever issued them."""
    if applied.dominates(context):
        return context
    held = context_in(live)
    return VersionVector((o, min(sequence, max(applied[o], held[o]))) for o, sequence in context.items())


def context_entries(context: VersionVector) -> Entries:
    """A context in the form that an `Assign` carries; equal contexts give equal entries."""
    return tuple(context.entries())


def pack_context(context: VersionVector) -> bytes:
    """A context in the form that clients carry: opaque bytes, with a version."""
    return _CONTEXT_VERSION + context.pack()


def unpack_context(packed: bytes) -> VersionVector:
    """The context in bytes from `pack_context`.

    Raises:
        InvalidValue: `packed` was not made by `pack_context`.
    """
    try:
        if packed[:1] != _CONTEXT_VERSION:
            raise ValueError("unknown version")
        return VersionVector.unpack(packed[1:])
    except ValueError:
        raise InvalidValue(
            "the register's context is damaged or from a newer version. Nothing was written. "
            "Read the register again and use the context of that read."
        ) from None


def context_from(context: tuple[tuple[bytes, int], ...]) -> VersionVector:
    """The context in entries from `context_entries`."""
    return VersionVector([(Origin(origin), sequence) for origin, sequence in context])


def _rank(sibling: Sibling) -> tuple[bool, int, Dot]:
    return sibling.is_swap, sibling.hlc, sibling.dot


HIDDEN: dict[int, int] = {}
"""Where content begins in the keys of rows, by their first byte: nowhere."""


def _check_swap(_stamp: Stamp, swap: Swap) -> None:
    if not 0 < swap.fence <= FENCE_MAX:
        raise BadOperation(f"a swap has the fencing number {swap.fence}. Nothing of it was written.", reason="content")


APPLIERS: Appliers = {
    Assign: bare(Kind.REGISTER, apply),
    AssignBy: bare(Kind.REGISTER, apply_by, since=lambda _: 7),
    Swap: bare(Kind.REGISTER, apply_swap, _check_swap, since=lambda _: 7),
}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    entries(rows)
    fence(rows)
    history(rows)
