"""How long a journal keeps its events: a rule that the thread carries.

Law: of all rules that were set, the one at the greatest position holds, on every
replica. From the first rule on, the journal counts its events (`events.keep_totals`).

Rows (within the thread's):
    H p                   msgpack [position₃₄, older_than_ms, bytes, events]: each null if it sets no bound
"""

from __future__ import annotations

import msgspec

from shoal.crdt.dot import COUNTER_BITS, END_MS
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.journal.state import events, trimming
from shoal.kinds.journal.state.events import EVENT, HLC_BYTES, PLACE_BYTES, Issue
from shoal.kinds.journal.state.trimming import Cut
from shoal.records import NamedTuple

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


def apply(rows: Rows, stamp: Stamp, retain: Retain) -> None:
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
    cut = trimming.cut(rows, stamp.context, excess.goes, events_max=events_max)
    return cut if cut.ends else None


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
    last = trimming.last(rows)
    oldest = next(iter(rows.scan(EVENT, after=EVENT + last + b"\xff\xff" if last else None, limit=1)), None)
    slack_ms = older_than_ms // SLACK_DIVISOR
    if oldest is None or oldest[0][1 : 1 + PLACE_BYTES] >= too_old(stamp.wall_ms, older_than_ms + slack_ms):
        return b""
    return too_old(stamp.wall_ms, older_than_ms)


def check(retain: Retain) -> None:
    """Check a rule from a peer.

    Raises:
        ValueError: a bound is out of range.
    """
    for bound in (retain.older_than_ms, retain.bytes, retain.events):
        if bound is not None and not 1 <= bound < 2**63:
            raise ValueError("a bound must be from 1 to 2**63 - 1")
