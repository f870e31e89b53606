"""A thread's audit, and exports as JSON lines, over HTTP.

Law: an export is sent as it is read, with one record in memory for a slow reader. If an export fails half-way,
the connection is aborted, so that no reader takes it for complete.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Literal

import msgspec
from aiohttp import web
from msgspec import Raw, Struct

from shoal.api.http.exchange import Exchange
from shoal.api.http.problems import internal
from shoal.errors import ShoalError
from shoal.kinds.thread.flows import audit as workflow
from shoal.workflows.spaces import check_exists
from shoal.workflows.transfer.exporting import Wanted, export
from shoal.workflows.transfer.records import Failure

NDJSON = "application/x-ndjson"


class AuditEntryView(Struct):
    """One checkpoint, event or step of a thread."""

    time: datetime
    kind: Literal["checkpoint", "event", "step"]
    text: str
    by: str
    known: str  # The newest checkpoint before it; empty if there was none.
    id: str  # Of the checkpoint or the event; a step's key.
    data: Raw  # A checkpoint's metadata, the event, or a step's result or error.


class AuditView(Struct):
    """A thread's audit."""

    entries: list[AuditEntryView]  # Oldest first; of checkpoints, events and steps at most 10,000 each.


async def audit(exchange: Exchange) -> web.Response:
    """Merge a thread's checkpoints, events and steps into one time line.

    Raises:
        NotFound: there is no such thread.
    """
    checkpoints = exchange.checkpoints()
    await check_exists(checkpoints.connection, checkpoints.space, checkpoints.thread)
    entries = [
        AuditEntryView(each.time, each.kind, each.text, each.by, each.known, each.id, exchange.of_value(each.data))
        for each in await workflow.audit(checkpoints)
    ]
    return await exchange.answer(AuditView(entries))


class ExportQuery(Struct, forbid_unknown_fields=True):
    """The form of an export."""

    reveal: bool = False  # With secret fields, for a token that may see them. Without them checkpoints get other ids.
    changes: bool = False  # States as changes of their parents', which takes less.


async def export_thread(exchange: Exchange) -> web.StreamResponse:
    """Stream one thread as JSON lines."""
    return await _streamed(exchange, Wanted(exchange.name("space"), exchange.name("thread")))


async def export_space(exchange: Exchange) -> web.StreamResponse:
    """Stream all objects of a space as JSON lines."""
    return await _streamed(exchange, Wanted(exchange.name("space")))


async def export_store(exchange: Exchange) -> web.StreamResponse:
    """Stream all objects of all spaces as JSON lines."""
    return await _streamed(exchange, Wanted())


async def _streamed(exchange: Exchange, wanted: Wanted) -> web.StreamResponse:
    asked = exchange.query(ExportQuery)
    async with aclosing(export(exchange.connection, wanted._replace(reveal=asked.reveal, changes=asked.changes))) as lines:
        # An error here is still answered as a problem document. The first lines say what follows, the third is read.
        first = [await anext(lines), await anext(lines, b""), await anext(lines, b"")]
        response = web.StreamResponse(headers={"Content-Type": NDJSON, **exchange.bookmark_headers()})
        await response.prepare(exchange.request)
        if exchange.request.method == "HEAD":
            return response
        try:
            await _write(exchange, response, b"".join(first))
            async for line in lines:
                await _write(exchange, response, line)
        except (TimeoutError, ConnectionError):
            _cut(exchange)  # It reads nothing, or is gone.
        except Exception as reason:
            error = reason if isinstance(reason, ShoalError) else internal(reason, where="export")
            with suppress(TimeoutError, ConnectionError):
                await _write(exchange, response, msgspec.json.encode(Failure(error.code, error.message)) + b"\n")
            _cut(exchange)
    return response


async def _write(exchange: Exchange, response: web.StreamResponse, line: bytes) -> None:
    async with asyncio.timeout(exchange.config.heartbeat_s):
        await response.write(line)


def _cut(exchange: Exchange) -> None:
    if exchange.request.transport is not None:
        exchange.request.transport.abort()
