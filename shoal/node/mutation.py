"""Mutations: which change to which object, and how each kind of change is applied.

Law: `apply` is the only way into an object's rows, for operations issued here,
received from a peer, or folded again from the log. A change names its larger
bytes by hash; they travel beside it (`Attached`), are stored once, as rows, and
`attached_of` finds them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import NamedTuple, assert_never

import msgspec

from shoal.crdt import channel, counter, document, journal, lineage, register, yjs
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, ShoalError, StoreCorrupt

Change = lineage.Save | journal.Append | document.Update | counter.Add | register.Assign


class Mutation(msgspec.Struct, array_like=True, frozen=True):
    kind: int
    space: str
    name: str
    change: Change


class Attached(NamedTuple):
    """The bytes beside a change: a record, an event or an update; and a checkpoint's new chunks."""

    content: bytes = b""
    chunks: Mapping[bytes, bytes] = {}


NOTHING = Attached()

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Mutation])
_attached_decoder = msgspec.msgpack.Decoder(list[tuple[bytes, list[bytes]]])


def encode(mutations: list[Mutation]) -> bytes:
    return _encoder.encode(mutations)


def decode(payload: bytes) -> list[Mutation]:
    """
    Raises:
        StoreCorrupt: the payload of a stored operation cannot be read.
    """
    try:
        return _decoder.decode(payload)
    except ValueError as error:  # msgspec's own are ValueErrors, and so are those of text that is no UTF-8.
        raise StoreCorrupt(f"an operation in the log cannot be decoded ({error}). Run `shoal verify`.") from None


# No key of a user's has a control character in it.
_IMPLIED = "\x00"


def implied_key(request_key: str | None, nth: int) -> str | None:
    """The data type's own key for the `nth` mutation of a request that has a key and whose mutation has none.

    Idempotency belongs to the data type: where one request went to two nodes, and
    made two operations, the one with the least dot counts.
    """
    return None if request_key is None else f"{_IMPLIED}{nth}{_IMPLIED}{request_key}"


def users_key(key: str | None) -> str | None:
    """A key as the user knows it."""
    return None if key is None or key.startswith(_IMPLIED) else key


def apply(rows: Rows, stamp: Stamp, change: Change, attached: Attached) -> None:
    match change:
        case lineage.Save():
            lineage.apply(rows, stamp, change, record=attached.content, chunks=attached.chunks)
        case journal.Append():
            journal.apply(rows, stamp, change, attached.content)
        case document.Update():
            document.apply(rows, stamp, change, attached.content)
        case counter.Add():
            counter.apply(rows, stamp, change)
        case register.Assign():
            register.apply(rows, stamp, change)
        case _:
            assert_never(change)


def attached_of(rows: Rows, stamp: Stamp, change: Change) -> Attached:
    """What travelled beside a change that was applied to `rows`.

    Raises:
        StoreCorrupt: a row that must be there is not, or does not hold what the log names by its hash.
    """
    match change:
        case lineage.Save():
            return _record_of(rows, stamp, change)
        case journal.Append():
            return _event_of(rows, stamp, change)
        case document.Update():
            return Attached(document.payload_of(rows, stamp, change))
        case counter.Add() | register.Assign():
            return NOTHING
        case _:
            assert_never(change)


def pack_attached(attached: Iterable[Attached]) -> bytes:
    """What goes beside an operation: per mutation its content, and its chunks without their hashes."""
    return _encoder.encode([(beside.content, list(beside.chunks.values())) for beside in attached])


def unpack_attached(packed: bytes) -> list[Attached]:
    """Chunks are found under the hashes that they have.

    Raises:
        BadOperation: these bytes are nothing that `pack_attached` made.
    """
    try:
        unpacked = _attached_decoder.decode(packed)
    except ValueError as error:  # msgspec's own are ValueErrors too.
        raise BadOperation(f"what came beside it cannot be read ({error})", reason="content") from None
    return [Attached(content, {sha256(piece).digest(): piece for piece in chunks}) for content, chunks in unpacked]


