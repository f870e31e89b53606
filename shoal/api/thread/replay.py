"""Replays over HTTP: the latest snapshot of a reducer, and the events since.

A function cannot be sent over HTTP, so the caller reduces: it folds the events in order into the
snapshot's value, continues with `GET …/events?after=` while there are more, and keeps the result as the next snapshot.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from aiohttp import web
from msgspec import Meta, Raw, Struct

from shoal.api.derived import moment_ms, show, view_of
from shoal.api.http.exchange import Exchange, ReadQuery
from shoal.api.http.headers import shown_opaque
from shoal.errors import InvalidInput
from shoal.kinds.journal.flows import check_whole
from shoal.protocol.requests import Event, ReadJournal, ReadSnapshot, Snapshot

Version = Annotated[int, Meta(ge=0)]
Limit = Annotated[int, Meta(ge=1)]
if TYPE_CHECKING:
    EventView = Struct
else:
    EventView = view_of(Event)


class ReplayQuery(ReadQuery, forbid_unknown_fields=True):
    """The reducer, and where a replay ends."""

    reducer: str | None = None  # The name of its snapshots. If left out, the replay begins at the first event.
    version: Version = 0
    until: str | None = None  # An event's id: use no snapshot that includes later events.
    until_time: datetime | None = None  # A time with a time zone: use no snapshot that includes later events.
    limit: Limit = 1000  # At most so many events.


class ReplayView(Struct):
    """The snapshot to begin with, and the events to fold into it."""

    snapshot: Raw | None  # The reducer's value after all events up to `at`; null with `at` empty if there is none.
    at: str  # The id of the last event in the snapshot.
    events: list[EventView]  # The events after it, in order. An event marked `late` belongs before earlier ones.
    cursor: str  # The cursor to continue with: `GET …/events?after=`.
    more: bool  # Whether there are more events.


async def replay(exchange: Exchange) -> web.Response:
    """Read the newest usable snapshot of a reducer, and the first page of events after it.

    Raises:
        InvalidInput: `until` or `until_time` is given without a reducer.
        JournalTrimmed: there is no snapshot, and the journal's beginning was trimmed.
    """
    query = exchange.query(ReplayQuery)
    space, thread = exchange.name("space"), exchange.name("thread")
    start = Snapshot(None, "", b"")
    if query.reducer is not None:
        until_ms = None if query.until_time is None else moment_ms(query.until_time, "until_time")
        request = ReadSnapshot(space, thread, query.reducer, query.version, query.until, until_ms)
        found = await exchange.call(request, stale=query.stale)
        start = found
    elif query.until is not None or query.until_time is not None:
        raise InvalidInput("`until` and `until_time` choose a snapshot of a reducer. Give `reducer` too.", field="until")
    events = await exchange.call(ReadJournal(space, thread, start.cursor, query.limit), stale=query.stale)
    if start.value is None:
        await check_whole(exchange.connection, space, thread)
    snapshot = None if start.value is None else exchange.shown(start.value)
    return await exchange.answer(
        ReplayView(
            snapshot,
            start.event,
            [show(exchange, event) for event in events.events],
            shown_opaque(events.cursor),
            events.more,
        )
    )
