"""Counters and registers over HTTP."""

from __future__ import annotations

from aiohttp import web
from msgspec import Raw, Struct

from shoal.api.exchange import Exchange, ReadQuery
from shoal.api.opaque import opaque, shown_opaque
from shoal.protocol.requests import (
    Add,
    Assign,
    ReadCounter,
    ReadRegister,
    Siblings,
)


class AddBody(Struct, forbid_unknown_fields=True):
    add: int
    key: str | None = None


class AddedView(Struct):
    value: int
    added: bool


class CounterView(Struct):
    value: int


class AssignBody(Struct, forbid_unknown_fields=True):
    value: Raw
    context: str | None = None
    expect: str | None = None  # The version it must have; "" if it must have no value.


class AssignedView(Struct):
    siblings: int
    context: str
    version: str


class SiblingView(Struct):
    value: Raw
    wall_ms: int


class RegisterView(Struct):
    value: Raw  # Of the first sibling; null if it was never set.
    siblings: list[SiblingView]
    context: str
    version: str  # Another one for other values; "" if it was never set.


async def read_counter(exchange: Exchange) -> web.Response:
    reply = await exchange.call(
        ReadCounter(exchange.name("space"), exchange.name("counter")), stale=exchange.query(ReadQuery).stale
    )
    return exchange.answer(CounterView(reply.value))


async def add(exchange: Exchange) -> web.Response:
    body = await exchange.body(AddBody)
    reply = await exchange.call(Add(exchange.name("space"), exchange.name("counter"), body.add, body.key))
    return exchange.answer(AddedView(reply.value, reply.added))


async def read_register(exchange: Exchange) -> web.Response:
    reply = await exchange.call(
        ReadRegister(exchange.name("space"), exchange.name("register")), stale=exchange.query(ReadQuery).stale
    )
    exchange.version = reply.version
    return exchange.answer(register_view(exchange, reply))


def register_view(exchange: Exchange, reply: Siblings) -> RegisterView:
    views = [SiblingView(exchange.shown(sibling.value), sibling.wall_ms) for sibling in reply.siblings]
    latest = views[0].value if views else exchange.shown(b"\xc0")
    return RegisterView(latest, views, shown_opaque(reply.context), reply.version)


async def assign(exchange: Exchange) -> web.Response:
    body = await exchange.body(AssignBody)
    context = None if body.context is None else opaque(body.context, "context")
    expect = exchange.expected(body.expect)
    request = Assign(exchange.name("space"), exchange.name("register"), exchange.stored(body.value), context, expect)
    reply = await exchange.call(request)
    exchange.version = reply.version
    return exchange.answer(AssignedView(reply.siblings, shown_opaque(reply.context), reply.version))
