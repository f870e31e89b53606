"""A thread's audit, and exports as JSON lines, over HTTP.

Law: an export is sent as it is read, with one record in memory for a slow reader. If an export fails half-way,
the connection is aborted, so that no reader takes it for complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, Literal

from aiohttp import web
from msgspec import Raw, Struct

from shoal.api.http.exchange import Exchange
from shoal.api.http.problems import internal
from shoal.errors import ShoalError
from shoal.kinds.thread.flows import export as workflow
from shoal.kinds.thread.flows.export import export
from shoal.workflows.spaces import check_exists

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


async def export_thread(exchange: Exchange) -> web.StreamResponse:
    """Stream one thread as JSON lines."""
    return await _streamed(exchange, export(exchange.connection, exchange.name("space"), exchange.name("thread")))


async def export_space(exchange: Exchange) -> web.StreamResponse:
    """Stream all threads of a space as JSON lines."""
    return await _streamed(exchange, export(exchange.connection, exchange.name("space")))


async def _streamed(exchange: Exchange, records: AsyncGenerator[dict[str, Any], None]) -> web.StreamResponse:
    async with aclosing(records):
        # An error here is still answered as a problem document. The first record says what follows, the second is read.
        first = [await anext(records), await anext(records, None)]
        response = web.StreamResponse(headers={"Content-Type": NDJSON, **exchange.bookmark_headers()})
        await response.prepare(exchange.request)
        if exchange.request.method == "HEAD":
            return response
        try:
            for record in first:
                if record is not None:
                    await _write(exchange, response, record)
            async for record in records:
                await _write(exchange, response, record)
        except (TimeoutError, ConnectionError):
            _cut(exchange)  # It reads nothing, or is gone.
        except Exception as reason:
            error = reason if isinstance(reason, ShoalError) else internal(reason, where="export")
            with suppress(TimeoutError, ConnectionError):
                await _write(exchange, response, {"type": "error", "code": error.code, "detail": error.message})
            _cut(exchange)
    return response


async def _write(exchange: Exchange, response: web.StreamResponse, record: dict[str, Any]) -> None:
    line = await exchange.text(record) + b"\n"
    async with asyncio.timeout(exchange.config.heartbeat_s):
        await response.write(line)


def _cut(exchange: Exchange) -> None:
    if exchange.request.transport is not None:
        exchange.request.transport.abort()
