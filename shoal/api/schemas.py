"""Replicated JSON Schemas over HTTP, and what the heads of a thread break."""

from __future__ import annotations

from aiohttp import web
from msgspec import Raw, Struct

from shoal.api.exchange import Exchange, ReadQuery
from shoal.protocol.requests import PutSchema, ReadSchema, ReadViolations, SchemaVersion


class SchemaBody(Struct, forbid_unknown_fields=True):
    version: int
    schema: Raw  # A JSON Schema.
    threads: str = ""  # Which threads must keep it, if it is the newest: a name, a prefix and `*`, or nothing.


class SchemaView(Struct):
    version: int
    schema: Raw
    threads: str
    wall_ms: int
    rivals: int  # Other contents that were put concurrently under this version, and do not count.


class SchemaVersionsView(Struct):
    versions: list[SchemaView]  # Oldest first.


class ViolationView(Struct):
    checkpoint: str
    branch: str
    schema: str
    version: int
    path: str
    why: str


class ViolationsView(Struct):
    violations: list[ViolationView]


async def put(exchange: Exchange) -> web.Response:
    body = await exchange.body(SchemaBody)
    text = exchange.as_json(body.schema)
    reply = await exchange.call(PutSchema(exchange.name("space"), exchange.name("schema"), body.version, text, body.threads))
    return exchange.answer(_view(exchange, reply))


async def read(exchange: Exchange) -> web.Response:
    reply = await exchange.call(
        ReadSchema(exchange.name("space"), exchange.name("schema")), stale=exchange.query(ReadQuery).stale
    )
    return exchange.answer(SchemaVersionsView([_view(exchange, version) for version in reply.versions]))


async def violations(exchange: Exchange) -> web.Response:
    reply = await exchange.call(
        ReadViolations(exchange.name("space"), exchange.name("thread")), stale=exchange.query(ReadQuery).stale
    )
    return exchange.answer(
        ViolationsView([ViolationView(v.checkpoint, v.branch, v.schema, v.version, v.path, v.why) for v in reply.violations])
    )


def _view(exchange: Exchange, found: SchemaVersion) -> SchemaView:
    return SchemaView(found.version, exchange.of_json(found.json), found.threads, found.wall_ms, found.rivals)
