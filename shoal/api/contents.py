"""Documents and files over HTTP.

Files over HTTP: streamed in and out, whole or in part.

Laws:
- A file is never whole in memory: what an upload may hold counts as one body (`Bodies`), and an answer holds one batch.
- A body that ends early, or has another hash than it claims, stores nothing that is shown. An answer that fails half-way is
  aborted, so that nobody takes it for complete.
- The bytes are a user's. A browser runs nothing of them, guesses no type, and shows them in place only if the type is one of
  `_SHOWN`: what others are is saved as a file, and if it is opened all the same, in a sandbox without an origin.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import msgspec
from aiohttp import hdrs, web
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
from shoal.api.http.problems import RangeNotSatisfiable, UnsupportedEncoding, internal
from shoal.errors import InvalidInput, ShoalError
from shoal.kinds.file.flows import UPLOAD_BYTES, Download, Upload, found_file
from shoal.names import check_path
from shoal.protocol.requests import SPACE_FILES, DocumentJson, FileInfo, Patch, ReadDocumentJson, Replace, document_version
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


_BINARY = "application/octet-stream"
_SHOWN = frozenset(
    {"image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "text/plain", "audio/mpeg", "video/mp4"}
)
_SAFE = {"Cache-Control": "private, no-cache", "Accept-Ranges": "bytes"}  # And those of all answers (`origins.SEALED`).
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/=]+):")


class FileDetail(Struct):
    """A file."""

    name: str
    sha256: str  # Of its content: 64 hex digits.
    size: int  # In bytes.
    media_type: str  # Such as image/png.
    stored: int  # When it was put, in milliseconds since 1970.


class StoredFile(Struct):
    """A file that was put."""

    file: FileDetail


async def put(exchange: Exchange) -> web.Response:
    """Store the body as a file. `Repr-Digest` may say the SHA-256 that it must have (RFC 9530)."""
    request = exchange.request
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").strip().lower() != "identity":
        raise UnsupportedEncoding("a file is stored as it is sent. Nothing was written. Send it without a Content-Encoding.")
    name, kind = check_path(exchange.name("name")), request.headers.get(hdrs.CONTENT_TYPE, "") or _BINARY
    expected = _expected(request)
    durability = exchange.query(WriteQuery).durability
    upload = Upload(
        exchange.connection,
        exchange.name("space"),
        _thread(exchange),
        durability=durability,
        aside=asyncio.to_thread,
        source="here",
    )
    try:
        async for piece in exchange.pieces(UPLOAD_BYTES):
            await upload.feed(piece)
        file = await upload.finish(name, kind, expected=expected)
    finally:
        await upload.abandon()
    response = await exchange.answer(StoredFile(_view(file)), status=201)
    response.headers[hdrs.ETAG] = f'"{file.sha256}"'
    return response


async def get(exchange: Exchange) -> web.StreamResponse:
    """Send a file, or the part that `Range` asks for."""
    request = exchange.request
    found = await found_file(
        exchange.connection,
        exchange.name("space"),
        _thread(exchange),
        name=exchange.name("name"),
        stale=exchange.query(ReadQuery).stale,
        proves=False,
    )
    tag = f'"{found.file.sha256}"'
    said = {**_SAFE, **exchange.bookmark_headers(), hdrs.ETAG: tag}
    if tag in [each.strip().removeprefix("W/") for each in request.headers.get(hdrs.IF_NONE_MATCH, "").split(",")]:
        return web.Response(status=304, headers=said)
    asked = _range(request, found.file.size, tag)
    start, stop = asked or (0, found.file.size)
    said |= {hdrs.CONTENT_TYPE: found.file.media_type, hdrs.CONTENT_DISPOSITION: _disposition(found.file)}
    said["Repr-Digest"] = f"sha-256=:{base64.b64encode(bytes.fromhex(found.file.sha256)).decode()}:"
    if asked is not None:
        said[hdrs.CONTENT_RANGE] = f"bytes {start}-{stop - 1}/{found.file.size}"
    response = web.StreamResponse(status=200 if asked is None else 206, headers=said)
    response.content_length = stop - start
    await response.prepare(request)
    if request.method != "HEAD":
        await _send(exchange, response, found, start, stop)
    return response


async def _send(exchange: Exchange, response: web.StreamResponse, found: Download, start: int, stop: int) -> None:
    try:
        async with aclosing(found.read(start, stop)) as pieces:
            async for piece in pieces:
                async with asyncio.timeout(exchange.config.heartbeat_s):
                    await response.write(piece)
    except Exception as reason:  # It cannot be told any more: the answer has begun.
        if not isinstance(reason, ShoalError | TimeoutError | ConnectionError):
            internal(reason, where="file")
        if exchange.request.transport is not None:
            exchange.request.transport.abort()


def _thread(exchange: Exchange) -> str:
    return exchange.name("thread") if exchange.has_name("thread") else SPACE_FILES


def _view(file: FileInfo) -> FileDetail:
    return FileDetail(file.name, file.sha256, file.size, file.media_type, file.stored)


def _expected(request: web.Request) -> str:
    given = request.headers.get("Repr-Digest", "")
    found = _DIGEST.search(given)
    if not given or found is None:  # Of other algorithms nothing is known here, so they are passed over.
        return ""
    try:
        return base64.b64decode(found[1], validate=True).hex()
    except binascii.Error:
        raise InvalidInput("Repr-Digest holds no SHA-256. Nothing was written.", field="Repr-Digest") from None


def _range(request: web.Request, size: int, tag: str) -> tuple[int, int] | None:
    """The part that is asked for; None: the whole file, also if that is several parts, or one of another version.

    Raises:
        RangeNotSatisfiable: it is beyond the file.
    """
    asked = _RANGE.fullmatch(request.headers.get(hdrs.RANGE, "").replace(" ", ""))
    if asked is None or asked.groups() == ("", "") or request.headers.get(hdrs.IF_RANGE, tag) != tag:
        return None
    first, last = asked.groups()
    if max(len(first), len(last)) > 18:
        raise RangeNotSatisfiable(f"the file has {size} bytes, and the range is beyond them.", size=size)
    if not first:
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return None  # It is no range (RFC 9110, section 14.1.1).
    if start >= stop:
        raise RangeNotSatisfiable(f"the file has {size} bytes, and the range is beyond them.", size=size)
    return start, stop


def _disposition(file: FileInfo) -> str:
    kind = file.media_type.partition(";")[0].strip().lower()
    how = "inline" if kind in _SHOWN else "attachment"
    return f"{how}; filename*=UTF-8''{quote(file.name.rpartition('/')[2] or 'file', safe='')}"