def receive(rows: Rows, stamp: Stamp, change: Change, attached: Attached) -> None:
    """Apply another node's change, once what came beside it is what the change names.

    Raises:
        BadOperation: it is not, or some of it is missing.
    """
    match change:
        case lineage.Save():
            record = _checked_record(rows, change, attached)
            lineage.apply(rows, stamp, change, record=attached.content, chunks=attached.chunks, decoded=record)
        case journal.Append():
            if sha256(attached.content).digest() != change.digest:
                raise BadOperation("its event does not match its hash", reason="content")
            apply(rows, stamp, change, attached)
        case _:
            apply(rows, stamp, change, attached)


def check_update(change: document.Update, attached: Attached) -> None:
    """
    Raises:
        BadOperation: what came beside a document's change is not the update that it names, or is none.
    """
    if sha256(attached.content).digest() != change.digest:
        raise BadOperation("its update does not match its hash", reason="content")
    try:
        yjs.parse(attached.content)
    except ShoalError as error:
        raise BadOperation(error.message, reason="content") from None


def _checked_record(rows: Rows, change: lineage.Save, attached: Attached) -> lineage.Record:
    record = lineage.decode_record(attached.content)
    if lineage.identify(record) != change.id:
        raise BadOperation("its checkpoint does not match its id", reason="content")
    named = {digest for recipe in record.channels.values() for digest in recipe.chunks}
    for digest in sorted(attached.chunks.keys() - named):
        raise BadOperation(f"chunk {digest.hex()} came with it, and its checkpoint names no such chunk", reason="content")
    for digest in sorted(named - attached.chunks.keys()):
        if lineage.chunk(rows, digest) is None:
            raise BadOperation(f"chunk {digest.hex()} of its checkpoint is missing", reason="content")
    if sha256(attached.content).digest() != change.record:
        # Of two operations that saved one id a node keeps the least dot's record, and sends that with both.
        _check_record(rows, change, attached.content)
    return record


def _check_record(rows: Rows, change: lineage.Save, packed: bytes) -> None:
    """A record that is not the one which a change names must be one of the same checkpoint all the same.

    Its id covers what its recipes make, and not how: they have to make it.
    """
    record = lineage.decode_record(packed)
    if lineage.identify(record) != change.id or lineage.encode_record(record) != packed:
        raise BadOperation("its checkpoint does not match its id, or is not encoded as any node does", reason="content")
    for name, recipe in record.channels.items():

        def of_base(base: bytes, name: str = name) -> channel.Recipe | None:
            found = lineage.checkpoint(rows, base)
            return None if found is None else found.record.channels.get(name)

        if not channel.is_sound(recipe, of_base):
            raise BadOperation(f"channel {name!r} of its checkpoint does not match its hash", reason="content")


def _event_of(rows: Rows, stamp: Stamp, change: journal.Append) -> Attached:
    payload = journal.payload_of(rows, stamp, change)
    if sha256(payload).digest() != change.digest:
        raise StoreCorrupt(f"event {stamp.pack_position().hex()} is damaged. Run `shoal verify`.")
    return Attached(payload)


def _record_of(rows: Rows, stamp: Stamp, change: lineage.Save) -> Attached:
    found, packed = lineage.checkpoint(rows, change.id), lineage.packed_record(rows, change.id)
    if found is None or packed is None:
        raise StoreCorrupt(f"checkpoint {change.id.hex()} is in the log and not in its thread. Run `shoal verify`.")
    # Where two operations saved one id, the record that is kept is the least dot's, and may describe it otherwise;
    # a peer that held both has sent it with either, and the one that it belongs to may still be on its way.
    if found.dot == stamp.dot and sha256(packed).digest() != change.record:
        try:
            _check_record(rows, change, packed)
        except ShoalError:
            raise StoreCorrupt(f"checkpoint {change.id.hex()} is damaged. Run `shoal verify`.") from None
    chunks: dict[bytes, bytes] = {}
    for recipe in found.record.channels.values():
        for digest in recipe.chunks:
            piece = lineage.chunk(rows, digest)
            if piece is None:
                raise StoreCorrupt(f"chunk {digest.hex()} of checkpoint {change.id.hex()} is missing. Run `shoal verify`.")
            chunks[digest] = piece
    return Attached(packed, chunks)
