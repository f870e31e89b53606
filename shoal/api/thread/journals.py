"""Journals over HTTP: reading events, and waiting for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from aiohttp import web
from msgspec import Meta, Raw, Struct, field

from shoal.api.http.exchange import Exchange, ReadQuery, Seconds
from shoal.api.http.opaque import opaque, shown_opaque
from shoal.errors import SlowConsumer
from shoal.protocol.requests import (
    Change,
    Event,
    Events,
    ReadJournal,
    Watch,
)

Limit = Annotated[int, Meta(ge=1)]
_Found = TypeVar("_Found")


class EventsQuery(ReadQuery, forbid_unknown_fields=True):
    """A page of a journal, and how long to wait for its first event."""

    after: str = ""
    wait: Seconds = 0  # Seconds to wait for an event if there is none yet.
    limit: Limit = 1000
    skip_trimmed: bool = False  # Continue after trimmed events that `after` does not cover, instead of failing.


class EventView(Struct):
    """One event of a journal."""

    id: str
    key: str | None
    wall_ms: int
    event: Raw
    late: bool
    cursor: str  # The cursor right after this event.
    erased: bool = False  # Its value was erased: `event` is null.


class EventsView(Struct):
    """A page of a journal."""

    events: list[EventView] = field(default_factory=list)
    cursor: str = ""
    more: bool = False


async def events(exchange: Exchange) -> web.Response:
    """Read events after a cursor. With `wait`, an empty page is answered only after that time.

    Raises:
        JournalTrimmed: events after the cursor were trimmed, and `skip_trimmed` is not set.
    """
    query = exchange.query(EventsQuery)
    found = await _read(exchange, query)
    if not found.events and query.wait:
        found = await _waited(exchange, query)
    return exchange.answer(EventsView(event_views(exchange, found), shown_opaque(found.cursor), found.more))


def event_views(exchange: Exchange, found: Events) -> list[EventView]:
    """The events as they are shown over HTTP."""
    return [event_view(exchange, event) for event in found.events]


def event_view(exchange: Exchange, event: Event) -> EventView:
    """An event as it is shown over HTTP."""
    cursor, value = shown_opaque(event.cursor), exchange.shown(event.event)
    return EventView(event.id, event.key, event.wall_ms, value, event.late, cursor, event.erased)


async def _read(exchange: Exchange, query: EventsQuery) -> Events:
    space, thread, after = exchange.name("space"), exchange.name("thread"), opaque(query.after, "after")
    request = ReadJournal(space, thread, after, query.limit, skip_trimmed=query.skip_trimmed)
    return await exchange.call(request, stale=query.stale)


async def _waited(exchange: Exchange, query: EventsQuery) -> Events:
    return await waited(exchange, "append", query.wait, lambda: _read(exchange, query), lambda found: bool(found.events))


async def waited(
    exchange: Exchange, what: str, seconds: float, read: Callable[[], Awaitable[_Found]], holds: Callable[[_Found], bool]
) -> _Found:
    """What `read` finds once `holds`, or after the next change `what` of the thread, `seconds`, or a stop of the node."""
    space, thread = exchange.name("space"), exchange.name("thread")
    async with exchange.session.subscribe(Watch(space, "thread", thread)) as changes:
        # Read what came before the subscription; the subscription delivers what comes after it.
        if holds(found := await read()):
            return found

        async def told() -> None:
            async for change in changes:
                if isinstance(change, Change) and (change.name, change.what) == (thread, what):
                    return

        waits = asyncio.ensure_future(told()), asyncio.ensure_future(exchange.stopping.wait())
        try:
            seconds = min(seconds, exchange.config.journal_wait_s_max)
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            outcomes = await asyncio.gather(*waits, return_exceptions=True)
        # A slow consumer reads again, as it would after a change.
        if isinstance(outcomes[0], Exception) and not isinstance(outcomes[0], SlowConsumer):
            raise outcomes[0]
    return await read()
