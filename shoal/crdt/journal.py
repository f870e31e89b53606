"""A thread's journal: an append-only log of events, in one order everywhere.

Laws:
- Events are ordered by position: (HLC, dot, nth), a causal order.
- Of the appends with one key, the one with the least (dot, nth) is the event,
  on every replica, in whatever order they arrive; its position is the event's.
- Another payload under the same key stays visible: per key and digest the least
  (dot, nth) that claims it is kept, with its payload. Equal payloads are one
  claim, so that a retry leaves nothing but the event; and so the payload of
  every append that was ever applied can be found again.

- A reader gets each event that its cursor does not cover, in order; one that
  sorts before what it already got is marked `late`. Reading goes in sweeps: each
  has a target, the replica's vector when it began, returns what the target covers
  and the cursor does not, and only at its end does the cursor adopt the target.
  So a page that was cut claims nothing that it did not deliver, and what arrives
  behind a sweep's back is found by the next. An event that a lesser dot takes
  over later is delivered again, at its new position.

Rows (within the thread's, beside the lineage's):
    E position₃₄                       wall_ms₈ keylength₂ key payload: an event
    Q key                              position₃₄ digest₃₂: the claim that is the event
    X keylength₂ key digest₃₂          position₃₄ wall_ms₈ payload: a claim that is not
    Q                                  vector: of keys that were claimed more than once, the claims' dots
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from shoal.crdt.dot import DOT_BYTES, Dot, VersionVector
from shoal.crdt.rows import POSITION_BYTES, Rows, Stamp
from shoal.errors import InvalidValue, StoreCorrupt

EVENT, KEY, CONFLICT = b"E", b"Q", b"X"
SCAN_ROWS_MAX = 20_000  # Looked at for one page, so that a reader far behind does not hold up the others.
_HLC_BYTES = 8

_CURSOR_VERSION = 1
_decode_cursor = msgspec.msgpack.Decoder(tuple[int, bytes, bytes, bytes, bytes]).decode


class Append(msgspec.Struct, array_like=True, frozen=True, tag="append"):
    """The mutation. Its payload is stored once, as a row; the log holds this."""

    digest: bytes  # SHA-256 of the payload.
    key: str | None = None


class Event(NamedTuple):
    position: bytes
    key: str | None
    wall_ms: int
    payload: bytes
    late: bool = False  # To the reader: it sorts before events that were delivered already.


class Entry(NamedTuple):
    """What a key stands for."""

    position: bytes
    digest: bytes


class Conflict(NamedTuple):
    """An append that is no event, for another payload is the event of its key."""

    key: str
    position: bytes
    wall_ms: int
    payload: bytes


class Sweep(NamedTuple):
    """A pass over the events that is under way."""

    target: VersionVector
    after: bytes  # The last position that was looked at.


class Cursor(NamedTuple):
    """What a reader has got: all events that `vector` covers, and of a sweep those up to its position."""

    vector: VersionVector = VersionVector()
    greatest: bytes = b""  # Position delivered so far.
    sweep: Sweep | None = None

    def pack(self) -> bytes:
        target, after = self.sweep or (VersionVector(), b"")
        return msgspec.msgpack.encode((_CURSOR_VERSION, self.vector.pack(), self.greatest, target.pack(), after))

    @classmethod
    def unpack(cls, packed: bytes) -> Cursor:
        """No bytes are the cursor of a reader that has got nothing.

        Raises:
            InvalidValue: `packed` was not made by `pack`.
        """
        if not packed:
            return cls()
        try:
            version, vector, greatest, target, after = _decode_cursor(packed)
            if version != _CURSOR_VERSION or not {len(greatest), len(after)} <= {0, POSITION_BYTES}:
                raise ValueError("unknown version, or no position")
            sweep = Sweep(VersionVector.unpack(target), after) if after else None
            return cls(VersionVector.unpack(vector), greatest, sweep)
        except (ValueError, TypeError):  # msgspec's errors are ValueErrors too.
            raise InvalidValue(
                "the journal cursor is damaged, or of a newer version. Nothing was written. "
                "Use a cursor exactly as it was returned, or none to read from the start."
            ) from None


class Page(NamedTuple):
    events: list[Event]
    cursor: Cursor
    more: bool  # Ask again with `cursor`; a page may be empty and yet not the last.
    start: Cursor  # That of the reader.
    target: VersionVector  # What the sweep is on its way to.

    def cursors(self) -> Iterator[Cursor]:
        """Per event, the cursor to go on right after it."""
        greatest = self.start.greatest
        for event in self.events:
            greatest = max(greatest, event.position)
            yield Cursor(self.start.vector, greatest, Sweep(self.target, event.position))


def apply(rows: Rows, stamp: Stamp, append: Append, payload: bytes) -> None:
    event = Event(stamp.pack_position(), append.key, stamp.wall_ms, payload)
    if append.key is None:
        _put_event(rows, event)
    else:
        _claim(rows, append.key.encode(), append.digest, event)


def find(rows: Rows, key: str) -> Entry | None:
    """The event of `key`."""
    claim = rows.get(KEY + key.encode())
    return None if claim is None else Entry(claim[:POSITION_BYTES], claim[POSITION_BYTES:])


def before(rows: Rows, hlc: int, limit: int) -> Iterator[Event]:
    """The last events before a time, the newest first."""
    for row, stored in rows.scan(EVENT, after=EVENT + hlc.to_bytes(_HLC_BYTES, "big"), reverse=True, limit=limit):
        yield _unpack_event(row[1:], stored)


def conflicts(rows: Rows) -> list[Conflict]:
    """The appends that are no events, by key and digest."""
    return [_conflict(row, stored) for row, stored in rows.scan(CONFLICT)]


def payload_of(rows: Rows, stamp: Stamp, append: Append) -> bytes:
    """The payload of an append that was applied to `rows`, also if it is no event.

    Raises:
        StoreCorrupt: the row that must hold it is not there.
    """
    position = stamp.pack_position()
    if append.key is not None:
        claim = find(rows, append.key)
        if claim is not None and claim.digest != append.digest:
            stored = rows.get(_conflict_row(append.key.encode(), append.digest))
            if stored is not None:
                return stored[POSITION_BYTES + 8 :]
        elif claim is not None:
            position = claim.position
    event = rows.get(EVENT + position)
    if event is None:
        raise StoreCorrupt(f"event {stamp.pack_position().hex()} is in the log and not in its journal. Run `shoal verify`.")
    return _unpack_event(position, event).payload


def read(
    rows: Rows,
    cursor: Cursor,
    vector: VersionVector,
    *,
    floor_hlc: int | None,
    limit: int,
    bytes_max: int,
    scan_rows_max: int = SCAN_ROWS_MAX,
) -> Page:
    """The next events that `cursor` does not cover, from a replica whose vector is `vector`.

    At most `limit` (from 1), and none after those that reach `bytes_max`.
    `floor_hlc` is the least HLC of the operations that `vector` covers and
    `cursor.vector` does not: nothing below it is looked at. None: not known.
    """
    if cursor.sweep is None and cursor.vector.dominates(vector):
        return Page([], cursor, False, cursor, vector)
    target = vector if cursor.sweep is None else _meet(cursor.sweep.target, vector)
    events: list[Event] = []
    position, greatest, size = b"", cursor.greatest, 0
    for scanned, (row, stored) in enumerate(rows.scan(EVENT, after=_start(cursor, floor_hlc))):
        due = _is_due(row, target, cursor.vector)
        if scanned == scan_rows_max or (due and (len(events) == limit or size >= bytes_max)):
            return Page(events, Cursor(cursor.vector, greatest, Sweep(target, position)), True, cursor, target)
        position = row[1:]
        if due:
            events.append(_unpack_event(position, stored, late=position < cursor.greatest))
            size += len(stored)
            greatest = max(greatest, position)
    seen = cursor.vector.join(target)
    return Page(events, Cursor(seen, greatest), not seen.dominates(vector), cursor, target)


def behind(
    rows: Rows, cursor: Cursor, vector: VersionVector, *, floor_hlc: int | None, scan_rows_max: int
) -> tuple[int, int, bool]:
    """How many events `read` would still give, how many rows were looked at for that, and whether that was all."""
    if cursor.sweep is None and cursor.vector.dominates(vector):
        return 0, 0, True
    target, after = cursor.sweep or (VersionVector(), b"")
    found = scanned = 0
    # What is left of the sweep, and in the next one what the sweep's target does not cover.
    for row, _ in rows.scan(EVENT, after=_start(cursor._replace(sweep=None), floor_hlc)):
        if scanned == scan_rows_max:
            return found, scanned, False
        scanned += 1
        if _is_due(row, vector, cursor.vector):
            found += row[1:] > after or not _is_due(row, target, cursor.vector)
    return found, scanned, True


def contested(rows: Rows) -> VersionVector:
    """Covers every claim of a key that was claimed more than once: only such events ever change their place."""
    return VersionVector.unpack(rows.get(KEY) or b"")


def from_position(position: bytes, vector: VersionVector) -> Cursor:
    """The cursor of a reader that has got all events up to `position`, and wants those after it that `vector` covers."""
    return Cursor(VersionVector(), position, Sweep(vector, position))


def join(one: Cursor, other: Cursor) -> Cursor:
    """What a reader has got that has got both; of two sweeps the later one's part, so that some may come again.

    Commutative, associative and idempotent: the vectors' join, and the greater sweep of a total order.
    """
    sweep = max((cursor.sweep for cursor in (one, other) if cursor.sweep is not None), key=_sweep_rank, default=None)
    return Cursor(one.vector.join(other.vector), max(one.greatest, other.greatest), sweep)


def clipped(cursor: Cursor, applied: VersionVector) -> Cursor:
    """A cursor as a replica at `applied` may keep it: it claims nothing that was not there."""
    sweep = None if cursor.sweep is None else Sweep(_meet(cursor.sweep.target, applied), cursor.sweep.after)
    return Cursor(_meet(cursor.vector, applied), cursor.greatest, sweep)


def _sweep_rank(sweep: Sweep) -> tuple[int, bytes, bytes]:
    # A reader's next sweep goes for more than its last one did.
    return sum(sweep.target.values()), sweep.after, sweep.target.pack()


def _start(cursor: Cursor, floor_hlc: int | None) -> bytes | None:
    after = b"" if cursor.sweep is None else cursor.sweep.after
    floor = b"" if floor_hlc is None else floor_hlc.to_bytes(_HLC_BYTES, "big")
    return EVENT + max(after, floor) if after or floor else None


def _is_due(row: bytes, target: VersionVector, seen: VersionVector) -> bool:
    dot = Dot.unpack(row[1 + _HLC_BYTES : 1 + _HLC_BYTES + DOT_BYTES])
    return target.covers(dot) and not seen.covers(dot)


def _meet(target: VersionVector, vector: VersionVector) -> VersionVector:
    """What both cover: a sweep that goes on at another replica can end only with what that one holds."""
    return VersionVector((origin, min(sequence, vector[origin])) for origin, sequence in target.items())


def _unpack_event(position: bytes, stored: bytes, *, late: bool = False) -> Event:
    end = 10 + int.from_bytes(stored[8:10], "big")
    # A key is never empty: no bytes are no key.
    return Event(position, stored[10:end].decode() or None, int.from_bytes(stored[:8], "big"), stored[end:], late)


def _put_event(rows: Rows, event: Event) -> None:
    key = b"" if event.key is None else event.key.encode()
    wall = event.wall_ms.to_bytes(8, "big")
    rows.put(EVENT + event.position, wall + len(key).to_bytes(2, "big") + key + event.payload)


def _claim(rows: Rows, key: bytes, digest: bytes, event: Event) -> None:
    claim = rows.get(KEY + key)
    if claim is None:
        _win(rows, key, digest, event)
        return
    position, winning = claim[:POSITION_BYTES], claim[POSITION_BYTES:]
    rows.put(KEY, contested(rows).join(_covering(position)).join(_covering(event.position)).pack())
    if _rank(event.position) >= _rank(position):
        if digest != winning:
            _lose(rows, key, digest, event)
        return
    stored = rows.get(EVENT + position)
    if stored is not None and digest != winning:
        _lose(rows, key, winning, _unpack_event(position, stored))
    rows.delete(EVENT + position)
    rows.delete(_conflict_row(key, digest))  # Claimed by a greater dot, if at all.
    _win(rows, key, digest, event)


def _covering(position: bytes) -> VersionVector:
    return VersionVector([Dot.unpack(position[_HLC_BYTES : _HLC_BYTES + DOT_BYTES])])


def _rank(position: bytes) -> bytes:
    """Dot and nth: what decides between claims. Not the HLC, whose order the clocks make."""
    return position[_HLC_BYTES:]


def _win(rows: Rows, key: bytes, digest: bytes, event: Event) -> None:
    rows.put(KEY + key, event.position + digest)
    _put_event(rows, event)


def _lose(rows: Rows, key: bytes, digest: bytes, event: Event) -> None:
    row = _conflict_row(key, digest)
    earlier = rows.get(row)
    if earlier is None or _rank(event.position) < _rank(earlier[:POSITION_BYTES]):
        rows.put(row, event.position + event.wall_ms.to_bytes(8, "big") + event.payload)


def _conflict_row(key: bytes, digest: bytes) -> bytes:
    return CONFLICT + len(key).to_bytes(2, "big") + key + digest


def _conflict(row: bytes, stored: bytes) -> Conflict:
    key = row[3 : 3 + int.from_bytes(row[1:3], "big")].decode()
    wall_ms = int.from_bytes(stored[POSITION_BYTES : POSITION_BYTES + 8], "big")
    return Conflict(key, stored[:POSITION_BYTES], wall_ms, stored[POSITION_BYTES + 8 :])
