"""A thread's journal: an append-only log of events, in the same order everywhere.

Laws:
- Events are ordered by position: (HLC, dot, nth), a causal order.
- If several appends have one key, the one with the least (dot, nth) is the event,
  on every replica and in any order of arrival; its position is the event's.
- The other appends with a key stay known (`claims`). So the payload of every append that
  was applied can be found again, until it is trimmed (`trimming`).

- An erasure leaves an event's place, id, key and time, and takes its value. It names the event's position or, if the event
  has a key, the key and the value: every append of both is erased, also one that arrives later (`claims`). So which
  values are shown is a function of the sets of appends, trims and erasures. The appends keep their payloads aside until
  the erasure is stable (`trimming`). An append whose payload was swept before it arrived is applied as erased.

- A reader gets each event that its cursor does not cover, in order. An event that
  sorts before one that the reader already got is marked `late`. Reading goes in sweeps. The
  target of a sweep is the replica's vector when it began; it returns the events that the target
  covers and the cursor does not, and only at its end does the cursor adopt the target.
  So a page that was cut short claims only the events that it delivered, and an event that arrives
  at a place that a sweep has passed is found by the next. An event that a lesser dot takes
  over later is delivered again, at its new position.
- A reader that begins gets the oldest events that are left. What was trimmed by then counts as got, so it is told only of
  what is trimmed while it reads.

Its rows are those of `events`, `claims` and `trimming`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shoal.crdt import applier
from shoal.crdt.applier import ERASED as GONE
from shoal.crdt.applier import (
    Applier,
    Appliers,
    Blobs,
    Effects,
    Erased,
    What,
    WrittenRows,
    bare,
    check_content,
    intact,
    is_gone,
    position_of,
)
from shoal.crdt.dot import Floor, VersionVector
from shoal.crdt.rows import POSITION_BYTES, Rows, Stamp
from shoal.errors import BadOperation, InvalidValue, StoreCorrupt
from shoal.kinds import Kind
from shoal.kinds.journal.state import events, trimming
from shoal.kinds.journal.state.events import ERASED, EVENT, HLC_BYTES, PLACE_BYTES, Event, KeyedAppend, dot_of, hlc_of
from shoal.records import NamedTuple

SCAN_ROWS_MAX = 20_000  # Looked at for one page, so that a reader far behind does not hold up the others.

_CURSOR_VERSION = 1
_decode_cursor = msgspec.msgpack.Decoder(tuple[int, bytes, bytes, bytes, bytes]).decode


class Append(msgspec.Struct, array_like=True, frozen=True, tag="append"):
    """The mutation: appends an event. Its payload is stored once, as a row; the log holds this."""

    digest: bytes  # SHA-256 of the payload.
    key: str | None = None


class Erase(msgspec.Struct, array_like=True, frozen=True, tag="erase"):
    """The mutation: erases the value of an event."""

    position: bytes  # 34 bytes.
    key: str | None = None
    mark: bytes = b""  # Of the key and the value: 32 bytes; empty without a key.


class Conflict(NamedTuple):
    """An append that is no event, because another payload is the event of its key."""

    key: str
    position: bytes
    wall_ms: int
    payload: bytes


class Sweep(NamedTuple):
    """A pass over the events that is not at its end."""

    target: VersionVector
    after: bytes  # The last position that was looked at.


class Cursor(NamedTuple):
    """The events that a reader has got: all events that `vector` covers, and of a sweep those up to its position."""

    vector: VersionVector = VersionVector()
    greatest: bytes = b""  # Position delivered so far.
    sweep: Sweep | None = None

    def pack(self) -> bytes:
        """The cursor in the form that clients and consumers carry."""
        target, after = self.sweep or (VersionVector(), b"")
        return msgspec.msgpack.encode((_CURSOR_VERSION, self.vector.pack(), self.greatest, target.pack(), after))

    @classmethod
    def unpack(cls, packed: bytes) -> Cursor:
        """The cursor in bytes from `pack`. Empty bytes are the cursor of a reader that has got nothing.

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
                "the journal cursor is damaged or from a newer version. Nothing was written. "
                "Use a cursor exactly as it was returned, or none to read from the start."
            ) from None


