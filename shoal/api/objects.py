"""Documents, counters and registers over HTTP."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web
from msgspec import Raw, Struct

from shoal.api.exchange import JSON, JSON_PATCH, MSGPACK, Exchange, ReadQuery
from shoal.api.opaque import opaque, shown_opaque
from shoal.errors import InvalidInput, InvalidValue
from shoal.protocol.requests import (
    Add,
    Added,
    Assign,
    Assigned,
    CounterValue,
    DocumentJson,
    Patch,
    ReadCounter,
    ReadDocumentJson,
    ReadRegister,
    Siblings,
)


class PatchStep(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One step of a JSON Patch (RFC 6902), for the schema; the data type checks what it means."""

    op: str
    path: str
    value: Any = None
    from_: str | None = msgspec.field(default=None, name="from")


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


async def read_document(exchange: Exchange) -> web.Response:
    reply = await exchange.call(
        ReadDocumentJson(exchange.name("space"), exchange.name("document")), stale=exchange.query(ReadQuery).stale
    )
    return _document(exchange, reply)


async def patch_document(exchange: Exchange) -> web.Response:
    patch = await exchange.raw_body(JSON_PATCH, JSON)
    try:
        msgspec.json.decode(patch, type=list[Raw])
    except msgspec.ValidationError:
        raise InvalidInput("a JSON Patch is an array of steps (RFC 6902). Nothing was written.") from None
    except (msgspec.DecodeError, RecursionError) as reason:
        raise InvalidValue(f"the body is not valid JSON: {reason}. Nothing was written.") from None
    reply = await exchange.call(Patch(exchange.name("space"), exchange.name("document"), patch))
    return _document(exchange, reply)


def _document(exchange: Exchange, reply: object) -> web.Response:
    assert isinstance(reply, DocumentJson)
    if exchange.answers_packed:
        return web.Response(body=msgspec.msgpack.encode(msgspec.json.decode(reply.json)), content_type=MSGPACK)
    return web.Response(body=reply.json, content_type=JSON)


async def read_counter(exchange: Exchange) -> web.Response:
    reply = await exchange.call(
        ReadCounter(exchange.name("space"), exchange.name("counter")), stale=exchange.query(ReadQuery).stale
    )
    assert isinstance(reply, CounterValue)
    return exchange.answer(CounterView(reply.value))


async def add(exchange: Exchange) -> web.Response:
    body = await exchange.body(AddBody)
    reply = await exchange.call(Add(exchange.name("space"), exchange.name("counter"), body.add, body.key))
    assert isinstance(reply, Added)
    return exchange.answer(AddedView(reply.value, reply.added))


async def read_register(exchange: Exchange) -> web.Response:
    reply = await exchange.call(
        ReadRegister(exchange.name("space"), exchange.name("register")), stale=exchange.query(ReadQuery).stale
    )
    assert isinstance(reply, Siblings)
    views = [SiblingView(exchange.shown(sibling.value), sibling.wall_ms) for sibling in reply.siblings]
    latest = views[0].value if views else exchange.shown(b"\xc0")
    return exchange.answer(RegisterView(latest, views, shown_opaque(reply.context), reply.version))


async def assign(exchange: Exchange) -> web.Response:
    body = await exchange.body(AssignBody)
    context = None if body.context is None else opaque(body.context, "context")
    request = Assign(exchange.name("space"), exchange.name("register"), exchange.stored(body.value), context, body.expect)
    reply = await exchange.call(request)
    assert isinstance(reply, Assigned)
    return exchange.answer(AssignedView(reply.siblings, shown_opaque(reply.context), reply.version))
