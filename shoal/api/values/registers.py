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
    """One of the values that were assigned concurrently."""

    value: Raw
    wall_ms: int


class RegisterView(Struct):
    """A register's value, and its siblings, the latest first."""

    value: Raw  # The value of the first sibling; null if it was never assigned.
    siblings: list[SiblingView]
    context: str
    version: str  # A digest of the siblings; "" if it was never assigned.


async def read_register(exchange: Exchange) -> web.Response:
    """Read a register; null if it was never assigned."""
    reply = await exchange.call(
        ReadRegister(exchange.name("space"), exchange.name("register")), stale=exchange.query(ReadQuery).stale
    )
    exchange.version = reply.version
    return exchange.answer(register_view(exchange, reply))


def register_view(exchange: Exchange, reply: Siblings) -> RegisterView:
    """A register as it is shown over HTTP."""
    views = [SiblingView(exchange.shown(sibling.value), sibling.wall_ms) for sibling in reply.siblings]
    latest = views[0].value if views else exchange.shown(b"\xc0")
    return RegisterView(latest, views, shown_opaque(reply.context), reply.version)