class Page(NamedTuple):
    """Some of a journal's events, and where to continue."""

    events: list[Event]
    cursor: Cursor
    more: bool  # Ask again with `cursor`; a page may be empty and yet not the last.
    start: Cursor  # The reader's, before this page.
    target: VersionVector  # Of the sweep to which the page belongs.

    def cursors(self) -> Iterator[Cursor]:
        """Per event, the cursor to continue with right after it."""
        greatest = self.start.greatest
        for event in self.events:
            greatest = max(greatest, event.position)
            yield Cursor(self.start.vector, greatest, Sweep(self.target, event.position))


def apply(rows: Rows, stamp: Stamp, append: Append, payload: bytes) -> None:
    """Append the event, or record that another append has its key."""
    position = stamp.pack_position()
    if append.key is None:
        events.put(rows, Event(position, None, stamp.wall_ms, payload))
        return
    if events.is_erased(rows, append.key, append.digest):
        trimming.keep_aside(rows, position, payload)
        payload = ERASED
    events.apply_claim(rows, KeyedAppend(append.key, position, stamp.wall_ms, append.digest, payload))


def apply_erase(rows: Rows, _stamp: Stamp, change: Erase) -> None:
    """Erase the value of the event, and keep it aside."""
    if change.key is not None:
        for claim in events.erase(rows, change.key, change.mark):
            trimming.keep_aside(rows, claim.position, claim.payload)
    elif (event := events.find(rows, change.position)) is not None and not event.is_erased:
        trimming.keep_aside(rows, event.position, event.payload)
        events.blank(rows, event)


def erasure(rows: Rows, position: bytes) -> Erase | None:
    """The change that erases the value of the append at a position; None if there is no value: it was erased or trimmed."""
    event = events.find(rows, position)
    if event is not None and event.key is None:
        return None if event.is_erased else Erase(position)
    key = _key_at(rows, position) if event is None else event.key
    if key is None:
        return None
    claim = next((claim for claim in events.claims_of(rows, key) if claim.position == position), None)
    return None if claim is None or claim.payload == ERASED else Erase(position, key, events.mark_of(key, claim.digest))


def names_of(stamp: Stamp, append: Append) -> set[bytes]:
    """The name of an append in an erasure: its position, or its mark."""
    marks = set() if append.key is None else {events.mark_of(append.key, append.digest)}
    return {stamp.pack_position()} | marks


def kept_aside(rows: Rows, change: Erase) -> list[bytes]:
    """The positions of the appends whose payloads an erasure that was applied to `rows` keeps aside, or kept."""
    found = [] if change.key is None else [claim.position for claim in events.marked(rows, change.key, change.mark)]
    return sorted({change.position, *found})


def check_erase(change: Erase, applied: VersionVector) -> None:
    """Check an erasure from a peer that had applied this.

    Raises:
        ValueError: no node that had applied this would have made it.
    """
    if len(change.position) != POSITION_BYTES or len(change.mark) != (0 if change.key is None else events.MARK_BYTES):
        raise ValueError("its position or its mark is malformed")
    if not applied.accepts(VersionVector([dot_of(change.position)])):
        raise ValueError("it erases an event that its origin had not applied")


def before(rows: Rows, hlc: int, limit: int) -> Iterator[Event]:
    """The last `limit` events before a time, the newest first."""
    for row, stored in rows.scan(EVENT, after=EVENT + hlc.to_bytes(HLC_BYTES, "big"), reverse=True, limit=limit):
        yield events.unpack(row[1:], stored)


def conflicts(rows: Rows) -> list[Conflict]:
    """The appends that are no events, because another payload is the event of their key: per key and payload the least."""
    found: dict[tuple[str, bytes], Conflict] = {}
    for claim in events.losers(rows):
        entry = events.find_claim(rows, claim.key)
        if entry is None or claim.digest != entry.digest:
            found.setdefault((claim.key, claim.digest), Conflict(claim.key, claim.position, claim.wall_ms, claim.payload))
    return list(found.values())


