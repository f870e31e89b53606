"""Changes of replicated schemas."""

from __future__ import annotations

from hashlib import sha256

from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, StoreCorrupt
from shoal.kinds.schema import state as schema
from shoal.node.appliers.applier import Applier, Appliers
from shoal.node.transaction import Blobs
from shoal.storage.keys import Kind


def _apply(rows: Rows, stamp: Stamp, change: schema.Put, attached: Blobs) -> None:
    schema.apply(rows, stamp, change, attached.content)


def _check(_rows: Rows, _stamp: Stamp, change: schema.Put, attached: Blobs) -> Blobs:
    if sha256(attached.content).digest() != change.digest or not 1 <= change.version <= schema.VERSION_MAX:
        raise BadOperation("its schema does not match its hash, or has no version", reason="content")
    try:
        schema.decode(attached.content)
    except StoreCorrupt:
        raise BadOperation("its schema cannot be read", reason="content") from None
    return attached


def _content_of(rows: Rows, _stamp: Stamp, change: schema.Put) -> Blobs:
    content = schema.content_of(rows, change)
    if content is None or sha256(content).digest() != change.digest:
        raise StoreCorrupt(f"version {change.version} of a schema is missing or damaged. Run `shoal verify`.")
    return Blobs(content)


APPLIERS: Appliers = {schema.Put: Applier(Kind.SCHEMA, _apply, _check, _content_of)}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    schema.versions(rows)
