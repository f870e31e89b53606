"""Spaces over HTTP: what there is in them, and what changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from shoal.api.http.exchange import Exchange
from shoal.protocol.requests import ListObjects, ListSpaces, ObjectKind


class SpacesQuery(Struct, forbid_unknown_fields=True):
    after: str | None = None
    limit: Annotated[int, Meta(ge=1)] = 1000


class SpacesView(Struct):
    spaces: list[str]
    more: bool


class ObjectsQuery(SpacesQuery, forbid_unknown_fields=True):
    prefix: str = ""


class NamesView(Struct):
    names: list[str]  # In byte order.
    more: bool  # Ask again with after=names[-1].


async def list_spaces(exchange: Exchange) -> web.Response:
    query = exchange.query(SpacesQuery)
    reply = await exchange.call(ListSpaces(query.after, query.limit))
    return exchange.answer(SpacesView(reply.names, reply.more))


def list_objects(kind: ObjectKind) -> Callable[[Exchange], Awaitable[web.Response]]:
    """The handler that lists the objects of one kind."""

    async def names(exchange: Exchange) -> web.Response:
        query = exchange.query(ObjectsQuery)
        reply = await exchange.call(ListObjects(exchange.name("space"), kind, query.prefix, query.after, query.limit))
        return exchange.answer(NamesView(reply.names, reply.more))

    return names
