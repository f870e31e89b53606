"""The rows of a journal's events, and their totals.

Law: if the totals are kept, they are those of the event rows: every event
is added by `put` and removed by `drop`.

Rows (within the thread's):
    E position₃₄          wall_ms₈ keylength₂ key payload: an event; if its value was erased, the payload is `ERASED`
    H n                   events₈ bytes₈: the totals; only in a journal that ever had a retention
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from shoal.crdt.dot import DOT_BYTES, Dot
from shoal.crdt.rows import Rows
from shoal.records import NamedTuple

EVENT = b"E"
TOTALS = b"Hn"
HLC_BYTES = 8
PLACE_BYTES = HLC_BYTES + DOT_BYTES  # A position without the number within its operation.
Place = bytes  # So many.
ERASED = b"\xc1"  # In place of a value that was erased: the one byte that msgpack never uses, so no value is this.


class Event(NamedTuple):
    """An event of a journal, in its place."""

    position: bytes
    key: str | None
    wall_ms: int
    payload: bytes
    late: bool = False  # It sorts before events that this reader already got.

    @property
    def is_erased(self) -> bool:
        """Whether its value was erased; its place, key and time are there."""
        return self.payload == ERASED


class Totals(NamedTuple):
    """The size of a journal."""

    events: int
    bytes: int  # Of the rows' values.


class Issue(NamedTuple):
    """The events of one operation."""

    place: bytes  # HLC and dot: 32 bytes.
    events: list[Event]
    bytes: int

    @property
    def dot(self) -> Dot:
        """The operation."""
        return dot_of(self.place)


def hlc_of(position: bytes) -> int:
    """When the operation at a position or place was issued."""
    return int.from_bytes(position[:HLC_BYTES], "big")


def dot_of(position: bytes) -> Dot:
    """The operation in a position, or in a place."""
    return Dot.unpack(position[HLC_BYTES:PLACE_BYTES])


def put(rows: Rows, event: Event) -> None:
    """Write an event, in a place where there is none."""
    key = b"" if event.key is None else event.key.encode()
    stored = event.wall_ms.to_bytes(8, "big") + len(key).to_bytes(2, "big") + key + event.payload
    rows.put(EVENT + event.position, stored)
    _count(rows, 1, len(stored))


def blank(rows: Rows, event: Event) -> None:
    """Erase the value of an event that is in its place."""
    drop(rows, event.position)
    put(rows, event._replace(payload=ERASED))


def drop(rows: Rows, position: bytes) -> None:
    """Remove the event at a position, if there is one."""
    stored = rows.get(EVENT + position)
    if stored is not None:
        rows.delete(EVENT + position)
        _count(rows, -1, -len(stored))


def drop_all(rows: Rows, dropped: Sequence[tuple[bytes, bytes]]) -> None:
    """Remove the events whose rows these are; the totals are counted once."""
    for row, _ in dropped:
        rows.delete(row)
    if dropped:
        _count(rows, -len(dropped), -sum(len(stored) for _, stored in dropped))


def find(rows: Rows, position: bytes) -> Event | None:
    """The event at a position; None if there is none."""
    stored = rows.get(EVENT + position)
    return None if stored is None else unpack(position, stored)


def unpack(position: bytes, stored: bytes, *, late: bool = False) -> Event:
    """The event in a row `E`."""
    end = 10 + int.from_bytes(stored[8:10], "big")
    # A key is never empty: no bytes are no key.
    return Event(position, stored[10:end].decode() or None, int.from_bytes(stored[:8], "big"), stored[end:], late)


def issues(rows: Rows, *, after: bytes | None = None) -> Iterator[Issue]:
    """The events in order, grouped by operation; `after` is a position, exclusive."""
    start = None if after is None else EVENT + after
    for place, group in groupby(rows.scan(EVENT, after=start), key=lambda row: row[0][1 : 1 + PLACE_BYTES]):
        stored = list(group)
        yield Issue(place, [unpack(row[1:], value) for row, value in stored], sum(len(value) for _, value in stored))


def totals(rows: Rows) -> Totals | None:
    """The journal's totals; None if they are not kept."""
    packed = rows.get(TOTALS)
    return None if packed is None else Totals(int.from_bytes(packed[:8], "big"), int.from_bytes(packed[8:], "big"))


def keep_totals(rows: Rows) -> None:
    """Keep totals from now on. The first call reads all events once."""
    if rows.get(TOTALS) is None:
        sizes = [len(stored) for _, stored in rows.scan(EVENT)]
        _put_totals(rows, Totals(len(sizes), sum(sizes)))


def _count(rows: Rows, events: int, size: int) -> None:
    if (kept := totals(rows)) is not None:
        _put_totals(rows, Totals(kept.events + events, kept.bytes + size))


def _put_totals(rows: Rows, kept: Totals) -> None:
    rows.put(TOTALS, kept.events.to_bytes(8, "big") + kept.bytes.to_bytes(8, "big"))
