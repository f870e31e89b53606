"""A page of a set over HTTP."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Raw, Struct

from shoal.api.http.exchange import Exchange, ReadQuery
from shoal.api.http.opaque import opaque, shown_opaque
from shoal.protocol.requests import ReadSet, SetMembers


class MembersQuery(ReadQuery, forbid_unknown_fields=True):
    """A page of a set."""

    after: str = ""  # The cursor of the previous page.
    limit: Annotated[int, Meta(ge=1)] = 1000


class MembersView(Struct):
    """A page of a set's members."""

    members: list[Raw]
    size: int  # The number of members of the whole set.
    cursor: str
    more: bool  # Ask again with after=cursor.


async def read(exchange: Exchange) -> web.Response:
    """Read a page of a set."""
    query = exchange.query(MembersQuery)
    after = opaque(query.after, "after") if query.after else b""
    request = ReadSet(exchange.name("space"), exchange.name("set"), after, query.limit)
    reply = await exchange.call(request, stale=query.stale)
    return exchange.answer(members_view(exchange, reply, query.after))


def members_view(exchange: Exchange, reply: SetMembers, after: str) -> MembersView:
    """A page as it is shown over HTTP; `after` is its cursor if it is empty."""
    cursor = shown_opaque(reply.members[-1]) if reply.members else after
    return MembersView([exchange.shown(member) for member in reply.members], reply.size, cursor, reply.more)
