"""A thread's checkpoints: a DAG of immutable records, and the heads of its branches.

Laws:
- A checkpoint's id is a hash over its parents, branch, schema, metadata, channel
  contents and a nonce (the request's key, or else its operation's dot), so that a
  retry elsewhere makes the same checkpoint.
- The heads of a branch are the checkpoints saved on it that no other checkpoint
  saved on it has as a parent: a function of the set of saves, so their order
  does not matter. More than one head is a fork; none is ever dropped.
- Of two operations that save one id, the least dot's record counts everywhere.

Rows:
    C id₃₂                dot₂₄ hlc₈ wall_ms₈ and the record
    B branch              the heads, greatest (HLC, id) first: hlc₈ id₃₂ each
    D digest₃₂            a chunk
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import NamedTuple

import msgspec

from shoal.crdt.channel import Recipe
from shoal.crdt.dot import DOT_BYTES, Dot
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import StoreCorrupt

CHECKPOINT, BRANCH, CHUNK = b"C", b"B", b"D"
ID_BYTES = 32
_STAMP_BYTES = DOT_BYTES + 16
_HEAD_BYTES = 8 + ID_BYTES


class Save(msgspec.Struct, array_like=True, frozen=True, tag="save"):
    """The mutation. Its record and new chunks are stored once, as rows; the log holds this."""

    id: bytes
    record: bytes  # SHA-256 of the record.


class Record(msgspec.Struct, array_like=True, frozen=True):
    """What a checkpoint is, but for its channels' chunks."""

    parents: list[bytes]
    branch: str
    schema: str
    schema_version: int
    metadata: bytes
    nonce: bytes
    channels: dict[str, Recipe]
    author: str = ""
    label: str = ""
    setting: bytes = b""  # Packed map: what the author ran with.
    seen: bytes = b""  # Packed bookmark: what the author had read.


class Head(NamedTuple):
    hlc: int
    id: bytes


class Checkpoint(NamedTuple):
    id: bytes
    dot: Dot
    hlc: int
    wall_ms: int
    record: Record


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def decode_record(packed: bytes) -> Record:
    """
    Raises:
        StoreCorrupt: these bytes are no record.
    """
    try:
        return _decoder.decode(packed)
    except ValueError as error:  # msgspec's own are ValueErrors, and so are those of text that is no UTF-8.
        raise StoreCorrupt(f"a checkpoint cannot be decoded ({error}). Run `shoal verify`.") from None


def encode_record(record: Record) -> bytes:
    return _encoder.encode(record)


def identify(record: Record) -> bytes:
    """The checkpoint's id. Recipes do not count, what they describe does."""
    channels = record.channels.items()
    # A tiny value stands for itself, any other by its hash; they are told apart.
    contents = sorted([(name, recipe.hash, b"" if recipe.hash else recipe.header + recipe.inline) for name, recipe in channels])
    schema = record.schema, record.schema_version
    author = record.author, record.label, record.setting, record.seen
    return sha256(
        _encoder.encode((record.parents, record.branch, schema, record.metadata, record.nonce, contents, author))
    ).digest()


def apply(
    rows: Rows, stamp: Stamp, save: Save, /, *, record: bytes, chunks: Mapping[bytes, bytes], decoded: Record | None = None
) -> list[Head]:
    """Apply a save, and return the heads of its branch.

    `chunks` holds those that the record is the first to use; `decoded` is the record, for who has it.
    """
    key = CHECKPOINT + save.id
    stored = rows.get(key)
    decoded = decoded or decode_record(record)
    for digest, piece in chunks.items():
        rows.put(CHUNK + digest, piece)
    if stored is None or stamp.dot < Dot.unpack(stored[:DOT_BYTES]):
        rows.put(key, stamp.dot.pack() + stamp.hlc.to_bytes(8, "big") + stamp.wall_ms.to_bytes(8, "big") + record)
        return _move_heads(rows, decoded, Head(stamp.hlc, save.id), first=stored is None)
    return heads(rows, decoded.branch)


def _move_heads(rows: Rows, record: Record, head: Head, *, first: bool) -> list[Head]:
    """A new checkpoint takes its parents' place; one saved again only renews its HLC, if it is still a head."""
    key = BRANCH + record.branch.encode()
    before = _unpack_heads(rows.get(key) or b"")
    kept = [other for other in before if other.id != head.id and other.id not in record.parents]
    if first or any(other.id == head.id for other in before):
        kept.append(head)
    if len(kept) > 1:
        kept.sort(reverse=True)
    rows.put(key, b"".join([other.hlc.to_bytes(8, "big") + other.id for other in kept]))
    return kept


def heads(rows: Rows, branch: str) -> list[Head]:
    """The heads of a branch, the winner first; empty if there is no such branch."""
    return _unpack_heads(rows.get(BRANCH + branch.encode()) or b"")


def branches(rows: Rows, limit: int) -> dict[str, list[Head]]:
    """The first `limit` branches by name."""
    return {key[1:].decode(): _unpack_heads(packed) for key, packed in rows.scan(BRANCH, limit=limit)}


def _unpack_heads(packed: bytes) -> list[Head]:
    return [
        Head(int.from_bytes(packed[at : at + 8], "big"), packed[at + 8 : at + _HEAD_BYTES])
        for at in range(0, len(packed), _HEAD_BYTES)
    ]


def checkpoint(rows: Rows, id: bytes) -> Checkpoint | None:
    """
    Raises:
        StoreCorrupt: it cannot be decoded.
    """
    stored = rows.get(CHECKPOINT + id)
    if stored is None:
        return None
    return Checkpoint(
        id,
        Dot.unpack(stored[:DOT_BYTES]),
        int.from_bytes(stored[DOT_BYTES : DOT_BYTES + 8], "big"),
        int.from_bytes(stored[DOT_BYTES + 8 : _STAMP_BYTES], "big"),
        decode_record(stored[_STAMP_BYTES:]),
    )


def packed_record(rows: Rows, id: bytes) -> bytes | None:
    """The record as it was stored: what a replica sends on."""
    stored = rows.get(CHECKPOINT + id)
    return None if stored is None else stored[_STAMP_BYTES:]


def chunk(rows: Rows, digest: bytes) -> bytes | None:
    return rows.get(CHUNK + digest)


def ancestry(rows: Rows, start: bytes) -> Iterator[Checkpoint]:
    """`start` and what it descends from, newest first, along first parents; ends where a parent is not stored."""
    id: bytes | None = start
    while id is not None and (found := checkpoint(rows, id)) is not None:
        yield found
        id = found.record.parents[0] if found.record.parents else None
