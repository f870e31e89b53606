"""Trimming of a journal, by request and by its retention rule.

Laws:
- Planning reads a journal slice by slice and writes nothing. A trim removes a bounded number
  of events in one operation, the oldest first; it removes all events of an operation or none.
- If the rule is exceeded by more than its slack, an append trims in its own operation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from shoal.crdt.dot import VersionVector, wall_ms_of
from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput, JournalTrimmed
from shoal.kinds.journal.state import events, journal, retention, trimming
from shoal.kinds.journal.state.events import EVENT, PLACE_BYTES, Issue
from shoal.kinds.journal.state.journal import Cursor
from shoal.names import check_name
from shoal.node.handler import Checks, Maintainers, Piece, Readers, Upkeep, View, WriteContext, Writers, target_of
from shoal.node.naming import position_of
from shoal.protocol.requests import EventsTrimmed, ReadRetention, Retention, SetRetention, Trim, TrimEvents, TrimReport
from shoal.records import NamedTuple

TRIM_EVENTS_MAX = 512  # Events in one operation that trims a journal; events of one operation go together.

_SLICE = 512
_BOUND_MAX = 2**53


class Plan(NamedTuple):
    """The outcome of planning a trim: the place to trim to, and how much that removes."""

    before: bytes  # Events that sort below this place are trimmed.
    events: int
    bytes: int


Planning = Generator[None, None, Plan]


class Retentions:
    """The handler of trims and retention. A `Trim` is carried out as a plan and many `TrimEvents`.

    `shown` returns the vector of a partition for clients.
    """

    def __init__(self, now_ms: Callable[[], int], *, shown: Callable[[int], VersionVector]) -> None:
        self._shown = shown
        self._now_ms = now_ms
        self.checks: Checks = {Trim: self._check, TrimEvents: self._check_piece, SetRetention: self._check_rule}
        self.writers: Writers = {TrimEvents: self._trim, SetRetention: self._set}
        self.readers: Readers = {ReadRetention: lambda view, _request: _shown(view.rows)}
        self.maintenance: Maintainers = {Trim: self._trim_all}

    def _check(self, request: Trim) -> None:
        check_name("thread", request.thread)
        Cursor.unpack(request.cursor)
        if request.before is not None:
            position_of(request.before)
        bounds = {"older_than": request.older_than_ms, "keep": request.keep, "keep_bytes": request.keep_bytes}
        if request.before is None and not request.cursor and all(bound is None for bound in bounds.values()):
            raise InvalidInput("a trim needs before, older_than, keep or keep_bytes. Nothing was written.")
        _check_bounds(bounds, 0)

    def _check_piece(self, request: TrimEvents) -> None:
        check_name("thread", request.thread)
        Cursor.unpack(request.cursor)
        if len(request.before) > PLACE_BYTES:
            raise InvalidInput(f"a place in a journal has at most {PLACE_BYTES} bytes. Nothing was written.")
        if len(request.after) not in (0, PLACE_BYTES):
            raise InvalidInput(f"the place to begin after has {PLACE_BYTES} bytes. Nothing was written.")

    def _check_rule(self, request: SetRetention) -> None:
        check_name("thread", request.thread)
        _check_bounds({"older_than": request.older_than_ms, "bytes": request.bytes, "events": request.events}, 1)

    def _trim_all(self, rows: Callable[[], Rows], request: Trim) -> Upkeep:
        """Plan step by step, then trim piece by piece. Each piece takes the events that are there by then."""
        plan = yield from planned(rows, lambda: self._shown(target_of(request).partition), request, self._now_ms())
        if request.dry_run or not plan.events:
            return TrimReport(plan.events, plan.bytes, request.dry_run)
        events = size = 0
        last, more = b"", True
        while more:
            piece = TrimEvents(request.space, request.thread, plan.before, request.cursor, last)
            done: EventsTrimmed = yield Piece(piece, f"{events} events are trimmed" if events else "")
            events, size, last, more = events + done.events, size + done.bytes, done.last, done.more
        return TrimReport(events, size, False)

    def _trim(self, context: WriteContext, request: TrimEvents) -> EventsTrimmed:
        cursor = Cursor.unpack(request.cursor) if request.cursor else None

        def goes(issue: Issue, _count: int, _size: int) -> bool:
            return issue.place < request.before

        def among(place: bytes) -> bool:
            return cursor is None or journal.got(cursor, place, context.stamp.context)

        events_max = TRIM_EVENTS_MAX
        cut = trimming.cut(context.rows, context.stamp.context, goes, events_max=events_max, among=among, after=request.after)
        reply = EventsTrimmed(cut.events, cut.bytes, cut.more, cut.last)
        if not cut.ends:
            return reply
        change = trimming.trim(context.rows, context.stamp.context, cut.ends)
        context.apply(change)
        return reply

    def _set(self, context: WriteContext, request: SetRetention) -> Retention:
        change = retention.Retain(request.older_than_ms, request.bytes, request.events)
        if events.totals(context.rows) is not None and retention.rule(context.rows) == change:
            return _shown(context.rows)
        context.apply(change)
        return _shown(context.rows)


def trim_by_rule(context: WriteContext) -> None:
    """Trim, in the operation of an append, what the journal's rule makes due."""
    cut = retention.due(context.rows, context.stamp, events_max=TRIM_EVENTS_MAX)
    if cut is not None:
        context.apply(trimming.trim(context.rows, context.stamp.context, cut.ends))


