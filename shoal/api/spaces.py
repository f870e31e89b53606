"""The spaces of a node and the objects of a space, over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from shoal.api.http.exchange import Exchange
from shoal.protocol.requests import ListObjects, ListSpaces, ObjectKind, Quota, QuotaView, ReadQuota
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


class QuotaLimits(Struct, forbid_unknown_fields=True):
    """The limits of a space; 0: none."""

    bytes: Annotated[int, Meta(ge=0)] | None = None  # Of its rows. Null, here and below: as each node's configuration says.
    objects: Annotated[int, Meta(ge=0)] | None = None
    writes_per_s: Annotated[float, Meta(ge=0)] | None = None  # At each node.
    watchers: Annotated[int, Meta(ge=0)] | None = None  # At each node.
    documents: Annotated[int, Meta(ge=0)] | None = None  # Open at each node.


class QuotaDocument(Struct):
    """The quota of a space, as the node that answers applies it."""

    space: str
    limits: Quota  # In force; 0: no limit.
    used: Quota
    recorded: dict[str, float]  # The limits that are recorded for this space.
    is_counted: bool  # False: bytes and objects are being counted, and are those counted so far.
    trouble: str  # What is wrong with the record, and counts as not recorded; else empty.


async def read_quota(exchange: Exchange) -> web.Response:
    """What a space may use at this node, and what it uses."""
    return exchange.answer(_quota(await exchange.call(ReadQuota(exchange.name("space")))))


async def set_quota(exchange: Exchange) -> web.Response:
    """Replace the quota of a space, on all nodes."""
    body = await exchange.body(QuotaLimits)
    found = await spaces.set_quota(
        exchange.connection,
        exchange.name("space"),
        bytes=body.bytes,
        objects=body.objects,
        writes_per_s=body.writes_per_s,
        watchers=body.watchers,
        documents=body.documents,
        durability=exchange.durability,
    )
    return exchange.answer(_quota(found))


def _quota(found: QuotaView) -> QuotaDocument:
    return QuotaDocument(found.space, found.limits, found.used, found.recorded, found.is_counted, found.trouble)


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
