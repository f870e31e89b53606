"""A replicated JSON Schema: its versions, each of which is put once.

Laws:
- A version's content never changes: if several contents were put concurrently under
  one version, the one with the least dot counts on every replica, and the others can be listed.
- Putting the same content again changes nothing; its least dot is kept.

Rows:
    V version₄ digest₃₂    dot₂₄ nth₂ wall_ms₈ and the content
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from shoal.crdt.applier import Applier, Appliers, Blobs, intact
from shoal.crdt.dot import DOT_BYTES, Dot
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, StoreCorrupt
from shoal.kinds import Kind
from shoal.records import NamedTuple

VERSION = b"V"
VERSION_MAX = 2**31 - 1
_STAMP_BYTES = DOT_BYTES + 2 + 8


class Put(msgspec.Struct, array_like=True, frozen=True, tag="put-schema"):
    """The mutation: puts a version. Its content is stored once, as a row; the log holds this."""

    version: int
    digest: bytes  # SHA-256 of the content.


class Content(msgspec.Struct, array_like=True, frozen=True):
    """A version's schema, and the threads that it binds."""

    json: bytes  # A JSON Schema, as text.
    threads: str = ""  # The threads that must keep it: a name, or a prefix and `*`. Empty: the threads that are saved under it.


class Version(NamedTuple):
    """A version as the schema's history shows it, with the content that counts."""

    version: int
    digest: bytes
    dot: Dot
    wall_ms: int
    content: Content
    rivals: int  # How many other contents were put concurrently. They do not count.


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Content)


def encode(content: Content) -> bytes:
    """The content's packed form, over which its digest is taken."""
    return _encoder.encode(content)


def decode(packed: bytes) -> Content:
    """The content in these bytes.

    Raises:
        StoreCorrupt: these bytes are no content.
    """
    try:
        return _decoder.decode(packed)
    except ValueError as error:
        raise StoreCorrupt(f"a schema cannot be decoded ({error}). Run `shoal verify`.") from None


def apply(rows: Rows, stamp: Stamp, put: Put, content: bytes) -> None:
    """Write the content under its version and digest, unless the same content is there with a lesser dot."""
    key = _key(put)
    at = stamp.dot.pack() + stamp.nth.to_bytes(2, "big")
    stored = rows.get(key)
    if stored is None or at < stored[: len(at)]:
        rows.put(key, at + stamp.wall_ms.to_bytes(8, "big") + content)


def content_of(rows: Rows, put: Put) -> bytes | None:
    """The packed content of a change that was applied; None if it is not there."""
    stored = rows.get(_key(put))
    return None if stored is None else stored[_STAMP_BYTES:]


def versions(rows: Rows) -> list[Version]:
    """All versions, the oldest first.

    Raises:
        StoreCorrupt: a content cannot be decoded.
    """
    found: dict[int, Version] = {}
    least: dict[int, bytes] = {}
    for row, stored in rows.scan(VERSION):
        number, at = int.from_bytes(row[1:5], "big"), stored[: DOT_BYTES + 2]
        before = found.get(number)
        rivals = 0 if before is None else before.rivals + 1
        if before is not None and least[number] < at:
            found[number] = before._replace(rivals=rivals)
            continue
        wall_ms = int.from_bytes(stored[DOT_BYTES + 2 : _STAMP_BYTES], "big")
        dot, content = Dot.unpack(stored[:DOT_BYTES]), decode(stored[_STAMP_BYTES:])
        found[number], least[number] = Version(number, row[5:], dot, wall_ms, content, rivals), at
    return [found[number] for number in sorted(found)]


def _key(put: Put) -> bytes:
    return VERSION + put.version.to_bytes(4, "big") + put.digest


HIDDEN = {ord("V"): 5}
"""Where content begins in the keys of rows, by their first byte: an encrypted store hides it."""


def _apply(rows: Rows, stamp: Stamp, put: Put, attached: Blobs) -> None:
    apply(rows, stamp, put, attached.content)


def _check(_rows: Rows, _stamp: Stamp, put: Put, attached: Blobs) -> Blobs:
    if sha256(attached.content).digest() != put.digest or not 1 <= put.version <= VERSION_MAX:
        raise BadOperation("its schema does not match its hash, or has no version", reason="content")
    try:
        decode(attached.content)
    except StoreCorrupt:
        raise BadOperation("its schema cannot be read", reason="content") from None
    return attached


def _attached_of(rows: Rows, _stamp: Stamp, put: Put) -> Blobs:
    return intact(content_of(rows, put), put.digest, f"version {put.version} of a schema")


APPLIERS: Appliers = {Put: Applier(Kind.SCHEMA, _apply, _check, _attached_of)}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    versions(rows)
