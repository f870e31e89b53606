"""Trimming: the old end of a journal goes.

Laws:
- A trim names, per origin, the last operation whose events go, of those that its
  issuer had applied: that one's and all earlier ones'. So what is trimmed is a function
  of the set of trims; an event that the issuer did not know stays, wherever it sorts.
- A journal is what it would be had the trimmed appends never been: a key lives as
  long as its event, and may be used again; of its other claims the next one is then the event.
- What is trimmed is shown no more. Its payload stays until the trim is stable, for
  peers that lack the append.

Rows (within the thread's, beside the journal's):
    F origin₁₆            sequence₈ hlc₈: the last operation of this origin whose events are trimmed
    G position₃₄          the payload of an append that is
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from shoal.crdt.dot import ORIGIN_BYTES, Dot, Origin, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.crdt.thread import claims, events
from shoal.crdt.thread.events import EVENT, HLC_BYTES, PLACE_BYTES, Issue, dot_of

END, TRIMMED = b"F", b"G"


class Trim(msgspec.Struct, array_like=True, frozen=True, tag="trim"):
    """The mutation."""

    ends: list[bytes]  # 32 bytes each, HLC and dot: of each origin the last operation whose events go.


class Cut(NamedTuple):
    """What a trim would take."""

    ends: list[bytes]
    events: int
    bytes: int
    more: bool  # There is more that should go, in another operation.


def apply(rows: Rows, _stamp: Stamp, trim: Trim) -> None:
    gone = covered(trim.ends)
    for end in trim.ends:
        dot = dot_of(end)
        before = rows.get(END + dot.origin)
        if before is None or int.from_bytes(before[:8], "big") < dot.sequence:
            rows.put(END + dot.origin, dot.sequence.to_bytes(8, "big") + end[:HLC_BYTES])
    keys = {claim.key: None for claim in claims.losers(rows) if gone.covers(claim.dot)}
    last = max(trim.ends)
    for row, stored in list(_up_to(rows, last)):
        event = events.unpack(row[1:], stored)
        if not gone.covers(dot_of(event.position)):
            continue
        if event.key is not None:
            keys[event.key] = None
            continue
        events.drop(rows, event.position)
        rows.put(TRIMMED + event.position, event.payload)
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
) -> Cut:
    """The oldest events for which `goes` holds, an operation's all or none.

    `goes` gets an operation's events, and how many events and bytes go before it; where it does not
    hold the rest stays. Past `events_max` no other operation is begun. `context` is what is applied
    here before the trim. Of places that are not `among` the wanted an origin's must be its last.
    """
    found: dict[Origin, bytes] = {}
    count = size = 0
    more = False
    for issue in events.issues(rows):
        if not context.covers(issue.dot) or not goes(issue, count, size):
            break
        if not among(issue.place):
            continue
        if more := count >= events_max:
            break
        found[issue.dot.origin] = issue.place
        count, size = count + len(issue.events), size + issue.bytes
    return Cut(sorted(found.values()), count, size, more)


def covered(ends: list[bytes]) -> VersionVector:
    return VersionVector([dot_of(end) for end in ends])


def ends(rows: Rows) -> list[bytes]:
    """Per origin the last operation whose events are trimmed: HLC and dot."""
    return [packed[8:] + row[1:] + packed[:8] for row, packed in rows.scan(END)]


def is_trimmed(rows: Rows, dot: Dot) -> bool:
    """Of an append that was applied here."""
    end = rows.get(END + dot.origin)
    return end is not None and int.from_bytes(end[:8], "big") >= dot.sequence


def payload(rows: Rows, position: bytes) -> bytes | None:
    """Of a trimmed append; None: it is gone."""
    return rows.get(TRIMMED + position)


def swept(rows: Rows, ends: list[bytes]) -> Iterator[bytes]:
    """The rows that these ends alone keep: the payloads up to there."""
    gone = covered(ends)
    last = max(ends)
    for row, _ in rows.scan(TRIMMED):
        if row[1 : 1 + PLACE_BYTES] > last:
            return
        if gone.covers(dot_of(row[1:])):
            yield row


def _up_to(rows: Rows, last: bytes) -> Iterator[tuple[bytes, bytes]]:
    for row, stored in rows.scan(EVENT):
        if row[1 : 1 + PLACE_BYTES] > last:
            return
        yield row, stored


def check(trim: Trim, applied: VersionVector) -> None:
    """
    Raises:
        ValueError: it is not what a node would have made that had applied so much.
    """
    if not trim.ends or any(len(end) != PLACE_BYTES for end in trim.ends):
        raise ValueError("it names no operations")
    if len({end[HLC_BYTES : HLC_BYTES + ORIGIN_BYTES] for end in trim.ends}) != len(trim.ends):
        raise ValueError("it names an origin twice")
    if not all(applied.covers(dot_of(end)) for end in trim.ends):
        raise ValueError("it trims what its origin had not applied")
