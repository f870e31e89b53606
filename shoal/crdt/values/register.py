"""A register: the values that were assigned concurrently, none of them lost.

Laws (dotted version vectors, Preguiça et al. 2010):
- An assign drops the siblings that its context covers, and those that its own
  operation assigned before; every other sibling stays beside it. Time decides
  nothing: it only orders the siblings that causality leaves.
- A context is clipped to what the assign's origin had applied, when it is issued
  (`clipped`). Causal delivery then has brought, to every replica, all that the context covers before the
  assign itself; so no sibling can arrive after the assign that replaces it, and
  the live siblings are all the state there is. Where a client read more than
  the origin had applied, the clip keeps a sibling that the client saw: one too
  many, never one too few.
- What a reader has seen is, per origin, the greatest sequence among the live
  siblings. That covers each of them. It covers other assigns of those origins
  too, but only earlier ones; the replica had applied them (its vector is
  contiguous), so they are siblings it showed, or already replaced by something
  that is, directly or not, in a shown sibling's past. Origins without a live
  sibling need no entry for the same reason. The partition's whole vector would
  do as well, and would make every context as long as the list of origins.

- Of the live siblings that one request made, sent again to another node, the least
  dot's is shown. The others stay in the row, so that order does not matter.

Redelivery is kept out by the replica's vector. The number of siblings is
bounded by the node, before it issues an assign: `apply` is total.

Rows:
    S                            msgpack [[position₃₄, wall_ms, key, value], …] of the live siblings, by position

One row, for a row each would leave a tombstone in storage at every assign, and a key
that is written often would be read through all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from operator import attrgetter
from typing import NamedTuple

import msgspec

from shoal.crdt.dot import DOT_BYTES, Dot, Origin, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import InvalidValue

SIBLINGS = b"S"
NO_VALUE = ""
"""As a version: the register has no value."""

_CONTEXT_VERSION = b"\x01"

Entries = tuple[tuple[Origin, int], ...]


class Assign(msgspec.Struct, array_like=True, frozen=True, tag="assign"):
    """The mutation. A context of None covers all that the origin had applied."""

    value: bytes
    context: tuple[tuple[bytes, int], ...] | None = None
    key: str | None = None  # Of the request.


class AssignedValue(msgspec.Struct, array_like=True, frozen=True):
    """What one assign left."""

    position: bytes
    wall_ms: int
    key: str | None
    value: bytes

    @property
    def dot(self) -> Dot:
        return Dot.unpack(self.position[8 : 8 + DOT_BYTES])


class Sibling(NamedTuple):
    value: bytes
    dot: Dot
    hlc: int
    wall_ms: int
    name: bytes  # The key of the request that made it, or else its position: the same, however often the request was sent.


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[AssignedValue])
_position = attrgetter("position")


def apply(rows: Rows, stamp: Stamp, assign: Assign) -> None:
    seen = stamp.context if assign.context is None else context_from(assign.context)
    left = [entry for entry in entries(rows) if not _replaces(stamp, seen, entry.dot)]
    left.append(AssignedValue(stamp.pack_position(), stamp.wall_ms, assign.key, assign.value))
    store(rows, left)


def _replaces(stamp: Stamp, seen: VersionVector, dot: Dot) -> bool:
    return dot == stamp.dot or (seen.covers(dot) and stamp.context.covers(dot))


def entries(rows: Rows) -> list[AssignedValue]:
    """All that are live, by position."""
    stored = rows.get(SIBLINGS)
    return [] if stored is None else _decoder.decode(stored)


def store(rows: Rows, live: list[AssignedValue]) -> None:
    if live:
        rows.put(SIBLINGS, _encoder.encode(sorted(live, key=_position)))
    else:
        rows.delete(SIBLINGS)


def siblings(rows: Rows) -> list[Sibling]:
    """The live values, greatest (HLC, dot) first: the first is the `latest`."""
    return siblings_of(entries(rows))


def siblings_of(live: Iterable[AssignedValue]) -> list[Sibling]:
    """As `siblings`, of what `entries` returned."""
    shown: dict[bytes, Sibling] = {}
    for entry in live:
        name = entry.position if entry.key is None else entry.key.encode()
        sibling = Sibling(entry.value, entry.dot, int.from_bytes(entry.position[:8], "big"), entry.wall_ms, name)
        if name not in shown or sibling.dot < shown[name].dot:
            shown[name] = sibling
    return sorted(shown.values(), key=_time, reverse=True)


def version_of(siblings: Iterable[Sibling]) -> str:
    """32 hex digits: another one for other values; "" where there is none."""
    names = sorted(sibling.name for sibling in siblings)
    return sha256(b"".join(len(name).to_bytes(2, "big") + name for name in names)).hexdigest()[:32] if names else NO_VALUE


def context_of(rows: Rows) -> VersionVector:
    """What a reader of these rows has seen: the context of an assign based on this read."""
    return context_in(entries(rows))


def context_in(live: Iterable[AssignedValue]) -> VersionVector:
    """As `context_of`, of what `entries` returned."""
    greatest: dict[Origin, int] = {}
    for entry in live:
        origin, sequence = entry.dot
        if sequence > greatest.get(origin, 0):
            greatest[origin] = sequence
    return VersionVector(greatest)


def clipped(context: VersionVector, applied: VersionVector) -> VersionVector:
    """A context as it may be issued by a replica at `applied`."""
    if applied.dominates(context):
        return context
    return VersionVector((origin, min(sequence, applied[origin])) for origin, sequence in context.items())


def context_entries(context: VersionVector) -> Entries:
    """A context as an `Assign` carries it; equal contexts give equal entries."""
    return tuple(context.entries())


def pack_context(context: VersionVector) -> bytes:
    """A context as clients carry it: opaque bytes, with a version."""
    return _CONTEXT_VERSION + context.pack()


def unpack_context(packed: bytes) -> VersionVector:
    """
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
    """What `context_entries` made entries of."""
    return VersionVector([(Origin(origin), sequence) for origin, sequence in context])


def _time(sibling: Sibling) -> tuple[int, Dot]:
    return sibling.hlc, sibling.dot
