"""Journals over HTTP: events, waiting for them, and the cursors of their consumers."""

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
    Events,
    ReadJournal,
    Watch,
)

Limit = Annotated[int, Meta(ge=1)]
_Found = TypeVar("_Found")


class EventsQuery(ReadQuery, forbid_unknown_fields=True):
    after: str = ""
    wait: Seconds = 0  # Seconds to wait for an event if there is none yet.
    limit: Limit = 1000
    skip_trimmed: bool = False  # Go on where events that `after` does not cover were trimmed.


class EventView(Struct):
    id: str
    key: str | None
    wall_ms: int
    event: Raw
    late: bool
    cursor: str  # To go on right after this event.


class EventsView(Struct):
    events: list[EventView] = field(default_factory=list)
    cursor: str = ""
    more: bool = False


async def events(exchange: Exchange) -> web.Response:
    query = exchange.query(EventsQuery)
    found = await _read(exchange, query)
    if not found.events and query.wait:
        found = await _waited(exchange, query)
    return exchange.answer(EventsView(event_views(exchange, found), shown_opaque(found.cursor), found.more))


def event_views(exchange: Exchange, found: Events) -> list[EventView]:
    return [EventView(e.id, e.key, e.wall_ms, exchange.shown(e.event), e.late, shown_opaque(e.cursor)) for e in found.events]


async def _read(exchange: Exchange, query: EventsQuery) -> Events:
    space, thread, after = exchange.name("space"), exchange.name("thread"), opaque(query.after, "after")
    request = ReadJournal(space, thread, after, query.limit, skip_trimmed=query.skip_trimmed)
    return await exchange.call(request, stale=query.stale)


async def _waited(exchange: Exchange, query: EventsQuery) -> Events:
    return await waited(exchange, "append", query.wait, lambda: _read(exchange, query), lambda found: bool(found.events))


async def waited(
    exchange: Exchange, what: str, seconds: float, read: Callable[[], Awaitable[_Found]], holds: Callable[[_Found], bool]
) -> _Found:
    """What `read` finds as soon as there is something, after such a change; or once the time is over, or the node stops."""
    space, thread = exchange.name("space"), exchange.name("thread")
    async with exchange.session.subscribe(Watch(space, "thread", thread)) as changes:
        # What came before the subscription is read, what comes after it is told.
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
        # Whoever fell behind reads, which is what a change asks for as well.
        if isinstance(outcomes[0], Exception) and not isinstance(outcomes[0], SlowConsumer):
            raise outcomes[0]
    return await read()
