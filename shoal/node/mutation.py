"""Mutations, each a change to one object, and the table that says how each kind of change is applied.

Law: only `apply` writes an object's rows, for operations issued here (`WriteContext.apply`),
received from a peer, or folded again from the log. A change names its larger bytes by
hash; they travel beside it (`Blobs`), are stored once, as rows, and `attached_of` reads
them from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.cluster.operation import PARTS_MAX, Body, is_beyond, measuring
from shoal.crdt import deletion
from shoal.crdt.applier import NO_EFFECTS, NOTHING, Applier, Appliers, Blobs, Effects, Sweep, What, bare
from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, StoreCorrupt
from shoal.kinds import CHANGES, Kind, declared
from shoal.kinds.document.state.document import Pace
from shoal.node.turns import Steps
from shoal.protocol.requests import Edit

APPLIERS: Appliers = {
    deletion.Delete: bare(Kind.THREAD, deletion.apply, effects=Effects(ends=True, sweeps=Sweep(What.GENERATION)))._replace(
        others=frozenset(Kind) - {Kind.THREAD}
    )
}


_APPLIERS: Appliers = {change: applier for _, found in declared("APPLIERS", *CHANGES) for change, applier in found.items()}
_APPLIERS |= APPLIERS

if TYPE_CHECKING:
    Change = msgspec.Struct
else:
    Change = reduce(or_, _APPLIERS)  # What a payload may contain.

EFFECTS: Mapping[type, Effects] = {
    kind: applier.effects for kind, applier in _APPLIERS.items() if applier.effects is not NO_EFFECTS
}


CHANGES_MAX = 4096  # Of one operation: as many as the largest batch has writes.
ELEMENTS_MAX = 16_384  # Of all its changes: as many as the parts of a request have together.
IMPORTS_SINCE = 7  # The version of the peer protocol that brought mutations with a time of their own.


def since(change: Change) -> int:
    """The version of the peer protocol that brought this change, if it is younger than the oldest one spoken here; else 0.

    A node that speaks an older version cannot apply it, so it is not issued while one is among the peers.
    """
    found = _APPLIERS[type(change)].since
    return 0 if found is None else found(change)


class Mutation(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A change to an object: one element of an operation's payload, which is on disk and on the wire."""

    kind: int
    space: str
    name: str
    change: Change
    generation: int = 0  # Of the object: the current one at the issuer.


class FencedMutation(Mutation, array_like=True, frozen=True, gc=False):
    """A mutation that was made under a lease."""

    fence: int = 0  # Its fencing number; 0: it was made without a lease.


class ImportedMutation(FencedMutation, array_like=True, frozen=True, gc=False):
    """A mutation that was made elsewhere before, and imported."""

    time_ms: int = 0  # When it was made; 0: with its operation.

    def stamp(self, dot: Dot, body: Body, context: VersionVector, nth: int) -> Stamp:
        """Its stamp, as the `nth` mutation of the operation with this body."""
        return Stamp(dot, body.hlc, self.time_ms or body.wall_ms, context, nth)


_encoder = msgspec.msgpack.Encoder()


@cache
def _decoder() -> msgspec.msgpack.Decoder[list[ImportedMutation]]:
    """Made at the first use: it takes milliseconds, and many stores are opened only to write."""
    return msgspec.msgpack.Decoder(list[ImportedMutation])


def encode(mutations: Sequence[Mutation]) -> bytes:
    """The payload of an operation."""
    return _encoder.encode(mutations)


def decode(payload: bytes) -> Sequence[ImportedMutation]:
    """The mutations of an operation's payload.

    Raises:
        StoreCorrupt: the payload of a stored operation cannot be read.
    """
    try:
        return _decoder().decode(payload)
    except ValueError as error:  # msgspec's errors are ValueErrors, and so are those of text that is not UTF-8.
        raise StoreCorrupt(f"an operation in the log cannot be decoded ({error}). Run `shoal verify`.") from None


