"""Memory items over HTTP.

Law: a namespace is one part of the path, its labels joined by periods, for no
label holds one; in a body it is an array of its labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import Meta, Raw, Struct

from shoal.api.http.exchange import Exchange, ReadQuery, WriteQuery
from shoal.api.http.opaque import opaque, shown_opaque
from shoal.errors import InvalidInput, NotFound
from shoal.protocol import requests
from shoal.protocol.requests import (
    DeleteItem,
    GetItems,
    ListNamespaces,
    PutItem,
    RankItems,
    SearchItems,
)
from shoal.values.vectors import pack


class PutBody(Struct, forbid_unknown_fields=True, kw_only=True):
    value: Raw
    ttl_s: Annotated[float, Meta(gt=0, le=2**40)] | None = None  # How long it is shown.
    expect: str | None = None  # The version it must have; "" if it must not be there.
    vectors: list[list[float]] = []  # What a search with a `vector` compares.


class PutView(Struct):
    version: str


class DeleteQuery(WriteQuery, forbid_unknown_fields=True):
    expect: str | None = None


class DeletedView(Struct):
    deleted: bool


class ItemSiblingView(Struct):
    value: Raw
    wall_ms: int


class ItemView(Struct):
    namespace: list[str]
    key: str
    value: Raw
    version: str
    created_ms: int
    updated_ms: int
    expires_ms: int | None
    siblings: list[ItemSiblingView]  # Values that were put concurrently.
    score: float | None = None  # How near it is, of a search with a `vector`: -1 to 1.


class SearchBody(Struct, forbid_unknown_fields=True):
    namespace: list[str]  # One label or more.
    filter: dict[str, Raw] | None = None
    vector: list[float] | None = None  # Those that have vectors of its length, the nearest first.
    prefix: list[str] | None = None  # With which whole namespaces begin; "*" is any label.
    suffix: list[str] | None = None
    limit: Annotated[int, Meta(ge=1)] = 100
    offset: Annotated[int, Meta(ge=0)] = 0
    after: str = ""  # The cursor of an earlier page.
    explain: bool = False  # Say how the page was found.


class PlanView(Struct):
    how: Literal["scan", "lookup", "stream"]  # Of all items, of what an index lists, or of an index in order.
    field: str  # Whose index; empty for a scan.
    index_rows: int  # That were read.
    item_rows: int


class SearchView(Struct):
    items: list[ItemView]
    cursor: str
    more: bool  # Ask again with after=cursor, and offset less what was skipped; a page may be empty and not the last.
    skipped: int
    plan: PlanView | None = None


class NamespacesBody(Struct, forbid_unknown_fields=True):
    prefix: list[str]  # One label or more; "*" after the first is any label.
    suffix: list[str] | None = None
    max_depth: Annotated[int, Meta(ge=1)] | None = None
    limit: Annotated[int, Meta(ge=1)] = 100
    after: str = ""


class NamespacesView(Struct):
    namespaces: list[list[str]]
    cursor: str
    more: bool


async def get(exchange: Exchange) -> web.Response:
    first, rest = split(_namespace(exchange))
    key = exchange.name("key")
    request = GetItems(exchange.name("space"), first, [(rest, key)])
    reply = await exchange.call(request, stale=exchange.query(ReadQuery).stale)
    if reply.items[0] is None:
        raise NotFound(f"there is no item {key!r} in {'.'.join([first, *rest])!r}, or it has expired.")
    exchange.version = reply.items[0].version
    return exchange.answer(view(exchange, reply.items[0]))


async def put(exchange: Exchange) -> web.Response:
    body = await exchange.body(PutBody)
    body.expect = exchange.expected(body.expect)
    reply = await exchange.call(put_request(exchange, exchange.name("space"), _namespace(exchange), exchange.name("key"), body))
    exchange.version = reply.version
    return exchange.answer(PutView(reply.version))


async def delete(exchange: Exchange) -> web.Response:
    expect = exchange.expected(exchange.query(DeleteQuery).expect)
    reply = await exchange.call(delete_request(exchange.name("space"), _namespace(exchange), exchange.name("key"), expect))
    return exchange.answer(DeletedView(reply.deleted))


async def search(exchange: Exchange) -> web.Response:
    body = await exchange.body(SearchBody)
    first, rest = split(body.namespace)
    filter = exchange.stored_map(body.filter) if body.filter else b""
    matches = _matches(body.prefix, body.suffix)
    if body.vector is not None:
        if body.after or body.explain:
            raise InvalidInput(
                "a search with a vector goes on by its `offset`, and has no plan: leave out `after` and `explain`."
            )
        return await _nearest(
            exchange,
            RankItems(exchange.name("space"), first, rest, pack(body.vector), filter, body.limit, body.offset, matches),
        )
    cursor = opaque(body.after, "after") if body.after else b""
    request = SearchItems(exchange.name("space"), first, rest, filter, body.limit, body.offset, cursor, body.explain, matches)
    reply = await exchange.call(request, stale=exchange.query(ReadQuery).stale)
    found = [view(exchange, item) for item in reply.items]
    plan = None if reply.plan is None else PlanView(*msgspec.structs.astuple(reply.plan))
    return exchange.answer(SearchView(found, shown_opaque(reply.cursor), reply.more, reply.skipped, plan))


async def _nearest(exchange: Exchange, request: RankItems) -> web.Response:
    reply = await exchange.call(request, stale=exchange.query(ReadQuery).stale)
    found = [view(exchange, ranked.item, ranked.score) for ranked in reply.items]
    return exchange.answer(SearchView(found, "", reply.more, request.skip))


async def namespaces(exchange: Exchange) -> web.Response:
    body = await exchange.body(NamespacesBody)
    first, _ = split(body.prefix)
    matches = _matches(body.prefix, body.suffix)
    cursor = opaque(body.after, "after") if body.after else b""
    request = ListNamespaces(exchange.name("space"), first, matches, body.max_depth, body.limit, cursor)
    reply = await exchange.call(request, stale=exchange.query(ReadQuery).stale)
    return exchange.answer(NamespacesView(reply.namespaces, shown_opaque(reply.cursor), reply.more))


def _matches(prefix: list[str] | None, suffix: list[str] | None) -> list[tuple[requests.Match, list[str]]]:
    wanted: tuple[tuple[requests.Match, list[str] | None], ...] = (("prefix", prefix), ("suffix", suffix))
    return [(match, labels) for match, labels in wanted if labels]


def put_request(exchange: Exchange, space: str, namespace: Sequence[str], key: str, body: PutBody) -> PutItem:
    first, rest = split(namespace)
    ttl_ms = None if body.ttl_s is None else max(1, int(body.ttl_s * 1000))
    vectors = [pack(vector) for vector in body.vectors]
    return PutItem(space, first, rest, key, exchange.stored(body.value), ttl_ms, body.expect, vectors)


def delete_request(space: str, namespace: Sequence[str], key: str, expect: str | None) -> DeleteItem:
    first, rest = split(namespace)
    return DeleteItem(space, first, rest, key, expect)


def _namespace(exchange: Exchange) -> list[str]:
    return exchange.name("namespace").split(".")


def split(namespace: Sequence[str]) -> tuple[str, list[str]]:
    if not namespace:
        raise InvalidInput("a namespace has one label or more. Nothing was written. `GET …/items` lists the first labels.")
    return namespace[0], list(namespace[1:])


def view(exchange: Exchange, item: requests.Item, score: float | None = None) -> ItemView:
    siblings = [ItemSiblingView(exchange.shown(sibling.value), sibling.wall_ms) for sibling in item.siblings]
    value = exchange.shown(item.value)
    times = item.created_ms, item.updated_ms, item.expires_ms
    return ItemView(item.namespace, item.key, value, item.version, *times, siblings, score)
