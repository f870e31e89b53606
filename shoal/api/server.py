"""The application: routes, errors, sessions, and the spans of requests over HTTP.

Laws:
- Every exception of a handler is answered as a problem document; a bug is logged
  and answered with 500, and other requests continue.
- A route for GET also answers HEAD, with the same headers and no body.
- Every answer of the application has an `X-Request-Id`: the caller's, if that is a token of a bounded length, or a new one.
- Each line that is logged while a request is handled has its id.
- Requests of other origins' pages are rejected first (`shoal.api.http.origins`), then malformed
  URLs, so that handlers see only valid text.
- A look at health, metrics or the page makes no span.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import WSCloseCode, hdrs, web
from aiohttp.typedefs import Middleware

from shoal.access.guard import Guarded
from shoal.api.health import METRICS, Backlog, Metered, Metrics
from shoal.api.http import bodies as deadlines
from shoal.api.http import headers, problems
from shoal.api.http import origins as credentials
from shoal.api.http.bodies import Bodies, Limited, Noting
from shoal.api.http.exchange import JSON, Exchange, decoded
from shoal.api.http.origins import METHODS, REQUEST_ID, Hosts, OpenGuarded, Origins, seal
from shoal.api.pages import ABOUT, About
from shoal.api.route import Route
from shoal.api.routes import OPENAPI_PATH, ROUTES, SESSION_PATH
from shoal.api.session import SessionSocket
from shoal.api.streams import headers as streams
from shoal.api.streams.door import StreamDoor
from shoal.api.yjs.door import HOCUSPOCUS_PATH, YJS_PATH, YjsDoor
from shoal.config import Config
from shoal.errors import Disconnected, Overloaded, ShoalError, ShuttingDown
from shoal.logs.lines import of_request
from shoal.protocol.bookmark import Bookmark, SharedBookmark
from shoal.protocol.frames import PROTOCOL, Welcome
from shoal.protocol.requests import Request
from shoal.protocol.session import Session
from shoal.traces import agents
from shoal.traces.provider import tracing
from shoal.traces.sessions import greeted
from shoal.traces.sessions import traced as sessions_traced

if TYPE_CHECKING:
    from shoal.access.bearer import Bearer
    from shoal.access.gate import Gate

_PREFIX = "/v1/"


async def answered(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]], request_id: str
) -> web.StreamResponse:
    """The handler's answer, within a span if traces are wanted."""
    if tracing() is None or not request.path.startswith(_PREFIX):
        return await handler(request)
    if request.headers.get("Upgrade", "").lower() == "websocket":
        # Pages cannot set headers of a WebSocket.
        with greeted(agents.carried_by(request.headers) or agents.carried_by(request.query)):
            return await handler(request)
    resource = request.match_info.route.resource
    route = "(unknown)" if resource is None else resource.canonical
    with agents.http(request.method, route, request.headers, request_id) as told:
        response = await handler(request)
        told(response.status)
        return response


_HANDSHAKE = ("connection", "sec-websocket-")
_NO_BYTE = re.compile("%(?![0-9A-Fa-f]{2})")
# What stands in a log must not be able to look like something else there.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_ID: web.RequestKey[str] = web.RequestKey("id", str)

OpenSession = Callable[[Bookmark], Session]
"""Opens a session for one consumer: a WebSocket, or one HTTP request. The session updates the bookmark that it is given."""

Door = Callable[[web.Request], Awaitable[web.StreamResponse]]
_Handler = Door


