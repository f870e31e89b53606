"""The application: routes, errors, sessions; and the listener that serves it.

Laws:

- Whatever a handler raises is answered as a problem document; a bug is logged
  and answered with 500, and nobody else notices.
- A browser may only ask on behalf of a page that this node serves, or whose
  origin is allowed by name: a request whose Origin is another host is refused, so
  that no web page can reach a node on the reader's own machine.
- Stopping: no new connections, then no new requests, then those under way get
  `stop_timeout_s` to finish, then sockets are closed with 1001.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

import msgspec
from aiohttp import WSCloseCode, web
from aiohttp.typedefs import Middleware

from shoal.api import bookmarks, openapi, problems
from shoal.api.exchange import JSON, Exchange
from shoal.api.health import METRICS
from shoal.api.metrics import Backlog, Metered, Metrics
from shoal.api.route import Route
from shoal.api.routes import OPENAPI_PATH, ROUTES, SESSION_PATH
from shoal.api.session import SessionSocket
from shoal.api.yjs import YJS_PATH, YjsDoor
from shoal.config import Config
from shoal.errors import Overloaded, ShoalError, ShuttingDown
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.frames import PROTOCOL, Welcome
from shoal.protocol.session import Session
from shoal.protocol.sharing import SharedBookmark

_LAST_BYTES_S = 1.0
"""For answers that are made and still leave."""

OpenSession = Callable[[Bookmark], Session]
"""A session of its own for each consumer: a WebSocket, or one HTTP request. It keeps the bookmark that it is given."""

Door = Callable[[web.Request], Awaitable[web.StreamResponse]]
_Handler = Door


class Sessions:
    """The session sockets that are open, their bound, and what a stop has to wait for."""

    def __init__(self, open_session: OpenSession, *, welcome: Welcome, config: Config, metrics: Metrics) -> None:
        self._open_session = open_session
        self._welcome = welcome
        self._config = config
        self._metrics = metrics
        self._open: set[SessionSocket] = set()
        self._requests = 0  # HTTP requests under way.
        self._finished = asyncio.Event()
        self.stopping = asyncio.Event()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one client until it leaves.

        Raises:
            ShuttingDown, Overloaded: before the WebSocket is there, so that a crowd costs little.
        """
        if self.stopping.is_set():
            raise ShuttingDown("the node is stopping. Nothing was written. Try again later, or elsewhere.")
        if len(self._open) >= self._config.sessions_max:
            raise Overloaded(
                f"the node has {self._config.sessions_max} sessions, and takes no more. Nothing was written. "
                "Try again later, or elsewhere.",
                retry_after_s=1.0,
            )
        config = self._config
        socket = web.WebSocketResponse(heartbeat=config.heartbeat_s, compress=False, max_msg_size=config.request_bytes_max)
        served = SessionSocket(self._open_session, socket, welcome=self._welcome, config=config, metrics=self._metrics)
        self._open.add(served)
        self._metrics.sessions.inc()
        try:
            await served.serve(request)
        except Exception as bug:
            if not socket.prepared:
                raise
            # Past the upgrade there is no HTTP answer any more. ConnectionError: the peer left.
            if not isinstance(bug, ConnectionError):
                problems.internal(bug, where="session")
                await socket.close(code=WSCloseCode.INTERNAL_ERROR)
        finally:
            self._open.discard(served)
            self._metrics.sessions.dec()
        return socket

    @contextmanager
    def request_under_way(self) -> Iterator[None]:
        """Around each HTTP request, so that `stop` can wait for it."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            self._finished.set()

    async def stop(self) -> None:
        """Take nothing new, let requests and sessions finish what is under way, and close the sessions."""
        self.stopping.set()
        await asyncio.gather(*(served.stop() for served in self._open))
        while self._requests:
            self._finished.clear()
            await self._finished.wait()


SESSIONS: web.AppKey[Sessions] = web.AppKey("sessions", Sessions)
YJS: web.AppKey[YjsDoor] = web.AppKey("yjs", YjsDoor)


def create_app(
    open_session: OpenSession,
    *,
    config: Config,
    node: str,
    version: str,
    backlog: Callable[[], Backlog] | None = None,
    monotonic: Callable[[], float] | None = None,
    doors: Mapping[str, Door] | None = None,
) -> web.Application:
    """The application that answers by sessions that it opens; to be made inside a running event loop.

    `node` (hex) and `version` are what clients are told at the handshake;
    `backlog` is asked at each scrape of /metrics; `monotonic` (seconds) times
    requests. `doors` are further GET routes, as those that peers come in by.
    """
    metrics = Metrics(backlog)

    def metered(bookmark: Bookmark) -> Session:
        return Metered(open_session(bookmark), metrics, monotonic=monotonic)

    welcome = Welcome(PROTOCOL, version, node, config.request_bytes_max, config.session_requests_max, config.subscriptions_max)
    sessions = Sessions(metered, welcome=welcome, config=config, metrics=metrics)
    app = web.Application(client_max_size=config.request_bytes_max, middlewares=[_problems(_allowed(config))])
    app[METRICS] = metrics
    app[SESSIONS] = sessions
    for route in ROUTES:
        app.router.add_route(
            route.method, _pattern(route.path), _handler(route, open_session=metered, config=config, sessions=sessions)
        )
    description = msgspec.json.encode(openapi.describe(ROUTES, version=version))
    app.router.add_route("GET", OPENAPI_PATH, _fixed(description))
    app.router.add_route("GET", SESSION_PATH, sessions.serve)
    app[YJS] = YjsDoor(metered, config=config, metrics=metrics)
    app.router.add_route("GET", _pattern(YJS_PATH), app[YJS].serve)
    for path, door in (doors or {}).items():
        app.router.add_route("GET", path, door)
    app.cleanup_ctx.append(_watched_loop)
    return app


def _handler(route: Route, *, open_session: OpenSession, config: Config, sessions: Sessions) -> _Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        bookmark = SharedBookmark(bookmarks.named(request) if route.has_bookmark else None)
        session = open_session(bookmark)
        exchange = Exchange(
            request, session=session, bookmark=bookmark, config=config, template=route.path, stopping=sessions.stopping
        )
        try:
            with sessions.request_under_way():
                response = await _answer(route, exchange)
        finally:
            await session.close()
        if route.has_bookmark and not response.prepared:
            response.headers.update(exchange.bookmark_headers())
        return response

    return handle


async def _answer(route: Route, exchange: Exchange) -> web.StreamResponse:
    try:
        if route.writes and exchange.stopping.is_set():
            raise ShuttingDown("the node is stopping. Nothing was written. Send it again, here later or elsewhere.")
        exchange.query(route.query)
        return await route.handler(exchange)
    except Exception as reason:
        return _problem(exchange.request, reason)


def _pattern(path: str) -> str:
    """aiohttp's own pattern of a part leaves out braces, which are legal in names: `{crew-7}/planner`."""
    return re.sub(r"{(\w+)}", r"{\1:[^/]+}", path)


