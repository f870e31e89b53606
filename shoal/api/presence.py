"""Presence over HTTP, to read only: a client announces itself through a session or a Yjs connection, which lasts."""

from __future__ import annotations

from aiohttp import web
from msgspec import Raw, Struct

from shoal.api.http.exchange import Exchange
from shoal.protocol.requests import ReadPresence


class PresentView(Struct):
    """One client that is present."""

    id: int
    state: Raw  # The state that the client announced.


class PresenceView(Struct):
    """The clients that are present, on all nodes."""

    members: list[PresentView]


async def in_space(exchange: Exchange) -> web.StreamResponse:
    """The clients present in a space, as its sessions announced them."""
    return await _read(exchange, "")


async def in_document(exchange: Exchange) -> web.StreamResponse:
    """The clients present in a document, Yjs clients included."""
    return await _read(exchange, exchange.name("document"))


async def _read(exchange: Exchange, document: str) -> web.StreamResponse:
    reply = await exchange.call(ReadPresence(exchange.name("space"), document))
    return exchange.answer(
        PresenceView([PresentView(present.client, exchange.of_json(present.state)) for present in reply.entries])
    )