def check_reach(view: View, cursor: Cursor, thread: str) -> None:
    """Check that a reader has read all trimmed events.

    Raises:
        JournalTrimmed: events that it had not read were trimmed.
    """
    hlc = journal.missed(view.rows, cursor, view.vector)
    if hlc is not None:
        raise JournalTrimmed(
            f"the journal of {thread!r} was trimmed, and this reader had not read all of the removed events. "
            "Nothing was written. Read with skip_trimmed to continue with the remaining events.",
            trimmed_ms=wall_ms_of(hlc),
        )


def planned(rows: Callable[[], Rows], here: Callable[[], VersionVector], request: Trim, now_ms: int) -> Planning:
    """Plan a trim; each step takes a bounded time. `rows` and `here` give the thread's rows and the replica's vector."""
    before = b"\xff" * PLACE_BYTES
    if request.before is not None:
        before = min(before, position_of(request.before)[:PLACE_BYTES])
    if request.older_than_ms is not None:
        before = min(before, retention.too_old(now_ms, request.older_than_ms))
    if request.keep is not None or request.keep_bytes is not None:
        before = min(before, (yield from _kept_from(rows, request)))
    cursor = Cursor.unpack(request.cursor) if request.cursor else None
    count = size = 0
    after: bytes | None = None
    while True:
        some = list(rows().scan(EVENT, after=after, limit=_SLICE))
        for row, stored in some:
            place = row[1 : 1 + PLACE_BYTES]
            if place >= before:
                return Plan(before, count, size)
            if cursor is None or journal.got(cursor, place, here()):
                count, size = count + 1, size + len(stored)
        if len(some) < _SLICE:
            return Plan(before, count, size)
        after = some[-1][0]
        yield


def _kept_from(rows: Callable[[], Rows], request: Trim) -> Generator[None, None, bytes]:
    """The place of the oldest event that `keep` and `keep_bytes` keep; above all places if they keep none."""
    oldest = b"\xff" * PLACE_BYTES
    count = size = 0
    after: bytes | None = None
    while True:
        some = list(rows().scan(EVENT, after=after, reverse=True, limit=_SLICE))
        for row, stored in some:
            count, size = count + 1, size + len(stored)
            stays = request.keep is not None and count <= request.keep
            if not stays and not (request.keep_bytes is not None and size <= request.keep_bytes):
                return oldest
            oldest = row[1 : 1 + PLACE_BYTES]
        if len(some) < _SLICE:
            return b""  # All are kept.
        after = some[-1][0]
        yield


def _shown(rows: Rows) -> Retention:
    rule = retention.rule(rows)
    trimmed_ms = wall_ms_of(events.hlc_of(trimming.last(rows)))
    return Retention(rule.older_than_ms, rule.bytes, rule.events, trimmed_ms)


def _check_bounds(bounds: dict[str, int | None], least: int) -> None:
    for name, bound in bounds.items():
        if bound is not None and not least <= bound < _BOUND_MAX:
            raise InvalidInput(f"{name} must be at least {least}; got {bound}. Nothing was written.")
