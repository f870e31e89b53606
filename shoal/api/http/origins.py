"""Web pages of other origins: which of them may ask this node, and what their browsers are told (CORS).

Laws:

- `allowed_origins` decides, and nothing else: alike for requests, server-sent events and
  WebSockets. A page that this node serves may always ask; a request without an Origin
  comes from no page.
- A request of any other page is refused before anything else is looked at, so that no web
  page can reach a node on the reader's own machine.
- Every answer to an allowed page shows it the headers that clients use, problem documents
  included. A preflight is answered alike for every path: the page then reads the 404 or 405.
- No credentials: a node knows neither cookies nor passwords.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import hdrs, web

from shoal.api.http import bookmarks, deadlines
from shoal.api.http.problems import CrossOrigin
from shoal.config import Config, origins

METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
REQUEST_HEADERS = ", ".join(
    (
        "Accept",
        "Authorization",  # For a proxy in front.
        "Cache-Control",
        "Content-Encoding",
        "Content-Type",
        "Idempotency-Key",
        "If-Match",
        "If-None-Match",
        "Last-Event-ID",
        bookmarks.HEADER,
        deadlines.HEADER,
    )
)
ANSWER_HEADERS = ", ".join(
    ("Accept-Encoding", "Allow", "Content-Length", "ETag", "Location", "Retry-After", bookmarks.HEADER, bookmarks.LEFT_OUT)
)
PREFLIGHT_S = 600
"""How long a browser may remember a preflight's answer."""


class Origins:
    """What a node's configuration allows."""

    def __init__(self, config: Config) -> None:
        self._named = origins(config)
        self._any = "*" in self._named

    def check(self, request: web.Request) -> None:
        """
        Raises:
            CrossOrigin: the request comes from a page that may not ask.
        """
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is None or self._allows(origin) or _is_own(origin, request):
            return
        raise CrossOrigin(
            f"pages of {origin[:200]!r} may not ask this node. Nothing was written. "
            "Add it to the node's setting allowed_origins, or ask from a page that the node itself serves."
        )

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to a preflight of a page that may ask; None if `request` is none."""
        if request.method != hdrs.METH_OPTIONS or hdrs.ACCESS_CONTROL_REQUEST_METHOD not in request.headers:
            return None
        return web.Response(
            status=204,
            headers={
                hdrs.ACCESS_CONTROL_ALLOW_METHODS: METHODS,
                hdrs.ACCESS_CONTROL_ALLOW_HEADERS: REQUEST_HEADERS,
                hdrs.ACCESS_CONTROL_MAX_AGE: str(PREFLIGHT_S),
            },
        )

    async def tell(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add to any answer, before it is sent, what the page's browser and caches have to know."""
        # The answer depends on both, whatever they are.
        response.headers[hdrs.VARY] = "Origin, Accept"
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and self._allows(origin):
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = "*" if self._any else origin
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = ANSWER_HEADERS

    def _allows(self, origin: str) -> bool:
        return self._any or origin.lower() in self._named


def _is_own(origin: str, request: web.Request) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == request.host.lower()
    except ValueError:
        return False  # It is no URL.
