"""Web pages of other origins: which of them may use this node, and the CORS headers for their browsers.

`aiohttp-cors` configures each resource by itself, does not answer for paths without a route, rejects no page and does not
cover WebSockets; one setting has to decide for all of them.

Laws:

- Only `allowed_origins` decides, in the same way for requests, server-sent events and
  WebSockets. Pages that this node serves are always allowed; a request without an Origin
  does not come from a page.
- A request of any other page is rejected before everything else, so that no web
  page can reach a node on the reader's own machine.
- Every answer to an allowed page, problem documents included, exposes the headers that clients
  use. A preflight is answered in the same way for every path: the page then reads the 404 or 405.
- No answer allows a page of another origin to send cookies; such a page sends its token in a header.
- An answer that a browser shows is in a sandbox of an origin of its own and loads nothing, because users choose its bytes
  and the node's origin has a cookie. Only the node's own pages have a policy of theirs. Nothing can be embedded elsewhere.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import hdrs, web

from shoal.api.http import bookmarks, deadlines, leases
from shoal.api.http.problems import CrossOrigin
from shoal.api.streams import headers
from shoal.config import Config, origins

REQUEST_ID = "X-Request-Id"
"""The header with the id of a request: the caller's, or one that the node made."""
METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
REQUEST_HEADERS = ", ".join(
    (
        "Accept",
        "Authorization",
        "Cache-Control",
        "Content-Encoding",
        "Content-Type",
        "Idempotency-Key",
        "If-Match",
        "If-None-Match",
        "Last-Event-ID",
        bookmarks.HEADER,
        deadlines.HEADER,
        leases.HEADER,
        REQUEST_ID,
        *headers.REQUEST_HEADERS,
    )
)
ANSWER_HEADERS = ", ".join(
    (
        "Accept-Encoding",
        "Allow",
        "Content-Length",
        "ETag",
        "Location",
        "Retry-After",
        bookmarks.HEADER,
        bookmarks.LEFT_OUT,
        REQUEST_ID,
        *headers.ANSWER_HEADERS,
    )
)
PREFLIGHT_S = 600
"""How long a browser may remember a preflight's answer."""


_SEALED = {
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}


async def seal(_: web.Request, response: web.StreamResponse) -> None:
    """Let a browser run nothing of an answer, guess no type, and embed it in no page of another origin."""
    for name, value in _SEALED.items():
        response.headers.setdefault(name, value)


class Origins:
    """The origins that a node's configuration allows."""

    def __init__(self, config: Config) -> None:
        self._named = origins(config)
        self._any = "*" in self._named

    def check(self, request: web.Request) -> None:
        """Check the Origin of a request.

        Raises:
            CrossOrigin: it is a page that is not allowed.
        """
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is None or self._allows(origin) or is_own(origin, request):
            return
        raise CrossOrigin(
            f"pages of {origin[:200]!r} may not use this node. Nothing was written. "
            "Add the origin to the node's setting allowed_origins, or use a page that the node itself serves."
        )

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to a preflight of an allowed page; None if `request` is not a preflight."""
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
        """Add the headers for the page's browser and for caches to an answer, before it is sent."""
        # The answer depends on both.
        response.headers[hdrs.VARY] = "Origin, Accept"
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and self._allows(origin):
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = "*" if self._any else origin
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = ANSWER_HEADERS

    def _allows(self, origin: str) -> bool:
        return self._any or origin.lower() in self._named


def is_own(origin: str, request: web.Request) -> bool:
    """Whether a page of this origin comes from the node that is asked."""
    try:
        return urlsplit(origin).netloc.lower() == request.host.lower()
    except ValueError:
        return False  # It is not a URL.
