"""Documents over HTTP."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web
from msgspec import Raw, Struct

from shoal.api.http.exchange import JSON, JSON_PATCH, MSGPACK, MSGPACK_TYPES, Exchange, ReadQuery, Seconds, WriteQuery, no_json
from shoal.errors import InvalidInput
from shoal.protocol.requests import (
    Compact,
    DeleteDocument,
    DocumentJson,
    Patch,
    ReadConflicts,
    ReadDocumentJson,
    Replace,
    document_version,
)


class EditQuery(WriteQuery, forbid_unknown_fields=True):
    """The parameters of an edit."""

    author: str = ""


class ConflictView(Struct):
    """One value that lost to a concurrent assignment."""

    path: list[str]  # "*" stands for an element of an array.
    lost: Raw
    lost_by: str
    stands: Raw
    stands_by: str
    wall_ms: int


class GoneView(Struct):
    """The result of a deletion."""

    existed: bool


class ConflictsView(Struct):
    """The values that concurrent assignments overwrote."""

    conflicts: list[ConflictView]  # The latest first.
    more: bool


class CompactBody(Struct, forbid_unknown_fields=True):
    """How old an update must be to be compacted."""

    older_than_s: Seconds = 0.0  # Only compact updates that are older than so many seconds.


class CompactView(Struct):
    """The result of a compaction."""

    updates: int  # How many updates were replaced by one.
    bytes: int  # The size of that one; 0 if there was nothing to do.
    more: bool  # Whether there are more to compact, for another request.


class PatchStep(Struct, forbid_unknown_fields=True, omit_defaults=True):
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


async def conflicts(exchange: Exchange) -> web.Response:
    """List the values that concurrent assignments overwrote."""
    request = ReadConflicts(exchange.name("space"), exchange.name("document"))
    reply = await exchange.call(request, stale=exchange.query(ReadQuery).stale)
    views = [
        ConflictView(
            lost.path, exchange.shown(lost.lost), lost.lost_by, exchange.shown(lost.stands), lost.stands_by, lost.wall_ms
        )
        for lost in reply.overwritten
    ]
    return exchange.answer(ConflictsView(views, reply.more))


async def compact(exchange: Exchange) -> web.Response:
    """Replace old updates of a document by one, a bounded number per request."""
    body = await exchange.body(CompactBody)
    reply = await exchange.call(Compact(exchange.name("space"), exchange.name("document"), int(body.older_than_s * 1000)))
    return exchange.answer(CompactView(reply.updates, reply.bytes, reply.more))


async def delete_document(exchange: Exchange) -> web.Response:
    """Delete a document on every node. It is no error if there is none."""
    reply = await exchange.call(DeleteDocument(exchange.name("space"), exchange.name("document"), exchange.expected(None)))
    return exchange.answer(GoneView(reply.existed))


def _document(exchange: Exchange, reply: object) -> web.Response:
    assert isinstance(reply, DocumentJson)
    exchange.version = document_version(reply.json)
    if exchange.answers_packed:
        return web.Response(body=msgspec.msgpack.encode(msgspec.json.decode(reply.json)), content_type=MSGPACK)
    return web.Response(body=reply.json, content_type=JSON)
