"""The fields of items that are indexed: declared once for all replicas, within the items' own object.

A second engine for indexes beside RocksDB would be a second durable state, to be committed together with the first. As rows
of the object they would have to be equal on all nodes, and be built within the operation that declares them.

Laws (observed-remove, as for items):
- A field is indexed while a declaration of it is live: one that no drop has named. So a
  declaration that a drop has not seen stays, and concurrent declarations all stay until a
  drop that has seen them.
- A declaration changes no item and no answer. Each node builds and keeps its own index
  (`shoal/kinds/items/serving/indexes.py`).

Rows (beside the items'):
    X field      the dots of its live declarations, in order: 24 bytes each
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shoal.crdt.dot import DOT_BYTES, Dot
from shoal.crdt.rows import Rows, Stamp

INDEX = b"X"

Seen = tuple[tuple[bytes, int], ...]
"""The dots of declarations: origin and sequence."""


class Declare(msgspec.Struct, array_like=True, frozen=True, tag="declare-index"):
    """A mutation: index these fields."""

    fields: tuple[str, ...]


class Drop(msgspec.Struct, array_like=True, frozen=True, tag="drop-index"):
    """A mutation: removes declarations of these fields, as far as the issuer had seen them."""

    fields: tuple[tuple[str, Seen], ...]


def apply_declare(rows: Rows, stamp: Stamp, declare: Declare) -> None:
    """Add a live declaration of each field."""
    for field in declare.fields:
        _store(rows, field, {*seen(rows, field), stamp.dot})


def apply_drop(rows: Rows, stamp: Stamp, drop: Drop) -> None:
    """Remove the declarations that the drop names, and those of its own operation before it."""
    for field, named in drop.fields:
        # A declaration of the same operation is removed too: it comes before the drop.
        _store(rows, field, {dot for dot in seen(rows, field) if dot not in named and dot != stamp.dot})


def seen(rows: Rows, field: str) -> tuple[Dot, ...]:
    """The live declarations of a field. A drop that is based on this read names them."""
    packed = rows.get(INDEX + field.encode()) or b""
    return tuple(Dot.unpack(packed[at : at + DOT_BYTES]) for at in range(0, len(packed), DOT_BYTES))


def fields(rows: Rows) -> Iterator[str]:
    """The fields that are indexed, in the order of their bytes."""
    for row, _ in rows.scan(INDEX):
        yield row[1:].decode()


def _store(rows: Rows, field: str, live: set[Dot]) -> None:
    row = INDEX + field.encode()
    if live:
        rows.put(row, b"".join(dot.pack() for dot in sorted(live)))
    elif rows.get(row) is not None:
        rows.delete(row)
