"""The spans of requests over HTTP, and the trace that a WebSocket belongs to.

Law: a look at health, metrics or the page makes no span.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from shoal.traces import doors
from shoal.traces.provider import tracing
from shoal.traces.sessions import greeted

_PREFIX = "/v1/"


async def answered(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]], request_id: str
) -> web.StreamResponse:
    """The handler's answer, within a span if traces are wanted."""
    if tracing() is None or not request.path.startswith(_PREFIX):
        return await handler(request)
    if request.headers.get("Upgrade", "").lower() == "websocket":
        # Pages cannot set headers of a WebSocket.
        with greeted(doors.carried_by(request.headers) or doors.carried_by(request.query)):
            return await handler(request)
    resource = request.match_info.route.resource
    route = "(unknown)" if resource is None else resource.canonical
    with doors.http(request.method, route, request.headers, request_id) as told:
        response = await handler(request)
        told(response.status)
        return response
