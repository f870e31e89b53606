"""Labels: names by which a thread's checkpoints are found.

Laws:
- Of the checkpoints that were saved under a label and not released since, the label
  names the one with the greatest (HLC, id), on every replica.
- A release lists the checkpoints that lose the label; one that was saved under it
  concurrently keeps it. A released checkpoint does not get the label back
  when the same save arrives once more, under another dot.
- Labels are listed in the order of their bytes.

Rows (within the thread's, beside the checkpoints'):
    N label                  the checkpoints that have it, greatest first: hlc₈ id₃₂ each
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shoal.crdt.rows import Rows, Stamp

LABEL = b"N"
_ID_BYTES = 32
_ENTRY_BYTES = 8 + _ID_BYTES


class Release(msgspec.Struct, array_like=True, frozen=True, tag="release"):
    """The mutation: these checkpoints lose the label."""

    label: str
    ids: list[bytes]


class LabelEntry(msgspec.Struct, frozen=True, order=True):
    """A checkpoint that has a label, and the HLC of its save."""

    hlc: int
    id: bytes


def name(rows: Rows, label: str, entry: LabelEntry, *, first: bool) -> None:
    """Record that a checkpoint was saved under a label. One saved again only renews its HLC, if it still has the label."""
    before = entries(rows, label)
    if not before:  # Most labels are new.
        if first:
            _put(rows, label, [entry])
        return
    kept = [other for other in before if other.id != entry.id]
    if first or len(kept) < len(before):
        _put(rows, label, [*kept, entry])


def apply(rows: Rows, _stamp: Stamp, release: Release) -> None:
    """Take the label from these checkpoints."""
    before = entries(rows, release.label)
    kept = [entry for entry in before if entry.id not in release.ids]
    if len(kept) < len(before):
        _put(rows, release.label, kept)


def entries(rows: Rows, label: str) -> list[LabelEntry]:
    """The checkpoints that have this label, the greatest (HLC, id) first; the label names the first."""
    packed = rows.get(LABEL + label.encode())
    return _unpack(packed) if packed else []


def listed(
    rows: Rows, prefix: str, *, after: str | None = None, reverse: bool = False, limit: int | None = None
) -> Iterator[tuple[str, bytes]]:
    """The labels that begin with `prefix`, each with the id that it names. `after` is exclusive, in the listing's direction."""
    start = None if after is None else LABEL + after.encode()
    for key, packed in rows.scan(LABEL + prefix.encode(), after=start, reverse=reverse, limit=limit):
        yield key[1:].decode(), packed[8:_ENTRY_BYTES]


def _put(rows: Rows, label: str, kept: list[LabelEntry]) -> None:
    key = LABEL + label.encode()
    if not kept:
        rows.delete(key)
        return
    if len(kept) > 1:
        kept.sort(reverse=True)
    rows.put(key, b"".join([entry.hlc.to_bytes(8, "big") + entry.id for entry in kept]))


def _unpack(packed: bytes) -> list[LabelEntry]:
    return [
        LabelEntry(int.from_bytes(packed[at : at + 8], "big"), packed[at + 8 : at + _ENTRY_BYTES])
        for at in range(0, len(packed), _ENTRY_BYTES)
    ]
