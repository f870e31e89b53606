"""Trimming: removing the old end of a journal, by request or by a rule that the thread carries.

Laws:
- A trim names, per origin, the last operation whose events go, among those that its
  issuer had applied: the events of that one and of all earlier ones go. So which events are
  trimmed is a function of the set of trims. An event that the issuer did not know stays, wherever it sorts.
- A journal becomes what it would be if the trimmed appends had never been made. A key is
  free again once its event is trimmed, unless other claims of it remain: then the next one is the event.
- A trimmed event is not shown any more. Its payload stays aside until the trim is stable, for
  peers that lack the append. So does that of an event whose value was erased, until the erasure is.
- A trim may raise the *floor* (`shoal.crdt.dot`): an end at or below it has no row of its own. So the rows are a function
  of the set of trims, and there are as many of them as origins that a replica remembers.

Rows (within the thread's, beside the journal's):
    F                     hlc₈ retired₈: the floor; no row if it was never raised
    F origin₁₆            sequence₈ hlc₈: the last operation of this origin whose events are trimmed, if it is above the floor
    G position₃₄          the payload of an append that was trimmed, or whose value was erased

How long a journal keeps its events: a rule that the thread carries.

Law: of all rules that were set, the one at the greatest position holds, on every
replica. From the first rule on, the journal counts its events (`events.keep_totals`).

Rows (within the thread's):
    H p                   msgpack [position₃₄, older_than_ms, bytes, events]: each null if it sets no bound
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from shoal.crdt.applier import Appliers, Effects, Erased, Sweep, What, bare
from shoal.crdt.dot import COUNTER_BITS, END_MS, NO_FLOOR, ORIGIN_BYTES, Dot, Floor, Origin, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation
from shoal.kinds import Kind
from shoal.kinds.journal.state import events
from shoal.kinds.journal.state.events import ERASED, EVENT, HLC_BYTES, PLACE_BYTES, Issue, Place, dot_of, hlc_of
from shoal.records import NamedTuple

END, TRIMMED = b"F", b"G"
_NTH_MAX = b"\xff\xff"  # Behind a place: above all its positions.


class Trim(msgspec.Struct, array_like=True, frozen=True, tag="trim"):
    """The mutation: trims these events."""

    ends: list[bytes]  # 32 bytes each, HLC and dot: of each origin the last operation whose events go.
    floor: Floor = NO_FLOOR  # To which the journal's is raised.


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
    _raise(rows, trim.floor)
    keys = {claim.key: None for claim in events.losers(rows) if gone.covers(claim.dot)}
    dropped: list[tuple[bytes, bytes]] = []
    for row, stored in list(_between(rows, min(trimmed), max(trim.ends))):
        event = events.unpack(row[1:], stored)
        if not gone.covers(dot_of(event.position)):
            continue
        if event.key is not None:
            keys[event.key] = None
            continue
        dropped.append((row, stored))
        keep_aside(rows, event.position, event.payload)
    events.drop_all(rows, dropped)
    for key in keys:
        for claim in events.remove(rows, key, lambda claim: gone.covers(claim.dot)):
            keep_aside(rows, claim.position, claim.payload)


def trim(rows: Rows, context: VersionVector, ends: list[bytes]) -> Trim:
    """The trim with these ends. It merges the ends of origins that the replica at `context` has retired and forgotten."""
    retired = context.retired
    if retired is None or not retired.forgotten:
        return Trim(ends)
    hlc = 0
    for place in sorted([*_ends(rows), *ends]):
        origin = dot_of(place).origin
        if context.is_forgotten(origin):
            hlc = hlc_of(place)
        elif origin not in context:
            break  # It is remembered. Those that follow are mostly remembered too.
    return Trim(ends, Floor(hlc, retired.forgotten)) if hlc > floor(rows).hlc else Trim(ends)


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


def floor(rows: Rows) -> Floor:
    """The journal's floor."""
    packed = rows.get(END)
    return NO_FLOOR if packed is None else Floor.unpack(packed)


def ends(rows: Rows) -> tuple[Floor, list[bytes]]:
    """The floor, and per origin the last operation above it whose events are trimmed: HLC and dot."""
    return floor(rows), _ends(rows)


def last(rows: Rows) -> Place:
    """The greatest place whose events are trimmed, or one above it; empty if there is none."""
    raised, found = ends(rows)
    return max([raised.place, *found])


def is_trimmed(rows: Rows, dot: Dot) -> bool:
    """Whether a row says that the events of an operation that was applied here are trimmed. None does below the floor."""
    end = rows.get(END + dot.origin)
    return end is not None and int.from_bytes(end[:8], "big") >= dot.sequence


def payload(rows: Rows, position: bytes) -> bytes | None:
    """The payload that is kept aside of an append; None once it is swept."""
    return rows.get(TRIMMED + position)


def keep_aside(rows: Rows, position: bytes, payload: bytes) -> None:
    """Keep the payload of an append that is not shown any more. An erased one is aside already, or swept."""
    if payload != ERASED:
        rows.put(TRIMMED + position, payload)


def aside(position: bytes) -> bytes:
    """The row under which the payload of the append at a position is kept aside."""
    return TRIMMED + position


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


def _raise(rows: Rows, to: Floor) -> None:
    """Raise the floor, and remove the ends that are not above it."""
    before = floor(rows)
    raised = before.join(to)
    if raised != before:
        rows.put(END, raised.pack())
    if raised.hlc:
        for place in _ends(rows):
            if hlc_of(place) <= raised.hlc:
                rows.delete(END + dot_of(place).origin)


