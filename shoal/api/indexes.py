"""Indexes of the fields of items over HTTP: of all items whose namespaces begin with one label."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from shoal.api.exchange import Exchange, ReadQuery
from shoal.protocol.requests import IndexItems, ListItemIndexes, UnindexItems


class IndexBody(Struct, forbid_unknown_fields=True):
    label: str
    fields: Annotated[list[str], Meta(min_length=1)]  # "user.age" is a field within another.


class IndexedView(Struct):
    changed: list[str]  # The fields that were not, or were, indexed before.


class IndexesQuery(ReadQuery, forbid_unknown_fields=True, kw_only=True):
    label: str


class IndexView(Struct):
    field: str
    built: bool  # On the node that answers: until then its searches scan.


class IndexesView(Struct):
    indexes: list[IndexView]


async def index(exchange: Exchange) -> web.Response:
    return await _changed(exchange, IndexItems)


async def unindex(exchange: Exchange) -> web.Response:
    return await _changed(exchange, UnindexItems)


async def indexes(exchange: Exchange) -> web.Response:
    query = exchange.query(IndexesQuery)
    reply = await exchange.call(ListItemIndexes(exchange.name("space"), query.label), stale=query.stale)
    return exchange.answer(IndexesView([IndexView(found.field, found.built) for found in reply.indexes]))


async def _changed(exchange: Exchange, of: type[IndexItems] | type[UnindexItems]) -> web.Response:
    body = await exchange.body(IndexBody)
    reply = await exchange.call(of(exchange.name("space"), body.label, body.fields))
    return exchange.answer(IndexedView(reply.changed))
