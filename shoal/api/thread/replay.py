"""Replays over HTTP: the latest snapshot of a reducer, the events since, and keeping the next one.

Nobody can send a function over HTTP: the caller folds the events, in the order in which they come, into the
snapshot's value, goes on with `GET …/events?after=` while there are more, and keeps what came of it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Raw, Struct

from shoal.api.http.exchange import Exchange, ReadQuery
from shoal.api.http.opaque import shown_opaque
from shoal.api.thread.journals import EventView, event_views
from shoal.api.thread.threads import Limit, moment_ms
from shoal.errors import InvalidInput
from shoal.protocol.requests import (
    ReadJournal,
    ReadSnapshot,
    Snapshot,
)
from shoal.workflows.replay import check_whole

Version = Annotated[int, Meta(ge=0)]


class ReplayQuery(ReadQuery, forbid_unknown_fields=True):
    reducer: str | None = None  # Under which its snapshots are kept; left out, the replay begins at the first event.
    version: Version = 0
    until: str | None = None  # An event's id: a snapshot of what came later is of no use.
    until_time: datetime | None = None  # The same, with a time zone.
    limit: Limit = 1000  # Of events.


class ReplayView(Struct):
    snapshot: Raw | None  # What the reducer made of all events up to `at`; null with `at` empty: there is none.
    at: str  # An event's id.
    events: list[EventView]  # What came after it, in order.
    cursor: str  # Go on with `GET …/events?after=` this one,
    more: bool  # if there are more. Events that come while you replay may belong before those that you have: see `late`.


async def replay(exchange: Exchange) -> web.Response:
    query = exchange.query(ReplayQuery)
    space, thread = exchange.name("space"), exchange.name("thread")
    start = Snapshot(None, "", b"")
    if query.reducer is not None:
        until_ms = moment_ms(query.until_time, "until_time")
        request = ReadSnapshot(space, thread, query.reducer, query.version, query.until, until_ms)
        found = await exchange.call(request, stale=query.stale)
        start = found
    elif query.until is not None or query.until_time is not None:
        raise InvalidInput("`until` and `until_time` choose a snapshot: give `reducer` too.", field="until")
    events = await exchange.call(ReadJournal(space, thread, start.cursor, query.limit), stale=query.stale)
    if start.value is None:
        await check_whole(exchange.connection, space, thread)
    snapshot = None if start.value is None else exchange.shown(start.value)
    return exchange.answer(
        ReplayView(snapshot, start.event, event_views(exchange, events), shown_opaque(events.cursor), events.more)
    )
