"""Changes of a space as server-sent events.

Laws:

- Each change is one event, `change`, with a JSON object as its data; a comment
  goes out after `heartbeat_s` without one, so that a dead peer is noticed.
- A consumer that falls behind gets no gap: the stream ends, with an event
  `error` that holds the problem. One that does not read at all is cut off once a
  write has waited for `heartbeat_s`.
- A node that stops ends the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from aiohttp import web
from msgspec import Struct

from shoal.api.exchange import Exchange
from shoal.api.problems import internal
from shoal.errors import ShoalError, ShuttingDown
from shoal.protocol.requests import Change, ObjectKind, Push, Watch

HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class WatchQuery(Struct, forbid_unknown_fields=True):
    kind: ObjectKind | None = None
    prefix: str = ""


class ChangeView(Struct):
    space: str
    kind: ObjectKind
    name: str
    what: str  # "save", "append", "update", "add", "assign".
    id: str
    hlc: int
    wall_ms: int


async def watch(exchange: Exchange) -> web.StreamResponse:
    query = exchange.query(WatchQuery)
    async with exchange.session.subscribe(Watch(exchange.name("space"), query.kind, query.prefix)) as changes:
        response = web.StreamResponse(headers={**HEADERS, **exchange.bookmark_headers()})
        await response.prepare(exchange.request)
        stream = _Stream(exchange, response)
        try:
            await stream.write(b": watching\n\n")
            await stream.relay(changes)
        except (TimeoutError, ConnectionError):
            # It reads nothing, or is gone: there is no one left to tell.
            if exchange.request.transport is not None:
                exchange.request.transport.abort()
    return response


class _Stream:
    def __init__(self, exchange: Exchange, response: web.StreamResponse) -> None:
        self._stopping = exchange.stopping
        self._heartbeat_s = exchange.config.heartbeat_s
        self._response = response

    async def write(self, event: bytes) -> None:
        async with asyncio.timeout(self._heartbeat_s):
            await self._response.write(event)

    async def relay(self, changes: AsyncIterator[Push]) -> None:
        """Until the iterator ends, the node stops, or the peer is gone (ConnectionError, TimeoutError)."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        # One task takes the next change and is kept over heartbeats: to cancel it could lose a change.
        change = asyncio.ensure_future(_next(changes))
        try:
            while not self._stopping.is_set():
                await asyncio.wait((change, stopping), timeout=self._heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
                if not change.done():
                    await self.write(b": heartbeat\n\n")
                    continue
                taken = change.result()
                if taken is None:
                    return
                await self.write(_event("change", _view(taken)))
                change = asyncio.ensure_future(_next(changes))
            raise ShuttingDown("the node is stopping. Nothing was written. Watch again, here later or elsewhere.")
        except ShoalError as error:
            await self._tell(error)
        except (TimeoutError, ConnectionError):
            raise
        except Exception as bug:
            await self._tell(internal(bug, where="watch"))
        finally:
            change.cancel()
            stopping.cancel()
            await asyncio.gather(change, stopping, return_exceptions=True)

    async def _tell(self, error: ShoalError) -> None:
        await self.write(_event("error", {"code": error.code, "detail": error.message, "written": error.written}))


async def _next(changes: AsyncIterator[Push]) -> Push | None:
    return await anext(changes, None)


def _view(push: Push) -> ChangeView:
    assert isinstance(push, Change)
    return ChangeView(push.space, push.kind, push.name, push.what, push.id, push.hlc, push.wall_ms)


def _event(name: str, view: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(view))