class Sessions:
    """The open session sockets, their bound, and the requests that a stop waits for."""

    def __init__(
        self,
        open_session: OpenGuarded,
        *,
        admit: Callable[[], None],
        end_waits: Callable[[], None],
        welcome: Welcome,
        config: Config,
        metrics: Metrics,
    ) -> None:
        self._open_session = open_session
        self._admit = admit
        self._end_waits = end_waits
        self._welcome = welcome
        self._config = config
        self._metrics = metrics
        self._open: set[SessionSocket] = set()
        self._requests = 0  # HTTP requests under way.
        self._finished = asyncio.Event()
        self.stopping = asyncio.Event()

    async def serve(self, request: web.Request, bearer: Bearer | None = None) -> web.StreamResponse:
        """Answer one client until it leaves, or until its token counts no more.

        Raises:
            ShuttingDown, Overloaded: raised before the upgrade, so that a crowd costs little.
        """
        if self.stopping.is_set():
            raise ShuttingDown("the node is stopping. Nothing was written. Try again later, or at another node.")
        if len(self._open) >= self._config.sessions_max:
            raise Overloaded(
                f"the node has {self._config.sessions_max} sessions, which is its maximum. Nothing was written. "
                "Try again later, or at another node.",
                retry_after_s=1.0,
            )
        config = self._config
        socket = web.WebSocketResponse(
            heartbeat=config.heartbeat_s,
            compress=False,
            max_msg_size=config.request_bytes_max,
            protocols=(credentials.PROTOCOL,),
        )
        served = SessionSocket(
            partial(self._open_session, bearer=bearer),
            socket,
            admit=self._admit,
            welcome=self._welcome,
            config=config,
            metrics=self._metrics,
        )
        self._open.add(served)
        self._metrics.sessions.inc()
        try:
            with nullcontext() if bearer is None else bearer.watched(served.end):
                await served.serve(request)
        except Exception as bug:
            if not socket.prepared:
                raise
            # After the upgrade there is no HTTP answer any more. ConnectionError: the peer left.
            if not isinstance(bug, ConnectionError):
                problems.internal(bug, where="session")
                await socket.close(code=WSCloseCode.INTERNAL_ERROR)
        finally:
            self._open.discard(served)
            self._metrics.sessions.dec()
        return socket

    @contextmanager
    def request_under_way(self) -> Iterator[None]:
        """A context for each HTTP request, so that `stop` can wait for it."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            self._finished.set()

    async def stop(self) -> None:
        """Accept nothing new, let the requests under way finish, and close the sessions."""
        self.stopping.set()
        self._end_waits()
        await asyncio.gather(*(served.stop() for served in self._open))
        while self._requests:
            self._finished.clear()
            await self._finished.wait()


SESSIONS: web.AppKey[Sessions] = web.AppKey("sessions", Sessions)
YJS: web.AppKey[YjsDoor] = web.AppKey("yjs", YjsDoor)
STREAMS: web.AppKey[StreamDoor] = web.AppKey("streams", StreamDoor)


def create_app(
    open_session: OpenSession,
    *,
    config: Config,
    node: str,
    version: str,
    now_s: Callable[[], float],
    backlog: Callable[[], Backlog] | None = None,
    monotonic: Callable[[], float] | None = None,
    doors: Mapping[str, Door] | None = None,
    admit: Callable[[], None] = lambda: None,
    end_waits: Callable[[], None] = lambda: None,
    gate: Gate | None = None,
    make_id: Callable[[], str] | None = None,
    others: Callable[[], Sequence[str]] = tuple,
) -> web.Application:
    """The application, which opens sessions to answer. Call it inside a running event loop.

    Clients learn `node` (hex) and `version` at the handshake. `now_s` is the node's
    clock, in seconds since 1970. `backlog` is called at each scrape of /metrics.
    `monotonic` is a clock in seconds to time requests. `doors` are further WebSocket
    routes by their paths, such as the peers'. `admit` is called at a session's hello;
    if it raises a `ShoalError`, the session is rejected with it. `end_waits` is called when the
    application begins to stop: requests that wait for a change are then answered with what is so.
    With a `gate`, all routes ask for a token but those that are declared open, and the further
    `doors`, which have means of their own. `make_id` names requests whose callers did not; without it they are counted.
    `others` are the addresses of the cluster's other members, "host:port": their pages may ask this node, and its page them.
    """
    metrics = Metrics(backlog, version=version)

    def metered(bookmark: Bookmark, /, *, bearer: Bearer | None = None) -> Session:
        session = open_session(bookmark)
        if bearer is not None:
            session.bookmark.token = bearer.token.id
            session = Guarded(session, bearer, None if gate is None else gate.reads)
        return sessions_traced(Metered(session, metrics, monotonic=monotonic), "node")

    def admitted(request: web.Request) -> Bearer | None:
        return None if gate is None else credentials.bearer_of(request, gate)

    async def may_read(bearer: Bearer, request: Request[Any]) -> None:
        bearer.check(request)
        if gate is not None and gate.reads is not None:
            await gate.reads.note(bearer, request)

    welcome = Welcome(PROTOCOL, version, node, config.request_bytes_max, config.session_requests_max, config.subscriptions_max)
    sessions = Sessions(metered, admit=admit, end_waits=end_waits, welcome=welcome, config=config, metrics=metrics)
    origins = Origins(config, others)
    hosts = Hosts(config)
    numbers = count(1)
    make_id = make_id or (lambda: str(next(numbers)))
    app = web.Application(middlewares=[_identified(make_id), _problems(origins, hosts)])
    app.on_response_prepare.extend([_telling_id(make_id), origins.tell, hosts.tell, seal])
    if gate is not None:
        app.on_response_prepare.append(credentials.hide)
    app[METRICS] = metrics
    app[SESSIONS] = sessions
    bodies = Bodies(config)
    for route in ROUTES:
        handler = _handler(
            route,
            open_session=metered,
            admitted=(lambda _: None) if route.is_open else admitted,
            config=config,
            sessions=sessions,
            bodies=bodies,
            now_s=now_s,
        )
        _add(app, route.method, route.path, handler)
    app[ABOUT] = About(
        node, version, gate is None, credentials.is_local(config.listen_host), credentials.scheme_of(config), others
    )
    _add(app, "GET", OPENAPI_PATH, _description(version))
    app[YJS] = YjsDoor(metered, may_read, config=config, metrics=metrics)
    for path, serve in {SESSION_PATH: sessions.serve, YJS_PATH: app[YJS].serve}.items():
        _add(app, "GET", path, _upgrading(_guarded(serve, admitted)))
    _add(app, "GET", HOCUSPOCUS_PATH, _upgrading(_guarded_within(app[YJS].serve_hocuspocus, gate)))
    app[STREAMS] = StreamDoor(metered, bodies=bodies, config=config, now_s=now_s)
    streaming = _counted(_guarded(app[STREAMS].serve, admitted), sessions)
    resource = app.router.add_resource(_pattern(streams.STREAMS_PATH.replace("{stream}", "{stream:.+}")))
    for method in streams.METHODS:
        resource.add_route(method, streaming)
    for path, door in (doors or {}).items():
        _add(app, "GET", path, _upgrading(door))
    app.cleanup_ctx.append(_watched_loop)
    return app


def _add(app: web.Application, method: str, path: str, handler: _Handler) -> None:
    """Serve a method at a path; with GET, also HEAD."""
    pattern = _pattern(path)
    # One resource per path, because the router tries them one by one.
    known = (each for each in app.router.resources() if isinstance(each, web.Resource) and each.raw_match(pattern))
    resource = next(known, None) or app.router.add_resource(pattern)
    resource.add_route(method, handler)
    if method == "GET":
        resource.add_route("HEAD", handler)


def _handler(
    route: Route,
    *,
    open_session: OpenGuarded,
    admitted: Callable[[web.Request], Bearer | None],
    config: Config,
    sessions: Sessions,
    bodies: Bodies,
    now_s: Callable[[], float],
) -> _Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        bearer = admitted(request)  # Before anything that the request says is looked at.
        deadline_s = deadlines.named(request) if route.writes else None
        bookmark = SharedBookmark(headers.named(request) if route.has_bookmark else None)
        session = open_session(bookmark, bearer=bearer)
        if deadline_s is not None:
            session = Limited(session, deadline_s, now_s=now_s)
        try:
            with sessions.request_under_way(), bodies.under_way(bearer.token.author if bearer else None) as body:
                exchange = Exchange(
                    request,
                    session=Noting(session, bookmark),
                    body=body,
                    config=config,
                    template=route.path,
                    stopping=sessions.stopping,
                    bearer=bearer,
                )
                response = await _answer(route, exchange)
        finally:
            await session.close()
        if route.has_bookmark and not response.prepared:
            response = headers.tagged(request, response, exchange.version)
            response.headers.update(exchange.bookmark_headers())
            response.headers.update(headers.redacted(exchange.session.replaced))
        return response

    return handle


async def _answer(route: Route, exchange: Exchange) -> web.StreamResponse:
    try:
        if route.writes and exchange.stopping.is_set():
            raise ShuttingDown("the node is stopping. Nothing was written. Send it again later, or to another node.")
        exchange.query(route.query)
        if route.writes and not route.compares:
            headers.check_none(exchange.request)
        return await route.handler(exchange)
    except ShoalError as error:
        return problems.response(exchange.session.checked(error))
    except Exception as reason:
        return _problem(exchange.request, reason)


def _pattern(path: str) -> str:
    """The path with a pattern for each part: aiohttp's own excludes braces, which are legal in names (`{crew-7}/planner`)."""
    path = path.replace("{file}", "{file:.+}")
    return re.sub(r"{(\w+)}", r"{\1:[^/]+}", path)


