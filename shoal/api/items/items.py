"""Memory items over HTTP.

Law: in a path, a namespace is one part, its labels joined by periods, which no
label contains; in a body it is an array of its labels.
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
from shoal.protocol.fields import Few, Labels
from shoal.protocol.requests import (
    DeleteItem,
    DeleteItems,
    GetItems,
    ListNamespaces,
    PutItem,
    RankItems,
    SearchItems,
)
from shoal.values.vectors import pack


class PutBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """An item's value, and what a search finds it by."""

    value: Raw
    ttl_s: Annotated[float, Meta(gt=0, le=2**40)] | None = None  # After so many seconds it expires.
    expect: str | None = None  # The version that it must have; "" if it must not exist.
    vectors: Few[list[float]] = []  # The vectors that a search with a `vector` compares.


class PutView(Struct):
    """The version that was written."""

    version: str


class DeleteQuery(WriteQuery, forbid_unknown_fields=True):
    """The parameters of a deletion."""

    expect: str | None = None


class ItemDeletedView(Struct):
    """The result of a deletion."""

    deleted: bool


class ItemsDeletedView(Struct):
    """The number of items that were deleted."""

    deleted: int


class ItemSiblingView(Struct):
    """A value that was put concurrently with the one shown."""

    value: Raw
    wall_ms: int


class ItemView(Struct):
    """A memory item."""

    namespace: list[str]
    key: str
    value: Raw
    version: str
    created_ms: int
    updated_ms: int
    expires_ms: int | None
    siblings: list[ItemSiblingView]  # Values that were put concurrently.
    score: float | None = None  # In a search with a `vector`, how near it is: -1 to 1.


class SearchBody(Struct, forbid_unknown_fields=True):
    """The items that are wanted."""

    namespace: Labels  # One label or more.
    filter: dict[str, Raw] | None = None
    vector: list[float] | None = None  # Rank items that have vectors of this length, the nearest first.
    prefix: Labels | None = None  # The labels that whole namespaces begin with; "*" is any label.
    suffix: Labels | None = None
    limit: Annotated[int, Meta(ge=1)] = 100
    offset: Annotated[int, Meta(ge=0)] = 0
    after: str = ""  # The cursor of the previous page.
    explain: bool = False  # Say how the page was found.


class PlanView(Struct):
    """How a page was found, and its cost."""

    how: Literal["scan", "lookup", "stream"]  # All items, the items that an index lists, or an index in its order.
    field: str  # The field whose index was used; empty for a scan.
    index_rows: int  # Rows of the index that were read.
    item_rows: int


class SearchView(Struct):
    """A page of items."""

    items: list[ItemView]
    cursor: str
    more: bool  # Ask again with after=cursor, and offset less `skipped`. A page may be empty and not the last.
    skipped: int
    plan: PlanView | None = None


class NamespacesBody(Struct, forbid_unknown_fields=True):
    """The namespaces that are wanted."""

    prefix: Labels  # The labels that namespaces begin with, one or more; "*" after the first is any label.
    suffix: Labels | None = None
    max_depth: Annotated[int, Meta(ge=1)] | None = None
    limit: Annotated[int, Meta(ge=1)] = 100
    after: str = ""


class NamespacesView(Struct):
    """A page of namespaces, each as its labels."""

    namespaces: list[list[str]]
    cursor: str
    more: bool


async def get(exchange: Exchange) -> web.Response:
    """Read one item.

    Raises:
        NotFound: there is none, or it has expired.
    """
    first, rest = split(_namespace(exchange))
    key = exchange.name("key")
    request = GetItems(exchange.name("space"), first, [(rest, key)])
    reply = await exchange.call(request, stale=exchange.query(ReadQuery).stale)
    if reply.items[0] is None:
        raise NotFound(f"there is no item {key!r} in {'.'.join([first, *rest])!r}, or it has expired.")
    exchange.version = reply.items[0].version
    return exchange.answer(view(exchange, reply.items[0]))


async def put(exchange: Exchange) -> web.Response:
    """Put an item.

    Raises:
        ItemChanged: it is not the version that `expect` or `If-Match` names; nothing was written.
    """
    body = await exchange.body(PutBody)
    body.expect = exchange.expected(body.expect)
    reply = await exchange.call(put_request(exchange, exchange.name("space"), _namespace(exchange), exchange.name("key"), body))
    exchange.version = reply.version
    return exchange.answer(PutView(reply.version))


async def delete(exchange: Exchange) -> web.Response:
    """Delete an item. It is no error if there is none.

    Raises:
        ItemChanged: it is not the version that `expect` or `If-Match` names; nothing was written.
    """
    expect = exchange.expected(exchange.query(DeleteQuery).expect)
    reply = await exchange.call(delete_request(exchange.name("space"), _namespace(exchange), exchange.name("key"), expect))
    return exchange.answer(ItemDeletedView(reply.deleted))


async def delete_all(exchange: Exchange) -> web.Response:
    """Delete all items of a namespace and those below it."""
    first, rest = split(_namespace(exchange))
    reply = await exchange.call(DeleteItems(exchange.name("space"), first, rest))
    return exchange.answer(ItemsDeletedView(reply.deleted))


async def search(exchange: Exchange) -> web.Response:
    """Find items by a filter, or rank them by a vector.

    Raises:
        InvalidInput: the namespace is empty, or a search with a vector has a cursor or asks for a plan.
    """
    body = await exchange.body(SearchBody)
    first, rest = split(body.namespace)
    filter = exchange.stored_map(body.filter) if body.filter else b""
    matches = _matches(body.prefix, body.suffix)
    if body.vector is not None:
        if body.after or body.explain:
            raise InvalidInput("a search with a vector is paged by `offset` and has no plan. Leave out `after` and `explain`.")
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
    """List the namespaces that hold items."""
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
    """The request of a `PutBody`."""
    first, rest = split(namespace)
    ttl_ms = None if body.ttl_s is None else max(1, int(body.ttl_s * 1000))
    vectors = [pack(vector) for vector in body.vectors]
    return PutItem(space, first, rest, key, exchange.stored(body.value), ttl_ms, body.expect, vectors)


def delete_request(space: str, namespace: Sequence[str], key: str, expect: str | None) -> DeleteItem:
    """The request that deletes an item."""
    first, rest = split(namespace)
    return DeleteItem(space, first, rest, key, expect)


def _namespace(exchange: Exchange) -> list[str]:
    return exchange.name("namespace").split(".")


def split(namespace: Sequence[str]) -> tuple[str, list[str]]:
    """The first label of a namespace, which decides the partition, and the others.

    Raises:
        InvalidInput: the namespace has no label.
    """
    if not namespace:
        raise InvalidInput("a namespace has one label or more. Nothing was written. `GET …/items` lists the first labels.")
    return namespace[0], list(namespace[1:])


def view(exchange: Exchange, item: requests.Item, score: float | None = None) -> ItemView:
    """An item as it is shown over HTTP; `score` is that of a search with a vector."""
    siblings = [ItemSiblingView(exchange.shown(sibling.value), sibling.wall_ms) for sibling in item.siblings]
    value = exchange.shown(item.value)
    times = item.created_ms, item.updated_ms, item.expires_ms
    return ItemView(item.namespace, item.key, value, item.version, *times, siblings, score)
