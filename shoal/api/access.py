"""The identity of the caller, and the cookie with which a browser shows it.

Law: the token that the cookie holds came in a header, so that no URL and no page's script keeps it.
"""

from __future__ import annotations

from aiohttp import web
from msgspec import Struct

from shoal.api.http import origins as credentials
from shoal.api.http.exchange import Exchange
from shoal.errors import Unsupported


class AccessView(Struct):
    """The caller's token, as the node has verified it."""

    open: bool  # Whether the node asks for no token. All other fields are empty then.
    author: str = ""  # The name that the caller's writes may carry.
    id: str = ""  # By which the token is revoked.
    issuer: str = ""  # By whom it was made; "shoal" by `shoal token create`.
    ends: int = 0  # When it expires, in seconds since 1970.
    grants: list[str] = []  # As `shoal token create --allow` takes them.


async def access(exchange: Exchange) -> web.Response:
    """The claims of the caller's token."""
    return await exchange.answer(_view(exchange))


async def keep_cookie(exchange: Exchange) -> web.Response:
    """Keep the token of the header as a cookie.

    Raises:
        Unsupported: this node asks for no token, or the header has none.
    """
    bearer, token = exchange.bearer, credentials.presented(exchange.request)
    if bearer is None or token is None:
        raise Unsupported("this node asks for no token, so that a cookie would hold none. Nothing was written.")
    response = await exchange.answer(_view(exchange))
    credentials.keep(response, token, lasts_s=bearer.lasts_s)
    return response


async def drop_cookie(exchange: Exchange) -> web.Response:
    """Let the browser forget the cookie."""
    response = await exchange.answer(AccessView(open=exchange.bearer is None))
    credentials.drop(response)
    return response


def _view(exchange: Exchange) -> AccessView:
    bearer = exchange.bearer
    if bearer is None:
        return AccessView(open=True)
    told = bearer.token.told()
    return AccessView(False, told["author"], told["id"], told["issuer"], told["ends"], told["grants"])