def _ends(rows: Rows) -> list[bytes]:
    return [_place(Origin(row[1:]), packed) for row, packed in rows.scan(END, after=END)]


def _place(origin: Origin, end: bytes) -> bytes:
    """The place that a row `F` names."""
    return end[8:] + origin + end[:8]


def check(trim: Trim, applied: VersionVector, hlc: int) -> None:
    """Check a trim from a peer, which was issued at `hlc`, and whose origin had applied `applied`.

    Raises:
        ValueError: no node that had applied this would have made it.
    """
    if not trim.ends or any(len(end) != PLACE_BYTES for end in trim.ends):
        raise ValueError("it names no operations")
    if len({end[HLC_BYTES : HLC_BYTES + ORIGIN_BYTES] for end in trim.ends}) != len(trim.ends):
        raise ValueError("it names an origin twice")
    if not applied.accepts(covered(trim.ends)):
        raise ValueError("it trims events that its origin had not applied")
    trim.floor.check(hlc)


RULE = b"Hp"
SLACK_DIVISOR = 8  # Appends trim only once a bound is exceeded by this part of it, so that few appends do.

_decode = msgspec.msgpack.Decoder(tuple[bytes, int | None, int | None, int | None]).decode


class Retain(msgspec.Struct, array_like=True, frozen=True, tag="retain"):
    """The mutation: sets the rule. An event goes if it is beyond any of these bounds; None sets no bound."""

    older_than_ms: int | None = None
    bytes: int | None = None
    events: int | None = None


class _Excess(NamedTuple):
    """How much of the journal is beyond the bounds."""

    before: bytes  # Places below this one are too old.
    bytes: int
    events: int

    def goes(self, issue: Issue, count: int, size: int) -> bool:
        return issue.place < self.before or count + len(issue.events) <= self.events or size < self.bytes


def apply_rule(rows: Rows, stamp: Stamp, retain: Retain) -> None:
    """Set the rule, unless a later one holds."""
    position = stamp.pack_position()
    earlier = rows.get(RULE)
    if earlier is None or _decode(earlier)[0] < position:
        rows.put(RULE, msgspec.msgpack.encode((position, retain.older_than_ms, retain.bytes, retain.events)))
    events.keep_totals(rows)


def rule(rows: Rows) -> Retain:
    """The rule that holds; one without bounds if none was ever set."""
    packed = rows.get(RULE)
    return Retain() if packed is None else Retain(*_decode(packed)[1:])


def due(rows: Rows, stamp: Stamp, *, events_max: int) -> Cut | None:
    """The events that this operation should trim by the rule; None if there are none, or too few to be worth it."""
    totals = events.totals(rows)
    if totals is None:
        return None
    holds = rule(rows)
    excess = _Excess(
        _age_bound(rows, stamp, holds.older_than_ms), _beyond(totals.bytes, holds.bytes), _beyond(totals.events, holds.events)
    )
    if not (excess.before or excess.bytes or excess.events):
        return None
    end = cut(rows, stamp.context, excess.goes, events_max=events_max)
    return end if end.ends else None


def too_old(wall_ms: int, older_than_ms: int) -> bytes:
    """The place below which events are older than `older_than_ms` at `wall_ms`."""
    return (max(0, min(wall_ms, END_MS) - older_than_ms) << COUNTER_BITS).to_bytes(HLC_BYTES, "big")


def _beyond(total: int, bound: int | None) -> int:
    if bound is None or total - bound <= bound // SLACK_DIVISOR:
        return 0
    return total - bound


def _age_bound(rows: Rows, stamp: Stamp, older_than_ms: int | None) -> bytes:
    """The place below which events are too old; empty if none are, or too few to be worth it."""
    if older_than_ms is None:
        return b""
    # Below the last trim are only events that came late, which go with the next. A look there would pass all deleted rows.
    until = last(rows)
    oldest = next(iter(rows.scan(EVENT, after=EVENT + until + b"\xff\xff" if until else None, limit=1)), None)
    slack_ms = older_than_ms // SLACK_DIVISOR
    if oldest is None or oldest[0][1 : 1 + PLACE_BYTES] >= too_old(stamp.wall_ms, older_than_ms + slack_ms):
        return b""
    return too_old(stamp.wall_ms, older_than_ms)


def check_rule(retain: Retain) -> None:
    """Check a rule from a peer.

    Raises:
        ValueError: a bound is out of range.
    """
    for bound in (retain.older_than_ms, retain.bytes, retain.events):
        if bound is not None and not 1 <= bound < 2**63:
            raise ValueError("a bound must be from 1 to 2**63 - 1")


def _check_trim(stamp: Stamp, trim: Trim) -> None:
    try:
        check(trim, stamp.context, stamp.hlc)
    except ValueError as error:
        raise BadOperation(f"its trim cannot be applied ({error})", reason="content") from None


def _check_retain(_stamp: Stamp, retain: Retain) -> None:
    try:
        check_rule(retain)
    except ValueError as error:
        raise BadOperation(f"its retention is not valid ({error})", reason="content") from None


def _erases(trim: Trim, erased: Erased) -> None:
    erased.events = erased.events.join(covered(trim.ends))


APPLIERS: Appliers = {
    Trim: bare(
        Kind.THREAD,
        apply,
        _check_trim,
        effects=Effects(sweeps=Sweep(What.EVENTS, lambda _stamp, trim: b"".join(trim.ends)), erases=_erases),
    ),
    Retain: bare(Kind.THREAD, apply_rule, _check_retain),
}