def _description(version: str) -> _Handler:
    @cache
    def encoded() -> bytes:
        # Imported here, because few nodes are ever asked for it.
        from shoal.api import openapi

        return msgspec.json.encode(openapi.describe(ROUTES, version=version))

    async def handle(request: web.Request) -> web.StreamResponse:
        return headers.tagged(request, web.Response(body=encoded(), content_type=JSON), None)

    return handle


def _upgrading(door: Door) -> _Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        if request.method != "GET" or request.headers.get("Upgrade", "").strip().lower() != "websocket":
            raise problems.UpgradeRequired("this route is a WebSocket. Nothing was written. Open it with GET and Upgrade.")
        if not all(text.isascii() for name, text in request.headers.items() if name.lower().startswith(_HANDSHAKE)):
            raise problems.Malformed("a header of the WebSocket handshake is not ASCII. Nothing was written.")
        return await door(request)

    return handle


def _counted(door: Door, sessions: Sessions) -> _Handler:
    """A handler for whose requests a stop waits."""

    async def handle(request: web.Request) -> web.StreamResponse:
        with sessions.request_under_way():
            return await door(request)

    return handle


def _guarded(
    serve: Callable[[web.Request, Bearer | None], Awaitable[web.StreamResponse]],
    admitted: Callable[[web.Request], Bearer | None],
) -> Door:
    async def door(request: web.Request) -> web.StreamResponse:
        return await serve(request, admitted(request))

    return door