def _fixed(body: bytes) -> _Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type=JSON)

    return handle


def _allowed(config: Config) -> frozenset[str]:
    return frozenset(origin.strip().rstrip("/").lower() for origin in config.allowed_origins.split(",") if origin.strip())


def _problems(allowed: frozenset[str]) -> Middleware:
    @web.middleware
    async def problems_as_documents(request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            _refuse_other_origins(request, allowed)
            return await handler(request)
        except Exception as reason:
            return _problem(request, reason)

    return problems_as_documents


def _problem(request: web.Request, reason: Exception) -> web.Response:
    match reason:
        case ShoalError():
            return problems.response(reason)
        case web.HTTPException():
            return problems.response(problems.of_http(reason, method=request.method, path=request.path))
        case _:
            return problems.response(problems.internal(reason, where=f"{request.method} {request.path}"))


def _refuse_other_origins(request: web.Request, allowed: frozenset[str]) -> None:
    origin = request.headers.get("Origin")
    if origin is None or origin.lower() in allowed:
        return
    if urlsplit(origin).netloc.lower() != request.host.lower():
        raise problems.CrossOrigin("pages of another origin may not ask this node. Nothing was written.")


async def _watched_loop(app: web.Application) -> AsyncIterator[None]:
    watching = asyncio.create_task(app[METRICS].watch_loop())
    yield
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


class Listener:
    """Serves an application on `listen_host` and `listen_port`."""

    def __init__(self, app: web.Application, *, config: Config) -> None:
        self._sessions, self._yjs = app[SESSIONS], app[YJS]
        self._config = config
        # By the time the runner cleans up, requests have had their time.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_LAST_BYTES_S)
        self._site: web.TCPSite | None = None

    async def start(self) -> None:
        """Begin to accept.

        Raises:
            OSError: the address is taken, or not ours.
        """
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, self._config.listen_host, self._config.listen_port)
        try:
            await self._site.start()
        except OSError:
            await self._runner.cleanup()
            raise

    @property
    def url(self) -> str:
        """Where it listens: with port 0, the port that the system chose."""
        host, port = self._runner.addresses[0][:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def stop(self) -> None:
        """Stop accepting, let what is under way finish within `stop_timeout_s`, close what is left. Twice is allowed."""
        if self._site is not None:
            await self._site.stop()
            self._site = None
        try:
            async with asyncio.timeout(self._config.stop_timeout_s):
                await asyncio.gather(self._sessions.stop(), self._yjs.stop())
        except TimeoutError:
            pass  # Cleaning up closes them, finished or not.
        await self._runner.cleanup()
