"""Who is present, over HTTP. To be present takes a connection that lasts: the session's, or that of a Yjs client."""

from __future__ import annotations

from aiohttp import web
from msgspec import Raw, Struct

from shoal.api.http.exchange import Exchange
from shoal.protocol.requests import ReadPresence


class PresentView(Struct):
    id: int
    state: Raw  # What they say of themselves.


class PresenceView(Struct):
    members: list[PresentView]


async def in_space(exchange: Exchange) -> web.StreamResponse:
    return await _read(exchange, "")


async def in_document(exchange: Exchange) -> web.StreamResponse:
    return await _read(exchange, exchange.name("document"))


async def _read(exchange: Exchange, document: str) -> web.StreamResponse:
    reply = await exchange.call(ReadPresence(exchange.name("space"), document))
    return exchange.answer(
        PresenceView([PresentView(present.client, exchange.of_json(present.state)) for present in reply.entries])
    )
