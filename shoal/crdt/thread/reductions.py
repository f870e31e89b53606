"""What reducers made of a journal's events up to some place, so that a replay need not begin at the first.

Laws:
- A snapshot holds exactly the events up to its position that its vector covers. It
  stands for all events up to there as long as no operation that its vector does
  not cover put one there, and none took over a key that was claimed before
  (`claims.contested`), and nothing was trimmed that is not in it: `holds` says so of the first, `usable` of the others.
- Of a reducer the greatest version's are kept: its `SNAPSHOTS_KEPT` greatest
  positions, and at each position the one whose vector covers most.

Rows (within the thread's):
    K 0x01 len₂ reducer version₈ position₃₄      msgpack [vector, rank₂₆, value]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from shoal.crdt.dot import DOT_BYTES, Dot, VersionVector
from shoal.crdt.rows import POSITION_BYTES, Rows, Stamp
from shoal.crdt.thread import claims, trimming
from shoal.crdt.thread.events import EVENT, PLACE_BYTES

REDUCTION = b"K\x01"
SNAPSHOTS_KEPT = 8
VERSION_MAX = 2**63 - 1

_decode = msgspec.msgpack.Decoder(tuple[bytes, bytes, bytes]).decode


class Reduce(msgspec.Struct, array_like=True, frozen=True, tag="snapshot"):
    """The mutation."""

    reducer: str
    version: int
    position: bytes
    vector: bytes  # Packed: of the events up to `position`, those that it covers are in the value.
    value: bytes


class Snapshot(NamedTuple):
    position: bytes
    vector: VersionVector
    value: bytes


def apply(rows: Rows, stamp: Stamp, change: Reduce) -> None:
    prefix = _prefix(change.reducer)
    version = change.version.to_bytes(8, "big")
    stored = [row for row, _ in rows.scan(prefix)]
    if any(row[len(prefix) : len(prefix) + 8] > version for row in stored):
        return
    for row in [row for row in stored if row[len(prefix) : len(prefix) + 8] < version]:
        rows.delete(row)
    mine = prefix + version + change.position
    packed = msgspec.msgpack.encode((change.vector, stamp.pack_position()[8:], change.value))
    earlier = rows.get(mine)
    if earlier is None or _rank(earlier) < _rank(packed):
        rows.put(mine, packed)
    kept = [row for row, _ in rows.scan(prefix + version, reverse=True)]
    for row in kept[SNAPSHOTS_KEPT:]:
        rows.delete(row)


def usable(rows: Rows, reducer: str, version: int, *, until: bytes | None = None) -> Iterator[Snapshot]:
    """The snapshots up to position `until`, the latest first, whose events have kept their places."""
    prefix = _prefix(reducer) + version.to_bytes(8, "big")
    contested, ends = claims.contested(rows), trimming.ends(rows)
    trimmed, last = trimming.covered(ends), max(ends, default=b"")
    for row, stored in rows.scan(prefix, reverse=True):
        position = row[len(prefix) :]
        if until is None or position <= until:
            packed, _, value = _decode(stored)
            vector = VersionVector.unpack(packed)
            if vector.dominates(contested) and vector.dominates(trimmed) and last <= position[:PLACE_BYTES]:
                yield Snapshot(position, vector, value)


def holds(rows: Rows, snapshot: Snapshot, vector: VersionVector, *, floor_hlc: int | None, scan_rows_max: int) -> bool:
    """Whether no event up to its position is missing from it, at a replica at `vector`.

    `floor_hlc`: the least HLC of the operations that `vector` covers and the snapshot's does not; None: not known.
    False also where more than `scan_rows_max` rows would have to be looked at.
    """
    start = EVENT + (b"" if floor_hlc is None else floor_hlc.to_bytes(8, "big"))
    for scanned, (row, _) in enumerate(rows.scan(EVENT, after=start)):
        if row[1:] > snapshot.position:
            return True
        dot = Dot.unpack(row[9 : 9 + DOT_BYTES])
        if scanned == scan_rows_max or (vector.covers(dot) and not snapshot.vector.covers(dot)):
            return False
    return True


def reducers(rows: Rows) -> set[str]:
    found = set()
    for row, _ in rows.scan(REDUCTION):
        start = len(REDUCTION) + 2
        found.add(row[start : start + int.from_bytes(row[start - 2 : start], "big")].decode())
    return found


def _prefix(reducer: str) -> bytes:
    name = reducer.encode()
    return REDUCTION + len(name).to_bytes(2, "big") + name


def _rank(stored: bytes) -> tuple[int, bytes, bytes]:
    packed, rank, _ = _decode(stored)
    return sum(VersionVector.unpack(packed).values()), packed, rank


def check(change: Reduce) -> None:
    """
    Raises:
        ValueError: it is not what a node would have made.
    """
    if len(change.position) != POSITION_BYTES or not 0 <= change.version <= VERSION_MAX:
        raise ValueError("no position, or no version")
    VersionVector.unpack(change.vector)
