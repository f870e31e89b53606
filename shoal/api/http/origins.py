"""The origin of a request: the page that sent it, its token, and the host name that it was sent to.

Web pages of other origins: which of them may use this node, and the CORS headers for their browsers.

`aiohttp-cors` configures each resource by itself, does not answer for paths without a route, rejects no page and does not
cover WebSockets; one setting has to decide for all of them.

Laws:

- Only `allowed_origins` decides, in the same way for requests, server-sent events and
  WebSockets. Pages that this node or another member of its cluster serves are always allowed; a request without an Origin
  does not come from a page.
- A request of any other page is rejected before everything else, so that no web
  page can reach a node on the reader's own machine.
- Every answer to an allowed page, problem documents included, exposes the headers that clients
  use. A preflight is answered in the same way for every path: the page then reads the 404 or 405.
- No answer allows a page of another origin to send cookies; such a page sends its token in a header.
- An answer that a browser shows is in a sandbox of an origin of its own and loads nothing, because users choose its bytes
  and the node's origin has a cookie. Only the node's own pages have a policy of theirs. Nothing can be embedded elsewhere.

The token of an HTTP request, and who sent it.

Laws:
- A token comes in the header `Authorization: Bearer …`; of a WebSocket that a browser opens, also as the sub-protocol
  `shoal.token.…` beside `shoal`; or in the cookie. It is never read from a URL, which logs and histories keep.
- A cookie counts only for pages of this node's own origin. Browsers send it to no other site's pages (SameSite=Strict),
  and scripts cannot read it (HttpOnly).
- The fault of a token is told; the token itself is not.

The host names under which this node answers: the defence against DNS rebinding, and against a way back to plain HTTP.

The owner of another site can let its name resolve to 127.0.0.1. The browser then takes this node
for the site's own server and sends no Origin of another site. But it sends the Host header with
the site's name.

Laws:

- A node that listens only on this machine answers only requests for an IP address, for
  `localhost`, for its own names in the configuration, and for `allowed_hosts`.
- A node that other machines can reach answers for any name, unless `allowed_hosts` is set,
  because it does not know the names that its network gives it.
- Over TLS such a node tells browsers to use its name with TLS alone for `hsts_s` (RFC 6797). A node that listens only on this
  machine does not: its name is that of all other programs here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from shoal.api.http import bodies as deadlines
from shoal.api.http import headers as bookmarks
from shoal.api.http.problems import CrossOrigin, WrongHost
from shoal.api.streams import headers
from shoal.config import Config, origins
from shoal.errors import Unauthenticated
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.session import Session
from shoal.traces import agents

if TYPE_CHECKING:
    from shoal.access.bearer import Bearer
    from shoal.access.gate import Gate

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
        bookmarks.BOOKMARK,
        deadlines.HEADER,
        bookmarks.LEASE,
        REQUEST_ID,
        *agents.HEADERS,
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
        bookmarks.BOOKMARK,
        bookmarks.LEFT_OUT,
        bookmarks.REDACTED,
        REQUEST_ID,
        *headers.ANSWER_HEADERS,
    )
)
PREFLIGHT_S = 600
"""How long a browser may remember a preflight's answer."""


