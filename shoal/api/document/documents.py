"""Documents over HTTP."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web
from msgspec import Raw, Struct

from shoal.api.http.exchange import (
    JSON,
    JSON_PATCH,
    MSGPACK,
    MSGPACK_TYPES,
    Exchange,
    ReadQuery,
    WriteQuery,
    no_json,
    too_many_values,
)
from shoal.errors import InvalidInput
from shoal.protocol.requests import DocumentJson, Patch, ReadDocumentJson, Replace, document_version
from shoal.values.stepped import has_more_values
from shoal.values.work import NODES_MAX


class EditQuery(WriteQuery, forbid_unknown_fields=True):
    """The parameters of an edit."""

    author: str = ""


class PatchOperation(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One step of a JSON Patch (RFC 6902). It describes the body only: the node checks the steps."""

    op: str
    path: str
    value: Any = None
    from_: str | None = msgspec.field(default=None, name="from")


async def read_document(exchange: Exchange) -> web.Response:
    """Read a document as JSON. Its content's version is the ETag."""
    reply = await exchange.call(
        ReadDocumentJson(exchange.name("space"), exchange.name("document")), stale=exchange.query(ReadQuery).stale
    )
    return _document(exchange, reply)


async def patch_document(exchange: Exchange) -> web.Response:
    """Apply a JSON Patch as an edit in place, so that concurrent edits merge.

    Raises:
        InvalidInput: the body is not an array, or a step is malformed.
        Conflict: a `test` failed, or a path is not there; nothing was written.
        DocumentChanged: the content is not the version that `If-Match` names; nothing was written.
    """
    patch = await exchange.raw_body(JSON_PATCH, JSON)
    if has_more_values(patch, NODES_MAX):
        raise too_many_values()
    try:
        msgspec.json.decode(patch, type=list[Raw])
    except msgspec.ValidationError:
        raise InvalidInput("a JSON Patch must be an array of steps (RFC 6902). Nothing was written.") from None
    except (msgspec.DecodeError, RecursionError) as reason:
        raise no_json(patch, reason) from None
    author = exchange.query(EditQuery).author
    expect = exchange.expected(None)
    reply = await exchange.call(Patch(exchange.name("space"), exchange.name("document"), patch, author, expect))
    return _document(exchange, reply)


async def put_document(exchange: Exchange) -> web.Response:
    """Edit a document in place until its content equals the body.

    Raises:
        DocumentChanged: the content is not the version that `If-Match` names; nothing was written.
    """
    content = exchange.as_json(Raw(await exchange.raw_body(JSON, *MSGPACK_TYPES)))
    author = exchange.query(EditQuery).author
    expect = exchange.expected(None)
    reply = await exchange.call(Replace(exchange.name("space"), exchange.name("document"), content, author, expect))
    return _document(exchange, reply)


def _document(exchange: Exchange, reply: object) -> web.Response:
    assert isinstance(reply, DocumentJson)
    exchange.version = document_version(reply.json)
    if exchange.answers_packed:
        return web.Response(body=msgspec.msgpack.encode(msgspec.json.decode(reply.json)), content_type=MSGPACK)
    return web.Response(body=reply.json, content_type=JSON)