def payload_of(rows: Rows, stamp: Stamp, append: Append) -> bytes | None:
    """The payload of an append that was applied to `rows`, even if it is no event; None if it was trimmed or erased, and swept.

    Raises:
        StoreCorrupt: the row that must hold it is not there.
    """
    own = position = stamp.pack_position()
    if trimming.is_trimmed(rows, stamp.dot):
        return trimming.payload(rows, own)
    if append.key is not None and (entry := events.find_claim(rows, append.key)) is not None and entry.position != own:
        if kept := events.payload(rows, append.key, own):
            return trimming.payload(rows, own) if kept == ERASED else kept
        if entry.digest == append.digest:
            position = entry.position
    event = events.find(rows, position)
    if event is None and stamp.hlc <= trimming.floor(rows).hlc:
        return trimming.payload(rows, own)
    if event is None:
        raise StoreCorrupt(f"event {stamp.pack_position().hex()} is in the log and not in its journal. Run `shoal verify`.")
    return trimming.payload(rows, own) if event.is_erased else event.payload


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

    At most `limit` events (from 1), and none after those that reach `bytes_max`.
    `floor_hlc` is the least HLC of the operations that `vector` covers and
    `cursor.vector` does not: no event below it is looked at. None: not known.
    """
    if cursor == Cursor():
        cursor = _beginning(rows)
    if cursor.sweep is None and cursor.vector.dominates(vector):
        return Page([], cursor, False, cursor, vector)
    target = vector if cursor.sweep is None else _meet(cursor.sweep.target, vector)
    found: list[Event] = []
    position, greatest, size = b"", cursor.greatest, 0
    for scanned, (row, stored) in enumerate(rows.scan(EVENT, after=_start(cursor, floor_hlc))):
        due = _is_due(row, target, cursor.vector, vector)
        if scanned == scan_rows_max or (due and (len(found) == limit or size >= bytes_max)):
            return Page(found, Cursor(cursor.vector, greatest, Sweep(target, position)), True, cursor, target)
        position = row[1:]
        if due:
            found.append(events.unpack(position, stored, late=position < cursor.greatest))
            size += len(stored)
            greatest = max(greatest, position)
    seen = target.join(cursor.vector)  # In this order: what a replica has retired is no entry of its vector.
    return Page(found, Cursor(seen, greatest), not seen.dominates(vector), cursor, target)


def behind(
    rows: Rows, cursor: Cursor, vector: VersionVector, *, floor_hlc: int | None, scan_rows_max: int
) -> tuple[int, int, bool]:
    """How many events `read` would still return, how many rows were looked at for that, and whether the count is complete."""
    if cursor.sweep is None and cursor.vector.dominates(vector):
        return 0, 0, True
    target, after = cursor.sweep or (VersionVector(), b"")
    found = scanned = 0
    # The rest of the sweep, and the events of the next one, which are those that the sweep's target does not cover.
    for row, _ in rows.scan(EVENT, after=_start(cursor._replace(sweep=None), floor_hlc)):
        if scanned == scan_rows_max:
            return found, scanned, False
        scanned += 1
        if _is_due(row, vector, cursor.vector, vector):
            found += row[1:] > after or not _is_due(row, target, cursor.vector, vector)
    return found, scanned, True


def _beginning(rows: Rows) -> Cursor:
    """The cursor of a reader that begins: it covers what was trimmed. An event that came late may sort before that."""
    return Cursor(trimming.covered(trimming.ends(rows)[1]))


def missed(rows: Rows, cursor: Cursor, here: VersionVector) -> int | None:
    """The greatest HLC of an operation whose events were trimmed before this reader got them; None if there is none.

    `here` is the replica's vector.
    """
    if cursor == Cursor():
        return None  # A new reader starts with the oldest event that there is.
    floor, ends = trimming.ends(rows)
    late = [hlc_of(end) for end in ends if not got(cursor, end, here)]
    if floor.hlc and not _got_floor(cursor, floor):
        late.append(floor.hlc)
    return max(late, default=None)


def got(cursor: Cursor, place: bytes, here: VersionVector) -> bool:
    """Whether a reader has got the events of the operation at `place`: HLC and dot. `here` is the replica's vector."""
    dot, hlc, sweep = dot_of(place), hlc_of(place), cursor.sweep
    if cursor.vector.reaches(dot, hlc, here):
        return True
    return sweep is not None and sweep.target.reaches(dot, hlc, here) and place <= sweep.after[:PLACE_BYTES]


def _got_floor(cursor: Cursor, floor: Floor) -> bool:
    if floor.is_reached(cursor.vector):
        return True
    sweep = cursor.sweep
    return sweep is not None and floor.is_reached(sweep.target) and floor.place <= sweep.after[:PLACE_BYTES]


def from_position(position: bytes, vector: VersionVector) -> Cursor:
    """The cursor of a reader that has got all events up to `position`, and wants those after it that `vector` covers."""
    return Cursor(VersionVector(), position, Sweep(vector, position))


