"""A proxy in front of a node: one under a path, or that holds back or cuts what is streamed, or knows no WebSocket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import aiohttp
from aiohttp import web
from yarl import URL

_OF_A_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer"}
_HOP = _OF_A_HOP | {"host", "content-length", "content-encoding"}


_Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


class Ways(NamedTuple):
    """`prefix`: the path in front of the node's own; `buffers`: no part of a stream passes; `cuts_s`: streams end then."""

    prefix: str = ""
    buffers: bool = False
    cuts_s: float = 0.0
    sockets: bool = True


class Front(NamedTuple):
    url: str


@contextmanager
def front(target: str, ways: Ways) -> Iterator[Front]:
    """Serve `target` through such a proxy, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        runner = asyncio.run_coroutine_threadsafe(_begun(target, ways), loop).result(20)
        try:
            yield Front(f"http://127.0.0.1:{runner.addresses[0][1]}{ways.prefix}")
        finally:
            asyncio.run_coroutine_threadsafe(_ended(runner), loop).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _ended(runner: web.AppRunner) -> None:
    await runner.cleanup()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for each in others:
        each.cancel()
    await asyncio.wait(others) if others else None


async def _begun(target: str, ways: Ways) -> web.AppRunner:
    app = web.Application(client_max_size=1 << 26)
    session = aiohttp.ClientSession(auto_decompress=True)

    async def passed(request: web.Request) -> web.StreamResponse:
        path = request.raw_path
        if not path.startswith(ways.prefix + "/"):
            return web.Response(status=404, text="nothing here")
        url = target + path[len(ways.prefix) :]
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await _socket(session, request, url) if ways.sockets else web.Response(status=502)
        return await _answer(session, request, url, ways)

    async def closed(_app: web.Application) -> None:
        await session.close()

    app.router.add_route("*", "/{path:.*}", passed)
    app.on_cleanup.append(closed)
    runner = web.AppRunner(app, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner


def _headers(request: web.Request, target: str) -> dict[str, str]:
    kept = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
    if "Origin" in kept:  # As a proxy that is told to: the node knows its own origin alone.
        kept["Origin"] = "/".join(target.split("/")[:3])
    return kept


async def _answer(session: aiohttp.ClientSession, request: web.Request, url: str, ways: Ways) -> web.StreamResponse:
    body = await request.read()
    timeout = aiohttp.ClientTimeout(total=None)
    async with session.request(
        request.method,
        URL(url, encoded=True),
        data=body or None,
        headers=_headers(request, url),
        allow_redirects=False,
        timeout=timeout,
    ) as told:
        headers = {name: value for name, value in told.headers.items() if name.lower() not in _HOP}
        answer = web.StreamResponse(status=told.status, headers=headers)
        await answer.prepare(request)
        is_stream = told.headers.get("Content-Type", "").startswith("text/event-stream")
        with suppress(TimeoutError):
            async with asyncio.timeout(ways.cuts_s if is_stream and ways.cuts_s else None):
                async for part in told.content.iter_any():
                    if not (is_stream and ways.buffers):
                        await answer.write(part)
        await answer.write_eof()
        return answer


async def _socket(session: aiohttp.ClientSession, request: web.Request, url: str) -> web.StreamResponse:
    protocols = [each.strip() for each in request.headers.get("Sec-WebSocket-Protocol", "").split(",") if each.strip()]
    kept = {name: value for name, value in _headers(request, url).items() if not name.lower().startswith("sec-websocket")}
    async with session.ws_connect(url, headers=kept, protocols=protocols, max_msg_size=0) as far:
        near = web.WebSocketResponse(protocols=[far.protocol] if far.protocol else (), max_msg_size=0)
        await near.prepare(request)

        async def on(source: _Socket, target: _Socket) -> None:
            async for message in source:
                if message.type is aiohttp.WSMsgType.BINARY:
                    await target.send_bytes(message.data)
                elif message.type is aiohttp.WSMsgType.TEXT:
                    await target.send_str(message.data)

        ways = [asyncio.ensure_future(on(near, far)), asyncio.ensure_future(on(far, near))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for each in ways:
            each.cancel()
        await far.close()
        await near.close()
        return near
