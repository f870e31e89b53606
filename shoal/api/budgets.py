"""Budgets over HTTP."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from shoal.api.exchange import Exchange, ReadQuery
from shoal.protocol.requests import BudgetState, DrawRights, Grant, ReadBudget, ReleaseRights, Spend


class AmountBody(Struct, forbid_unknown_fields=True):
    amount: Annotated[int, Meta(ge=1)]
    key: str | None = None  # Of all with one key, one counts.


class GrantedView(Struct):
    remaining: int
    granted: bool


class SpentView(Struct):
    remaining: int
    rights: int  # What of that the node may spend without asking others.
    spent: bool


class DrawBody(Struct, forbid_unknown_fields=True):
    amount: Annotated[int, Meta(ge=0)]  # Rights that the node is to have.
    reclaim: str = ""  # The origin of a holder that is known to be gone.


class ReleaseBody(Struct, forbid_unknown_fields=True):
    amount: Annotated[int, Meta(ge=1)]


class RightsView(Struct):
    moved: int
    rights: int


class HolderView(Struct):
    origin: str
    node: str
    rights: int


class BudgetConflictView(Struct):
    what: str  # "grant" or "spend".
    key: str
    amount: int


class BudgetView(Struct):
    granted: int
    spent: int
    remaining: int
    pool: int  # What nobody has drawn.
    rights: int  # What the node may spend without asking others.
    holders: list[HolderView]
    conflicts: list[BudgetConflictView]  # What does not count, for another amount has its key.


async def read(exchange: Exchange) -> web.Response:
    request = ReadBudget(exchange.name("space"), exchange.name("budget"))
    reply = await exchange.call(request, stale=exchange.query(ReadQuery).stale)
    return exchange.answer(budget_view(reply))


def budget_view(reply: BudgetState) -> BudgetView:
    holders = [HolderView(holder.origin, holder.node, holder.rights) for holder in reply.holders]
    conflicts = [BudgetConflictView(conflict.what, conflict.key, conflict.amount) for conflict in reply.conflicts]
    return BudgetView(reply.granted, reply.spent, reply.remaining, reply.pool, reply.rights, holders, conflicts)


async def grant(exchange: Exchange) -> web.Response:
    body = await exchange.body(AmountBody)
    reply = await exchange.call(Grant(exchange.name("space"), exchange.name("budget"), body.amount, body.key))
    return exchange.answer(GrantedView(reply.remaining, reply.granted))


async def spend(exchange: Exchange) -> web.Response:
    body = await exchange.body(AmountBody)
    reply = await exchange.call(Spend(exchange.name("space"), exchange.name("budget"), body.amount, body.key))
    return exchange.answer(SpentView(reply.remaining, reply.rights, reply.spent))


async def draw(exchange: Exchange) -> web.Response:
    body = await exchange.body(DrawBody)
    request = DrawRights(exchange.name("space"), exchange.name("budget"), body.amount, reclaimed=body.reclaim)
    return await _moved(exchange, request)


async def release(exchange: Exchange) -> web.Response:
    body = await exchange.body(ReleaseBody)
    return await _moved(exchange, ReleaseRights(exchange.name("space"), exchange.name("budget"), body.amount))


async def _moved(exchange: Exchange, request: DrawRights | ReleaseRights) -> web.Response:
    reply = await exchange.call(request)
    return exchange.answer(RightsView(reply.moved, reply.rights))
