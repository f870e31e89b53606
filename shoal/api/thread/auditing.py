"""What became of a thread, over HTTP: its audit, and its export as JSON lines.

Law: an export is sent as it is read; what waits for a slow reader is one record. One that ends
before its last line was cut short: the connection is broken off, so that no reader takes it for whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, Literal

import msgspec
from aiohttp import web
from msgspec import Raw, Struct

from shoal import values
from shoal.api.http.exchange import Exchange
from shoal.api.http.problems import internal
from shoal.errors import ShoalError
from shoal.workflows import audit as workflow
from shoal.workflows.export import export
from shoal.workflows.listing import check_exists

NDJSON = "application/x-ndjson"


class AuditEntryView(Struct):
    time: datetime
    kind: Literal["checkpoint", "event", "step"]
    text: str
    by: str
    known: str  # The newest checkpoint before it; empty: there was none.
    id: str  # Of the checkpoint or the event; a step's key.
    data: Raw  # A checkpoint's metadata, the event, or a step's result or error.


class AuditView(Struct):
    entries: list[AuditEntryView]  # Oldest first; of checkpoints, events and steps at most 10,000 each.


async def audit(exchange: Exchange) -> web.Response:
    checkpoints = exchange.checkpoints()
    await check_exists(checkpoints.connection, checkpoints.space, checkpoints.thread)
    entries = [
        AuditEntryView(each.time, each.kind, each.text, each.by, each.known, each.id, exchange.of_value(each.data))
        for each in await workflow.audit(checkpoints)
    ]
    return exchange.answer(AuditView(entries))


async def export_thread(exchange: Exchange) -> web.StreamResponse:
    return await _streamed(exchange, export(exchange.connection, exchange.name("space"), exchange.name("thread")))


async def export_space(exchange: Exchange) -> web.StreamResponse:
    return await _streamed(exchange, export(exchange.connection, exchange.name("space")))


async def _streamed(exchange: Exchange, records: AsyncGenerator[dict[str, Any], None]) -> web.StreamResponse:
    async with aclosing(records):
        first = await anext(records)  # What is refused is refused before the answer begins.
        response = web.StreamResponse(headers={"Content-Type": NDJSON, **exchange.bookmark_headers()})
        await response.prepare(exchange.request)
        if exchange.request.method == "HEAD":
            return response
        try:
            await _write(exchange, response, first)
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
    async with asyncio.timeout(exchange.config.heartbeat_s):
        await response.write(msgspec.json.encode(values.to_json(record)) + b"\n")


def _cut(exchange: Exchange) -> None:
    if exchange.request.transport is not None:
        exchange.request.transport.abort()