def _guarded_within(
    serve: Callable[[web.Request, Callable[[str], Bearer | None]], Awaitable[web.StreamResponse]], gate: Gate | None
) -> Door:
    """A door that is told tokens by messages; a request that has one needs no other."""

    async def door(request: web.Request) -> web.StreamResponse:
        def verify(token: str) -> Bearer | None:
            if gate is None:
                return None
            return gate.bearer(token or credentials.presented(request), address=request.remote or "")

        return await serve(request, verify)

    return door


def _identified(make_id: Callable[[], str]) -> Middleware:
    @web.middleware
    async def identified(request: web.Request, handler: _Handler) -> web.StreamResponse:
        id = _id_of(request, make_id)
        with of_request(id):
            return await answered(request, handler, id)

    return identified


def _id_of(request: web.Request, make_id: Callable[[], str]) -> str:
    if _ID not in request:
        given = request.headers.get(REQUEST_ID, "")
        request[_ID] = given if _REQUEST_ID.fullmatch(given) else make_id()
    id: str = request[_ID]
    return id


def _telling_id(make_id: Callable[[], str]) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    async def tell_id(request: web.Request, response: web.StreamResponse) -> None:
        # The framework answers `Expect` before any middleware has seen the request.
        response.headers[REQUEST_ID] = _id_of(request, make_id)

    return tell_id


def _problems(origins: Origins, hosts: Hosts) -> Middleware:
    @web.middleware
    async def problems_as_documents(request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            # Not `request.host`: if the header is missing, it asks the resolver, which may block.
            hosts.check(request.headers.get(hdrs.HOST))
            origins.check(request)
            preflight = origins.preflight(request)
            if preflight is not None:
                return preflight
            _check_url(request.raw_path)
            return await handler(request)
        except Exception as reason:
            return _problem(request, reason)

    return problems_as_documents


def _check_url(raw: str) -> None:
    """Check a URL as it was sent.

    Raises:
        Malformed: it is not percent-encoded UTF-8.
    """
    if "%" not in raw:
        return  # The parser lets nothing but ASCII through.
    if _NO_BYTE.search(raw):
        raise problems.Malformed(
            "a `%` in the URL is not followed by two hex digits. Nothing was written. Write a percent sign as %25."
        )
    decoded(raw, "URL")


def _problem(request: web.Request, reason: Exception) -> web.Response:
    match reason:
        case ShoalError():
            return problems.response(reason)
        case web.HTTPMethodNotAllowed() if request.method == "OPTIONS":
            return web.Response(status=204, headers={"Allow": ", ".join(sorted({*reason.allowed_methods, "OPTIONS"}))})
        case web.HTTPNotFound() if (request.method, request.raw_path) == ("OPTIONS", "*"):
            return web.Response(status=204, headers={"Allow": f"{METHODS}, OPTIONS"})
        case web.HTTPException():
            return problems.response(problems.of_http(reason, method=request.method, path=request.path))
        case ConnectionError() if request.transport is None or request.transport.is_closing():
            return problems.response(Disconnected("the client left before the answer."))
        case _:
            return problems.response(problems.internal(reason, where=f"{request.method} {request.path}"))


async def _watched_loop(app: web.Application) -> AsyncIterator[None]:
    watching = asyncio.create_task(app[METRICS].watch_loop())
    yield
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
