"""The token of an HTTP request, and who sent it.

Laws:
- A token comes in the header `Authorization: Bearer …`; of a WebSocket that a browser opens, also as the sub-protocol
  `shoal.token.…` beside `shoal`; or in the cookie. It is never read from a URL, which logs and histories keep.
- A cookie counts only for pages of this node's own origin. Browsers send it to no other site's pages (SameSite=Strict),
  and scripts cannot read it (HttpOnly).
- The fault of a token is told; the token itself is not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from aiohttp import hdrs, web

from shoal.api.http.origins import is_own
from shoal.errors import Unauthenticated
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.session import Session

if TYPE_CHECKING:
    from shoal.access.bearer import Bearer
    from shoal.access.gate import Gate

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
