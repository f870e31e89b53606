"""A register over HTTP."""

from __future__ import annotations

from aiohttp import web
from msgspec import Raw, Struct

from shoal.api.http.exchange import Exchange, ReadQuery
from shoal.api.http.opaque import shown_opaque
from shoal.protocol.requests import (
    ReadRegister,
    Siblings,
)


class SiblingView(Struct):
    value: Raw
    wall_ms: int


class RegisterView(Struct):
    value: Raw  # Of the first sibling; null if it was never set.
    siblings: list[SiblingView]
    context: str
    version: str  # Another one for other values; "" if it was never set.


async def read_register(exchange: Exchange) -> web.Response:
    reply = await exchange.call(
        ReadRegister(exchange.name("space"), exchange.name("register")), stale=exchange.query(ReadQuery).stale
    )
    exchange.version = reply.version
    return exchange.answer(register_view(exchange, reply))


def register_view(exchange: Exchange, reply: Siblings) -> RegisterView:
    views = [SiblingView(exchange.shown(sibling.value), sibling.wall_ms) for sibling in reply.siblings]
    latest = views[0].value if views else exchange.shown(b"\xc0")
    return RegisterView(latest, views, shown_opaque(reply.context), reply.version)
