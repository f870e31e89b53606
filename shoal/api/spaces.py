"""The spaces of a node and the objects of a space, over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from shoal.api.http.exchange import Exchange
from shoal.protocol.requests import ListObjects, ListSpaces, ObjectKind
from shoal.workflows import spaces


class SpacesQuery(Struct, forbid_unknown_fields=True):
    """A page of the spaces."""

    after: str | None = None
    limit: Annotated[int, Meta(ge=1)] = 1000


class SpacesView(Struct):
    """A page of the names of spaces, in byte order."""

    spaces: list[str]
    more: bool


class ObjectsQuery(SpacesQuery, forbid_unknown_fields=True):
    """A page of a space's objects, by the beginning of their names."""

    prefix: str = ""


class NamesView(Struct):
    """A page of the names of objects of one kind."""

    names: list[str]  # In byte order.
    more: bool  # Ask again with after=names[-1].


class SpaceDeletedView(Struct):
    """The result of deleting a space."""

    deleted: dict[str, int]  # Kind → how many objects were deleted; of items, how many items.
    left: int  # Objects that are there now, because they were written meanwhile, or because there is `more` to delete.
    more: bool  # Send the request again to delete the rest.


async def delete_space(exchange: Exchange) -> web.Response:
    """Delete the objects of a space, a bounded number in one request."""
    config = exchange.config
    found = await spaces.delete_space(exchange.connection, exchange.name("space"), objects_max=config.space_deletes_max)
    return exchange.answer(SpaceDeletedView(found.deleted, found.left, found.more))


async def list_spaces(exchange: Exchange) -> web.Response:
    """List the spaces that this node holds."""
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
