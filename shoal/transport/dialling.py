"""Open a WebSocket to a node, and say in Shoal's own words why that failed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Protocol

import aiohttp
from yarl import URL

from shoal.config import Config
from shoal.errors import Disconnected, InvalidConfig, Overloaded, Unavailable, Unsupported

SESSION_PATH = "/v1/session"

_SHUFFLE_BYTES = 16  # So many that no two addresses draw the same.


class Connect(Protocol):
    """`open_socket`, or what stands in for it where there is no network."""

    async def __call__(
        self, url: str, /, *, config: Config, token: str | None, heartbeat_s: float
    ) -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]: ...


def split_urls(urls: str) -> list[str]:
    """The base URLs in "http://n1:7400,http://n2:7400".

    Raises:
        InvalidConfig: there is none, or one is no http(s) URL of a host.
    """
    found = [url.strip().rstrip("/") for url in urls.split(",") if url.strip()]
    if not found:
        raise InvalidConfig("no URL of a node was given. Give one or more, as in http://n1:7400,http://n2:7400.")
    return [_checked(url) for url in found]


def _checked(url: str) -> str:
    try:
        parsed = URL(url)
        sound = parsed.scheme in ("http", "https") and parsed.host and not parsed.query_string and not parsed.fragment
    except ValueError:
        sound = False
    if not sound:
        raise InvalidConfig(f"{url[:200]!r} is no URL of a node. It must look like http://host:7400.")
    return url


def shuffled(urls: Sequence[str], entropy: Callable[[int], bytes]) -> list[str]:
    """`urls` in an order that `entropy` decides, each order being as likely as any other."""
    return sorted(urls, key=lambda _: entropy(_SHUFFLE_BYTES)) if len(urls) > 1 else list(urls)


async def open_socket(
    url: str, *, config: Config, token: str | None, heartbeat_s: float
) -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
    """The WebSocket, and the HTTP session that owns it; the caller closes both.

    Raises:
        Overloaded, Unavailable, Unsupported, Disconnected: the node's answer, by its HTTP status.
        aiohttp.ClientError, OSError: there was none.
    """
    http = aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(), headers={} if token is None else {"Authorization": f"Bearer {token}"}
    )
    try:
        socket = await http.ws_connect(
            url + SESSION_PATH,
            heartbeat=heartbeat_s,
            # A node that is to be left has no more than this to say goodbye.
            timeout=aiohttp.ClientWSTimeout(ws_close=config.failover_timeout_s),
            compress=0,
            # A document's whole state is the largest reply that there is.
            max_msg_size=config.document_bytes_max + config.request_bytes_max,
        )
    except aiohttp.WSServerHandshakeError as refusal:
        await http.close()
        raise _refusal(url, refusal) from None
    except BaseException:
        await http.close()
        raise
    return http, socket


def why(reason: Exception) -> str:
    """Why a node cannot be reached, as an operator would say it."""
    if isinstance(reason, aiohttp.ClientConnectorError):
        # The event loop's own text repeats the address; the system's says what happened. A failed look-up of a name is below 0.
        number = reason.os_error.errno or 0
        return (os.strerror(number) if number > 0 else reason.os_error.strerror or str(reason.os_error)).lower()
    return str(reason) or "it did not answer"


def _refusal(url: str, refusal: aiohttp.WSServerHandshakeError) -> Disconnected | Unavailable | Unsupported:
    if refusal.status == Overloaded.status:
        after_s = _retry_after_s(refusal)
        return Overloaded(
            f"the node at {url} has no room for another session. Nothing was sent. Try again in {after_s:g} s, or elsewhere.",
            retry_after_s=after_s,
        )
    if refusal.status == Unavailable.status:
        return Unavailable(f"the node at {url} does not take sessions now. Nothing was sent. Try again later, or elsewhere.")
    if refusal.status == 404:
        return Unsupported(f"there is no Shoal node at {url}. Nothing was sent. Check the address.")
    return Disconnected(f"the node at {url} refused the session with status {refusal.status}. Nothing was sent.")


def _retry_after_s(refusal: aiohttp.WSServerHandshakeError) -> float:
    said = refusal.headers.get("Retry-After", "") if refusal.headers else ""
    return float(said) if said.isascii() and said.isdigit() else 1.0