def decode_sent(payload: bytes) -> Sequence[ImportedMutation]:
    """The mutations of a payload that a peer sent.

    Raises:
        BadOperation: it cannot be read, or holds more than any that is issued.
    """
    if is_beyond(payload):
        raise _too_many()
    return _decode_counted(payload)


def decoding_sent(payload: bytes) -> Steps[Sequence[ImportedMutation]]:
    """As `decode_sent`, in steps."""
    if (yield from measuring(payload)):
        raise _too_many()
    return _decode_counted(payload)


def _too_many() -> BadOperation:
    return BadOperation(f"its changes hold more than {PARTS_MAX} values", reason="content")


def _decode_counted(payload: bytes) -> Sequence[ImportedMutation]:
    try:
        changes = decode(payload)
    except StoreCorrupt:  # It speaks of this node's log.
        raise BadOperation("its changes cannot be decoded", reason="content") from None
    if (len(payload) > ELEMENTS_MAX or len(changes) > CHANGES_MAX) and are_beyond(changes, payload):
        raise BadOperation(f"it has more than {CHANGES_MAX} changes, or {ELEMENTS_MAX} elements in them", reason="content")
    return changes


def are_beyond(changes: Sequence[Mutation], payload: bytes) -> bool:
    """Whether these changes, in the payload that holds them, are more, or have more elements, than any operation's."""
    if len(changes) > CHANGES_MAX:
        return True
    # Each element has a byte at least.
    return len(payload) > ELEMENTS_MAX and sum(elements(change.change) for change in changes) > ELEMENTS_MAX


def elements(change: Change) -> int:
    """The elements of a change's lists."""
    fields = (getattr(change, name) for name in change.__struct_fields__)
    return sum(len(field) for field in fields if isinstance(field, tuple | list))


def applier_of(change: Change) -> Applier:
    """How this kind of change is applied, checked and sent, for a caller that needs several of the functions below."""
    return _APPLIERS[type(change)]


def effects_of(change: Change) -> Effects | None:
    """The effects of a change beside its object's rows; None for most changes, which have none."""
    return EFFECTS.get(type(change))


def ends(change: Change) -> bool:
    """Whether it ends its object's generation."""
    return (effects := EFFECTS.get(type(change))) is not None and effects.ends


def edit_of(change: Change, attached: Blobs) -> Edit | None:
    """The push to followers of a document; None: it edits none."""
    edited: Any = change
    return Edit(attached.content, edited.kinds, edited.authors) if _APPLIERS[type(change)].edits else None


def vetting(change: Change, attached: Blobs, pace: Pace) -> Steps[None] | None:
    """The steps that do beforehand what takes long in the check of a change; None: nothing does."""
    vet = _APPLIERS[type(change)].vet
    return None if vet is None else vet(change, attached, pace)


def names_content(change: Change) -> bool:
    """Whether it names blobs, which travel beside it."""
    return _APPLIERS[type(change)].names_content


def id_of(name: str, stamp: Stamp, change: Change) -> str:
    """The checkpoint, event, entry, key or item of the object that a change is about, for watchers; empty: the object."""
    return _APPLIERS[type(change)].id_of(name, stamp, change)


def apply(rows: Rows, stamp: Stamp, change: Change, attached: Blobs = NOTHING) -> Any:
    """Apply a valid change; the result is for the handler that issues it."""
    return _APPLIERS[type(change)].apply(rows, stamp, change, attached)


def check(rows: Rows, stamp: Stamp, change: Change, attached: Blobs) -> Blobs:
    """Check a change from another node before it is applied; returns the blobs to apply it with.

    Raises:
        BadOperation: the change or its blobs are not valid, or some blobs are missing.
    """
    return _APPLIERS[type(change)].check(rows, stamp, change, attached)


def attached_of(rows: Rows, stamp: Stamp, change: Change) -> Blobs:
    """The blobs of a change that was applied to `rows`; `ERASED` if they were swept.

    Raises:
        StoreCorrupt: a row is missing, or does not match its hash in the log.
    """
    return _APPLIERS[type(change)].attached_of(rows, stamp, change)