SEALED = {
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""The headers of every answer that has none of its own for these."""


async def seal(_: web.Request, response: web.StreamResponse) -> None:
    """Let a browser run nothing of an answer, guess no type, and embed it in no page of another origin."""
    for name, value in SEALED.items():
        response.headers.setdefault(name, value)


class Origins:
    """The origins that a node's configuration allows, and those of the other members of its cluster ("host:port")."""

    def __init__(self, config: Config, others: Callable[[], Sequence[str]] = tuple) -> None:
        self._named = origins(config)
        self._any = "*" in self._named
        self._others = others
        self._scheme = scheme_of(config)

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
            "Add the origin to the node's setting allowed_origins, or use a page that a node of the cluster serves."
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
        return self._any or origin.lower() in self._named or self._is_members(origin)

    def _is_members(self, origin: str) -> bool:
        asked = _loopback_as_one(origin.lower())
        return any(_loopback_as_one(f"{self._scheme}://{address.lower()}") == asked for address in self._others())


def _loopback_as_one(origin: str) -> str:
    """An origin, in which the names of this machine for itself are one: members name one of them, and people type another."""
    scheme, _, address = origin.partition("://")
    host = _name(address)
    return f"{scheme}://localhost{address[address.rfind(':') :]}" if is_local(host) and ":" in address else origin


def scheme_of(config: Config) -> str:
    """The scheme of this node's URL, and of those of the cluster's other members."""
    return "https" if config.tls_cert else "http"


def is_own(origin: str, request: web.Request) -> bool:
    """Whether a page of this origin comes from the node that is asked."""
    try:
        return urlsplit(origin).netloc.lower() == request.host.lower()
    except ValueError:
        return False  # It is not a URL.


COOKIE = "__Host-shoal"
"""Its prefix lets browsers accept it only over TLS (or from this machine), for this host alone."""
PROTOCOL = "shoal"
"""The sub-protocol that the node chooses, if a browser offers it."""
_TOKEN = "shoal.token."
_SCHEME = "bearer"


class OpenGuarded(Protocol):
    """Opens a session for a consumer whose bearer, if it has one, decides what it may ask."""

    def __call__(self, bookmark: Bookmark, /, *, bearer: Bearer | None = None) -> Session:
        """As `shoal.api.server.OpenSession`."""
        ...


def bearer_of(request: web.Request, gate: Gate) -> Bearer:
    """The bearer of a request's token.

    Raises:
        Unauthenticated: it has none, or one that is not accepted.
        Overloaded: too many tokens of this address were refused.
    """
    return gate.bearer(presented(request), address=request.remote or "")


def presented(request: web.Request) -> str | None:
    """The token of a request, as it was given; None if there is none.

    Raises:
        Unauthenticated: the header names another scheme.
    """
    header = request.headers.get(hdrs.AUTHORIZATION)
    if header is not None:
        scheme, _, token = header.strip().partition(" ")
        if scheme.lower() != _SCHEME:
            raise Unauthenticated(
                "the header Authorization has no bearer token. Nothing was written. Write `Authorization: Bearer …`.",
                reason="malformed",
            )
        return token.strip()
    for offered in request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "").split(","):
        if offered.strip().startswith(_TOKEN):
            return offered.strip().removeprefix(_TOKEN)
    origin = request.headers.get(hdrs.ORIGIN)
    return request.cookies.get(COOKIE) if origin is None or is_own(origin, request) else None


async def hide(request: web.Request, response: web.StreamResponse) -> None:
    """Let no cache between the node and the caller keep an answer for somebody else."""
    said = response.headers.get(hdrs.CACHE_CONTROL, "")
    if not said.startswith("max-age"):  # What everybody may have.
        response.headers[hdrs.CACHE_CONTROL] = "private, no-cache" if said == "no-cache" else "no-store"
        response.headers[hdrs.VARY] = f"{response.headers.get(hdrs.VARY, 'Accept')}, Authorization, Cookie"


def keep(response: web.Response, token: str, *, lasts_s: float) -> None:
    """Let the browser send a token with each request to this node, until the token expires."""
    response.set_cookie(COOKIE, token, max_age=math.floor(lasts_s), path="/", secure=True, httponly=True, samesite="Strict")


def drop(response: web.Response) -> None:
    """Let the browser forget the token."""
    response.del_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="Strict")


_HOST_CHARS_SHOWN = 100


class Hosts:
    """The host names that a node's configuration allows."""

    def __init__(self, config: Config) -> None:
        listed = {part.strip().lower() for part in config.allowed_hosts.split(",") if part.strip()}
        self._checked = "*" not in listed and (bool(listed) or is_local(config.listen_host))
        self._hsts = "" if is_local(config.listen_host) or not config.hsts_s else f"max-age={int(config.hsts_s)}"
        self._names = {*listed, config.listen_host.lower(), _name(config.advertise), "localhost"}

    def check(self, host: str | None) -> None:
        """Check the Host header of a request; None if it has none. All browsers send it.

        Raises:
            WrongHost: it is a name that is not this node's.
        """
        if not self._checked or host is None:
            return
        name = _name(host)
        if name in self._names or name.endswith(".localhost") or _is_address(name):
            return
        raise WrongHost(
            f"this node is not {name[:_HOST_CHARS_SHOWN]!r}. Nothing was written. Use its address instead. If a proxy or a "
            "name of your own leads here, add the name to the node's setting allowed_hosts."
        )

    async def tell(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add to an answer over TLS that browsers shall come back with TLS."""
        if self._hsts and request.transport is not None and request.transport.get_extra_info("sslcontext") is not None:
            response.headers["Strict-Transport-Security"] = self._hsts


def _name(host: str) -> str:
    """The name in "name", "name:port" or "[address]:port"."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_local(host: str) -> bool:
    """Whether only this machine can reach a node that listens on this host."""
    return host.lower() == "localhost" or (_is_address(host) and ip_address(host).is_loopback)
