"""Trimming: removing the old end of a journal.

Laws:
- A trim names, per origin, the last operation whose events go, among those that its
  issuer had applied: the events of that one and of all earlier ones go. So which events are
  trimmed is a function of the set of trims. An event that the issuer did not know stays, wherever it sorts.
- A journal becomes what it would be if the trimmed appends had never been made. A key is
  free again once its event is trimmed, unless other claims of it remain: then the next one is the event.
- A trimmed event is not shown any more. Its payload stays until the trim is stable, for
  peers that lack the append.

Rows (within the thread's, beside the journal's):
    F origin₁₆            sequence₈ hlc₈: the last operation of this origin whose events are trimmed
    G position₃₄          the payload of a trimmed append
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from shoal.crdt.dot import ORIGIN_BYTES, Dot, Origin, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.crdt.thread import claims, events
from shoal.crdt.thread.events import EVENT, HLC_BYTES, PLACE_BYTES, Issue, Place, dot_of

END, TRIMMED = b"F", b"G"
_NTH_MAX = b"\xff\xff"  # Behind a place: above all its positions.


class Trim(msgspec.Struct, array_like=True, frozen=True, tag="trim"):
    """The mutation: trims these events."""

    ends: list[bytes]  # 32 bytes each, HLC and dot: of each origin the last operation whose events go.


class Cut(NamedTuple):
    """The events that a trim would remove."""

    ends: list[bytes]
    events: int
    bytes: int
    more: bool  # Whether more events should go, in another operation.
    last: Place  # That of the last operation that was looked at: the next cut may begin after it.


def apply(rows: Rows, _stamp: Stamp, trim: Trim) -> None:
    """Trim the events, and keep their payloads aside."""
    gone = covered(trim.ends)
    trimmed: list[bytes] = []  # Of each origin the place up to which its events went before.
    for end in trim.ends:
        dot = dot_of(end)
        before = rows.get(END + dot.origin)
        trimmed.append(b"" if before is None else _place(dot.origin, before))
        if before is None or int.from_bytes(before[:8], "big") < dot.sequence:
            rows.put(END + dot.origin, dot.sequence.to_bytes(8, "big") + end[:HLC_BYTES])
    keys = {claim.key: None for claim in claims.losers(rows) if gone.covers(claim.dot)}
    dropped: list[tuple[bytes, bytes]] = []
    for row, stored in list(_between(rows, min(trimmed), max(trim.ends))):
        event = events.unpack(row[1:], stored)
        if not gone.covers(dot_of(event.position)):
            continue
        if event.key is not None:
            keys[event.key] = None
            continue
        dropped.append((row, stored))
        rows.put(TRIMMED + event.position, event.payload)
    events.drop_all(rows, dropped)
    for key in keys:
        for claim in claims.remove(rows, key, lambda claim: gone.covers(claim.dot)):
            rows.put(TRIMMED + claim.position, claim.payload)


def cut(
    rows: Rows,
    context: VersionVector,
    goes: Callable[[Issue, int, int], bool],
    *,
    events_max: int,
    among: Callable[[bytes], bool] = lambda place: True,
    after: bytes = b"",
) -> Cut:
    """The oldest events for which `goes` is true; all events of an operation, or none.

    `goes` gets the events of an operation, and the numbers of events and bytes that go before it. The first operation
    for which it is false stays, and so do all after it. Once `events_max` is reached, no further operation is taken.
    `context` is the vector applied here before the trim. `among` selects the places that may be the last of their origin.
    Operations at or below the place `after` are not looked at.
    """
    found: dict[Origin, bytes] = {}
    last = after
    count = size = 0
    more = False
    for issue in events.issues(rows, after=after + _NTH_MAX if after else None):
        if context.bound(issue.dot.origin) < issue.dot.sequence or not goes(issue, count, size):
            break
        if among(issue.place):
            if more := count >= events_max:
                break
            found[issue.dot.origin] = issue.place
            count, size = count + len(issue.events), size + issue.bytes
        last = issue.place
    return Cut(sorted(found.values()), count, size, more, last)


def covered(ends: list[bytes]) -> VersionVector:
    """The vector of the operations whose events go, with these ends."""
    return VersionVector([dot_of(end) for end in ends])


def ends(rows: Rows) -> list[bytes]:
    """Per origin the last operation whose events are trimmed: HLC and dot."""
    return [_place(Origin(row[1:]), packed) for row, packed in rows.scan(END)]


def is_trimmed(rows: Rows, dot: Dot) -> bool:
    """Whether the events of an operation that was applied here are trimmed."""
    end = rows.get(END + dot.origin)
    return end is not None and int.from_bytes(end[:8], "big") >= dot.sequence


def payload(rows: Rows, position: bytes) -> bytes | None:
    """The payload of a trimmed append; None once it is swept."""
    return rows.get(TRIMMED + position)


def swept(rows: Rows, ends: list[bytes], *, after: bytes | None = None) -> Iterator[bytes]:
    """The rows to remove once a trim with these ends is stable, from strictly above one: the payloads of what it covers."""
    gone = covered(ends)
    last = max(ends)
    for row, _ in rows.scan(TRIMMED, after=after):
        if row[1 : 1 + PLACE_BYTES] > last:
            return
        if gone.covers(dot_of(row[1:])):
            yield row


def _between(rows: Rows, after: bytes, last: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Rows of events above a place, up to another one. A look below would pass all deleted rows."""
    for row, stored in rows.scan(EVENT, after=EVENT + after + _NTH_MAX if after else None):
        if row[1 : 1 + PLACE_BYTES] > last:
            return
        yield row, stored


def _place(origin: Origin, end: bytes) -> bytes:
    """The place that a row `F` names."""
    return end[8:] + origin + end[:8]


def check(trim: Trim, applied: VersionVector) -> None:
    """Check a trim from a peer, whose origin had applied `applied`.

    Raises:
        ValueError: no node that had applied this would have made it.
    """
    if not trim.ends or any(len(end) != PLACE_BYTES for end in trim.ends):
        raise ValueError("it names no operations")
    if len({end[HLC_BYTES : HLC_BYTES + ORIGIN_BYTES] for end in trim.ends}) != len(trim.ends):
        raise ValueError("it names an origin twice")
    if not applied.accepts(covered(trim.ends)):
        raise ValueError("it trims events that its origin had not applied")
