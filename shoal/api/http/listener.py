"""The listener: connections, their bounds, and stopping.

Laws:

- Malformed requests, and all that aiohttp itself rejects, are answered with a problem document too.
- A connection that sends no complete request for `idle_s` is closed, and one whose request has begun, or that is new, and has
  sent no whole head after `HEAD_S`, however it trickles. If a client does not read its answers,
  no further request of its connection begins, and after `heartbeat_s` without progress it is cut off.
- A new connection for which there is no place (`shoal.api.http.accepting`) is answered with an error and closed.
- A stop accepts no new connections, then no new requests, gives requests under way
  `stop_timeout_s` to finish, then closes sockets with 1001.
"""

from __future__ import annotations

import asyncio
from io import BytesIO
from ssl import SSLContext

from aiohttp import hdrs, web

from shoal.api.http import accepting, problems
from shoal.api.http.accepting import Places, TlsServer, address_of, is_encrypted, unsent_bytes
from shoal.api.http.origins import SEALED
from shoal.api.server import SESSIONS, STREAMS, YJS
from shoal.config import Config
from shoal.errors import Overloaded, ShoalError

HEAD_S = 10.0  # For the head of a request, from its first byte or a new connection's beginning; then it is closed.
URL_BYTES_MAX = 8 * 1024  # With the query; beyond this: 414.
HEADER_BYTES_MAX = 16 * 1024  # One header of an HTTP request, name included; beyond this: 431.

_LAST_BYTES_S = 1.0
"""The time for answers that are still being sent."""
_BACKLOG = 128
_SERVER = "Shoal"
_LARGE_BYTES = 32 * 1024
"""A smaller answer, with nothing before it, fits the buffers on its way."""


class _Connection(web.RequestHandler):
    """One connection; the application answers its valid requests."""

    __slots__ = ("_address", "_config", "_head", "_places", "_watched")

    def __init__(self, server: web.Server, *, config: Config, places: Places) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=config.idle_s,
            max_line_size=URL_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            auto_decompress=False,  # `shoal.api.http.bodies` does, and says what is wrong.
        )
        self._config = config
        self._places = places
        self._address = ""
        self._head: asyncio.TimerHandle | None = None  # Ends the connection, unless a request's head is complete by then.
        self._watched: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._address = address_of(transport.get_extra_info("peername"))
        if (reason := self._places.take(self._address)) and self.transport is not None:
            self.transport.write(_full(reason))
            self.force_close()
        else:
            self._await_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._places.leave(self._address)
        self._have_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = len(self._messages)
        super().data_received(data)
        if len(self._messages) > before or self._current_request is not None:
            self._have_head()  # What comes next may be its body, which has bounds of its own.
        elif data and self._head is None:
            self._await_head()

    def _await_head(self) -> None:
        self._head = asyncio.get_running_loop().call_later(HEAD_S, self._end_late)

    def _have_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _end_late(self) -> None:
        self._head = None
        if self.transport is not None:
            self.force_close()
            self.transport.abort()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to a request that the parser rejected, or to a bug outside the application."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun")
        if isinstance(exc, UnicodeEncodeError):
            # aiohttp answers `Expect` before the application does, and repeats its text.
            error: ShoalError = problems.of_parser(None, url_bytes_max=URL_BYTES_MAX)
        elif status < 500:
            error = problems.of_parser(exc, url_bytes_max=URL_BYTES_MAX)
        else:
            error = problems.internal(exc if isinstance(exc, Exception) else None, where="connection")
        response = problems.response(error)
        response.force_close()
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if isinstance(resp, web.HTTPException):
            resp = problems.response(problems.of_http(resp, method=request.method, path=request.path))
        for name, value in ({hdrs.SERVER: _SERVER} | SEALED).items():
            resp.headers.setdefault(name, value)  # Also of an answer that no application prepares.
        is_small = isinstance(resp, web.Response) and isinstance(resp.body, bytes) and len(resp.body) < _LARGE_BYTES
        if is_small and self.transport is not None and not unsent_bytes(self.transport):
            return await super().finish_response(request, resp, start_time)  # It is written at once.
        if is_encrypted(self.transport) and isinstance(resp, web.Response) and isinstance(resp.body, bytes):
            resp.body = BytesIO(resp.body)  # Sent in pieces: a TLS transport hides the bytes of one large write.
        self._watch(None)
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._watched.cancel()

    def _watch(self, before: int | None) -> None:
        """Cut the connection off if its client has read nothing of an answer for `heartbeat_s`."""
        waiting = unsent_bytes(self.transport)
        if self.transport is not None and before is not None and waiting >= before:
            self.transport.abort()
        else:
            self._watched = asyncio.get_running_loop().call_later(self._config.heartbeat_s, self._watch, waiting)


async def _name(_request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Say who serves, and not in which version: aiohttp would tell its own and Python's."""
    response.headers[hdrs.SERVER] = _SERVER


class Listener:
    """Serves an application on `listen_host` and `listen_port`; with `tls` it speaks nothing else there."""

    def __init__(self, app: web.Application, *, config: Config, tls: SSLContext | None = None) -> None:
        self._tls = tls
        self._sessions, self._yjs, self._streams = app[SESSIONS], app[YJS], app[STREAMS]
        self._config = config
        app.on_response_prepare.append(_name)
        # When the runner cleans up, requests have already had their time.
        self._runner = web.AppRunner(app, shutdown_timeout=_LAST_BYTES_S)
        self._server: asyncio.Server | TlsServer | None = None
        self._address: tuple[str, int] = ("", 0)
        self._places = Places(config)

    async def start(self) -> None:
        """Start to accept connections.

        Raises:
            OSError: the address is in use, or is not of this machine.
        """
        await self._runner.setup()
        server = self._runner.server
        assert server is not None

        def connection() -> _Connection:
            return _Connection(server, config=self._config, places=self._places)

        try:
            config = self._config
            if self._tls is None:
                self._server = await asyncio.get_running_loop().create_server(
                    connection, config.listen_host, config.listen_port, backlog=_BACKLOG
                )
            else:
                sockets = await accepting.listening(config.listen_host, config.listen_port, backlog=_BACKLOG)
                self._server = TlsServer(sockets, connection, self._tls, places=self._places, config=config)
        except OSError:
            await self._runner.cleanup()
            raise
        self._address = self._server.sockets[0].getsockname()[:2]

    @property
    def url(self) -> str:
        """The URL of the listener. With port 0, it has the port that the system chose."""
        host, port = self._address
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def stop(self) -> None:
        """Stop accepting, let requests finish within `stop_timeout_s`, close all connections. Calling it twice is allowed."""
        if self._server is not None:
            self._server.close()
            self._server = None
        try:
            async with asyncio.timeout(self._config.stop_timeout_s):
                await asyncio.gather(self._sessions.stop(), self._yjs.stop(), self._streams.stop())
        except TimeoutError:
            pass  # Cleaning up closes them, finished or not.
        await self._runner.cleanup()


def _full(reason: str) -> bytes:
    """The answer to a connection for which there is no place."""
    error = Overloaded(f"{reason}. Nothing was written. Try again later, or at another node.", retry_after_s=1.0)
    response = problems.response(error)
    body = response.body
    assert isinstance(body, bytes)
    head = {**response.headers, "Content-Length": str(len(body)), "Connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"HTTP/1.1 {response.status} {response.reason}\r\n{lines}\r\n".encode() + body
