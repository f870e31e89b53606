"""Sets over HTTP."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Raw, Struct, field

from shoal.api.exchange import Exchange, ReadQuery
from shoal.api.opaque import opaque, shown_opaque
from shoal.protocol.requests import AlterSet, ContainsMembers, ReadSet, SetMembers


class AlterBody(Struct, forbid_unknown_fields=True, kw_only=True):
    add: list[Raw] = field(default_factory=list)
    remove: list[Raw] = field(default_factory=list)  # What is both removed and added is a member afterwards.


class AlteredView(Struct):
    added: int  # Elements that were no members before.
    removed: int  # Elements that were.
    size: int


class MembersQuery(ReadQuery, forbid_unknown_fields=True):
    after: str = ""  # The cursor of an earlier page.
    limit: Annotated[int, Meta(ge=1)] = 1000


class MembersView(Struct):
    members: list[Raw]
    size: int  # Of the whole set.
    cursor: str
    more: bool  # Ask again with after=cursor.


class ContainsBody(Struct, forbid_unknown_fields=True):
    elements: list[Raw]


class ContainsView(Struct):
    contained: list[bool]


async def read(exchange: Exchange) -> web.Response:
    query = exchange.query(MembersQuery)
    after = opaque(query.after, "after") if query.after else b""
    request = ReadSet(exchange.name("space"), exchange.name("set"), after, query.limit)
    reply = await exchange.call(request, stale=query.stale)
    return exchange.answer(members_view(exchange, reply, query.after))


def members_view(exchange: Exchange, reply: SetMembers, after: str) -> MembersView:
    cursor = shown_opaque(reply.members[-1]) if reply.members else after
    return MembersView([exchange.shown(member) for member in reply.members], reply.size, cursor, reply.more)


async def alter(exchange: Exchange) -> web.Response:
    body = await exchange.body(AlterBody)
    reply = await exchange.call(alter_request(exchange, exchange.name("space"), exchange.name("set"), body))
    return exchange.answer(AlteredView(reply.added, reply.removed, reply.size))


async def contains(exchange: Exchange) -> web.Response:
    body = await exchange.body(ContainsBody)
    elements = [exchange.stored(element) for element in body.elements]
    request = ContainsMembers(exchange.name("space"), exchange.name("set"), elements)
    reply = await exchange.call(request, stale=exchange.query(ReadQuery).stale)
    return exchange.answer(ContainsView(reply.contained))


def alter_request(exchange: Exchange, space: str, name: str, body: AlterBody) -> AlterSet:
    add, remove = [exchange.stored(each) for each in body.add], [exchange.stored(each) for each in body.remove]
    return AlterSet(space, name, add, remove)
