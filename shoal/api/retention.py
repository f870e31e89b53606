"""What a journal keeps, over HTTP."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from shoal.api.exchange import Exchange, ReadQuery, Seconds
from shoal.api.opaque import opaque
from shoal.protocol.requests import ReadRetention, Retention, SetRetention, Trim

Count = Annotated[int, Meta(ge=0)]
Bound = Annotated[int, Meta(ge=1)]


class TrimBody(Struct, forbid_unknown_fields=True):
    """An event goes if everything that is given lets it go."""

    before: str | None = None  # An event's id.
    cursor: str = ""  # What it covers.
    older_than_s: Seconds | None = None
    keep: Count | None = None
    keep_bytes: Count | None = None
    dry_run: bool = False


class TrimView(Struct):
    events: int
    bytes: int
    dry_run: bool


class RetentionBody(Struct, forbid_unknown_fields=True):
    """An event goes that is beyond any of these."""

    older_than_s: Seconds | None = None
    bytes: Bound | None = None
    events: Bound | None = None


class RetentionView(Struct):
    older_than_s: float | None
    bytes: int | None
    events: int | None
    trimmed_ms: int | None  # When the last event that was trimmed was ordered.


async def trim(exchange: Exchange) -> web.Response:
    body = await exchange.body(TrimBody)
    reply = await exchange.call(
        Trim(
            exchange.name("space"),
            exchange.name("thread"),
            body.before,
            opaque(body.cursor, "cursor"),
            _milliseconds(body.older_than_s),
            body.keep,
            body.keep_bytes,
            body.dry_run,
        )
    )
    return exchange.answer(TrimView(reply.events, reply.bytes, reply.dry_run))


async def retention(exchange: Exchange) -> web.Response:
    request = ReadRetention(exchange.name("space"), exchange.name("thread"))
    return _shown(exchange, await exchange.call(request, stale=exchange.query(ReadQuery).stale))


async def retain(exchange: Exchange) -> web.Response:
    body = await exchange.body(RetentionBody)
    space, thread = exchange.name("space"), exchange.name("thread")
    age_ms = _milliseconds(body.older_than_s)
    return _shown(exchange, await exchange.call(SetRetention(space, thread, age_ms, body.bytes, body.events)))


def _shown(exchange: Exchange, reply: object) -> web.Response:
    assert isinstance(reply, Retention)
    age_s = None if reply.older_than_ms is None else reply.older_than_ms / 1000
    return exchange.answer(RetentionView(age_s, reply.bytes, reply.events, reply.trimmed_ms or None))


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)