def join(one: Cursor, other: Cursor) -> Cursor:
    """A cursor that covers what both cover. Of two sweeps only the later one's part is kept, so some events may come again.

    Commutative, associative and idempotent: the vectors' join, and the greater sweep of a total order.
    """
    sweep = max((cursor.sweep for cursor in (one, other) if cursor.sweep is not None), key=_sweep_rank, default=None)
    return Cursor(one.vector.join(other.vector), max(one.greatest, other.greatest), sweep)


def clipped(cursor: Cursor, applied: VersionVector) -> Cursor:
    """The part of a cursor that a replica at `applied` may keep: it covers no event that the replica lacked."""
    sweep = None if cursor.sweep is None else Sweep(_meet(cursor.sweep.target, applied), cursor.sweep.after)
    return Cursor(_meet(cursor.vector, applied), cursor.greatest, sweep)


def _key_at(rows: Rows, position: bytes) -> str | None:
    """The key of the claim at a position that is no event; None if there is none."""
    return next((claim.key for claim in events.losers(rows) if claim.position == position), None)


def _sweep_rank(sweep: Sweep) -> tuple[int, bytes, bytes]:
    # A reader's next sweep goes for more than its last one did.
    return sum(sweep.target.values()), sweep.after, sweep.target.pack()


def _start(cursor: Cursor, floor_hlc: int | None) -> bytes | None:
    after = b"" if cursor.sweep is None else cursor.sweep.after
    floor = b"" if floor_hlc is None else floor_hlc.to_bytes(HLC_BYTES, "big")
    return EVENT + max(after, floor) if after or floor else None


def _is_due(row: bytes, target: VersionVector, seen: VersionVector, here: VersionVector) -> bool:
    dot, hlc = dot_of(row[1:]), hlc_of(row[1:])
    return (target is here or target.reaches(dot, hlc, here)) and not seen.reaches(dot, hlc, here)


def _meet(target: VersionVector, vector: VersionVector) -> VersionVector:
    """The events that both cover: a sweep that continues at another replica can end only with operations that this replica
    holds.
    """
    return VersionVector((origin, min(sequence, vector.bound(origin))) for origin, sequence in target.items())


def _apply(rows: Rows, stamp: Stamp, append: Append, attached: Blobs) -> None:
    # If its value is gone, an erasure or a trim that will arrive later has taken it elsewhere.
    apply(rows, stamp, append, ERASED if is_gone(attached) else attached.content)


def _check(_rows: Rows, _stamp: Stamp, append: Append, attached: Blobs) -> Blobs:
    if not is_gone(attached):
        check_content(attached, append.digest, "its event does not match its hash")
    return attached


def _attached_of(rows: Rows, stamp: Stamp, append: Append) -> Blobs:
    payload = payload_of(rows, stamp, append)
    return GONE if payload is None else intact(payload, append.digest, f"event {stamp.pack_position().hex()}")


def _check_erase(stamp: Stamp, change: Erase) -> None:
    try:
        check_erase(change, stamp.context)
    except ValueError as error:
        raise BadOperation(f"its erasure cannot be applied ({error})", reason="content") from None


def _erased_id(_name: str, _stamp: Stamp, change: Erase) -> str:
    return change.position.hex()


def _late(rows: WrittenRows, stamp: Stamp, _append: Append) -> bytes | None:
    """The value of an append that arrived after the erasure of its event."""
    position = stamp.pack_position()
    return position if rows.wrote(trimming.aside(position)) else None


def _is_erased(_rows: Rows, stamp: Stamp, append: Append, erased: Erased) -> bool:
    return erased.events.covers(stamp.dot) or not names_of(stamp, append).isdisjoint(erased.values)


def _kept_aside(rows: Rows, _stamp: Stamp, change: Erase) -> bytes:
    return b"".join(kept_aside(rows, change))


def _erases(change: Erase, erased: Erased) -> None:
    erased.values.update((change.position, change.mark))


APPLIERS: Appliers = {
    Append: Applier(
        Kind.THREAD,
        _apply,
        _check,
        _attached_of,
        id_of=position_of,
        effects=Effects(
            sweeps=applier.Sweep(What.VALUES, lambda stamp, _append: stamp.pack_position(), _late), erased_by=_is_erased
        ),
    ),
    Erase: bare(
        Kind.THREAD,
        apply_erase,
        _check_erase,
        _erased_id,
        effects=Effects(sweeps=applier.Sweep(What.VALUES, None, _kept_aside), erases=_erases),
        since=lambda _: 7,
    ),
}
