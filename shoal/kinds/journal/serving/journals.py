"""Journals over storage: appends, pages of events, and trimming by request and by rule.

Events that a node appends to a thread's journal itself: who moved what, when and why.

Law: the event is a change of the same operation as the move that it describes. It is a
map whose `kind` says what happened, and has the implied key of its request, so that a
request that went to two nodes appends one event.

Trimming of a journal, by request and by its retention rule.

Laws:
- Planning reads a journal slice by slice and writes nothing. A trim removes a bounded number
  of events in one operation, the oldest first; it removes all events of an operation or none.
- If the rule is exceeded by more than its slack, an append trims in its own operation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from hashlib import sha256
from typing import Any

from shoal import values
from shoal.config import Config
from shoal.crdt.applier import Blobs
from shoal.crdt.deletion import users_key
from shoal.crdt.dot import COUNTER_BITS, END_MS, VersionVector, wall_ms_of
from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput, JournalTrimmed, KeyReused, NotFound
from shoal.kinds.journal.state import events, journal, trimming
from shoal.kinds.journal.state.events import EVENT, PLACE_BYTES, Issue, dot_of
from shoal.kinds.journal.state.journal import Cursor
from shoal.names import STREAMS, check_key, check_name
from shoal.node.handler import Checks, Maintainers, Piece, Readers, Upkeep, View, WriteContext, Writers, target_of
from shoal.node.naming import PAGE_BYTES_MAX, check_size, position_of
from shoal.protocol import requests
from shoal.protocol.requests import (
    Append,
    Appended,
    EraseEvent,
    EventErased,
    EventsTrimmed,
    ReadJournal,
    ReadRetention,
    Retention,
    SetRetention,
    Trim,
    TrimEvents,
    TrimReport,
)
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
        change = trimming.Retain(request.older_than_ms, request.bytes, request.events)
        if events.totals(context.rows) is not None and trimming.rule(context.rows) == change:
            return _shown(context.rows)
        context.apply(change)
        return _shown(context.rows)


def trim_by_rule(context: WriteContext) -> None:
    """Trim, in the operation of an append, what the journal's rule makes due."""
    cut = trimming.due(context.rows, context.stamp, events_max=TRIM_EVENTS_MAX)
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
        before = min(before, trimming.too_old(now_ms, request.older_than_ms))
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
    rule = trimming.rule(rows)
    trimmed_ms = wall_ms_of(events.hlc_of(trimming.last(rows)))
    return Retention(rule.older_than_ms, rule.bytes, rule.events, trimmed_ms)


def _check_bounds(bounds: dict[str, int | None], least: int) -> None:
    for name, bound in bounds.items():
        if bound is not None and not least <= bound < _BOUND_MAX:
            raise InvalidInput(f"{name} must be at least {least}; got {bound}. Nothing was written.")


_NIL = values.encode(None)


class Journals:
    """The handler of a thread's journal."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.checks: Checks = {Append: self._check, EraseEvent: _check_erasure}
        self.writers: Writers = {Append: self._append, EraseEvent: self._erase}
        self.readers: Readers = {ReadJournal: self._read}

    def _check(self, request: Append) -> None:
        check_name("thread", request.thread)
        if request.key is not None:
            check_key("journal key", request.key)
        values.check(request.event)
        check_size(self._config, len(request.event), "an event")

    def _append(self, context: WriteContext, request: Append) -> Appended:
        """Append an event; a repeated key returns the id of the first event.

        Raises:
            KeyReused: the key belongs to another event.
        """
        digest = sha256(request.event).digest()
        if request.key is not None and (entry := events.find_claim(context.rows, request.key)) is not None:
            if entry.digest != digest:
                raise KeyReused(
                    f"key {request.key!r} belongs to another event in the journal of {request.thread!r}. Nothing was written. "
                    "Use a new key for a new event."
                )
            return Appended(id=entry.position.hex(), appended=False)
        if request.key is not None and events.is_erased(context.rows, request.key, digest):
            raise KeyReused(
                f"the event of key {request.key!r} in the journal of {request.thread!r} was erased, and trimmed. Nothing was "
                "written. Use a new key for a new event."
            )
        key = request.key or context.implied_key
        if context.imported is not None and key is not None and (entry := events.find_claim(context.rows, key)) is not None:
            return Appended(id=entry.position.hex(), appended=False)
        change = journal.Append(digest, key)
        id = context.stamp.pack_position().hex()
        context.apply(change, Blobs(request.event))
        trim_by_rule(context)
        return Appended(id=id, appended=True)

    def _erase(self, context: WriteContext, request: EraseEvent) -> EventErased:
        """Erase an event's value. Its place, id, key and time stay.

        Raises:
            NotFound: this node does not hold the operation that appended the event.
        """
        position = position_of(request.event)
        change = journal.erasure(context.rows, position)
        if change is not None:
            context.apply(change)
            return EventErased(True)
        dot = dot_of(position)
        if context.stamp.context.bound(dot.origin) < dot.sequence:
            raise NotFound(
                f"no event {request.event} of {request.thread!r} is known here. Nothing was written. If another node "
                "acknowledged it, erase it there, or here once this node has caught up."
            )
        return EventErased(False)

    def _read(self, view: View, request: ReadJournal) -> requests.Events:
        """A page of events after a cursor.

        Raises:
            InvalidValue: `after` is not a cursor.
            JournalTrimmed: events that the cursor does not cover were trimmed.
        """
        cursor = journal.Cursor.unpack(request.after)
        if not request.skip_trimmed:
            check_reach(view, cursor, request.thread)
        page = journal.read(
            view.rows,
            cursor,
            view.vector,
            floor_hlc=_floor_hlc(view, cursor, request),
            limit=min(max(1, request.limit), self._config.page_items_max),
            bytes_max=PAGE_BYTES_MAX,
        )
        found = [shown_event(event, cursor.pack()) for event, cursor in zip(page.events, page.cursors(), strict=True)]
        return requests.Events(found, page.cursor.pack(), page.more)


def shown_event(event: events.Event, cursor: bytes) -> requests.Event:
    """An event as clients are shown it, with the cursor right after it. An erased one has the value None."""
    value = _NIL if event.is_erased else event.payload
    id, key = event.position.hex(), users_key(event.key)
    return requests.Event(id, key, event.wall_ms, value, event.late, cursor, event.is_erased)


def _check_erasure(request: EraseEvent) -> None:
    check_name("thread", request.thread)
    position_of(request.event)
    if request.thread.startswith(STREAMS):
        raise InvalidInput(
            f"{request.thread!r} holds a durable stream, whose offsets count what its records hold: a record cannot be erased "
            "alone. Nothing was written. Delete the stream."
        )


def _floor_hlc(view: View, cursor: journal.Cursor, request: ReadJournal) -> int | None:
    """The HLC below which no event is scanned, because all are read already or older than `since_ms`."""
    read = view.floor_hlc(cursor.vector)
    return max(read or 0, min(request.since_ms, END_MS - 1) << COUNTER_BITS) if request.since_ms > 0 else read


def tell(context: WriteContext, kind: str, fields: dict[str, Any]) -> None:
    """Append an event with this `kind` and these fields, which must be values, to the thread's journal.

    Of a write that was made elsewhere before the journal was told there: the event is imported itself.
    """
    if context.imported is not None:
        return
    event = values.encode({"kind": kind} | fields)
    change = journal.Append(sha256(event).digest(), context.implied_key)
    context.apply(change, Blobs(event))
