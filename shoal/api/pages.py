"""The pages that a node shows in a browser: the page on what is stored (`shoal.page`), and the description of its API.

Laws:
- These pages load nothing from other hosts, and run no script but those that come with Shoal; their
  Content-Security-Policy says so.
- The page asks its own node and the other members of the cluster alone.
- The files hold no stored data, so that they need no token.
"""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path

from aiohttp import hdrs, web
from msgspec import Struct

from shoal import page
from shoal.api.http import headers
from shoal.api.http.exchange import Exchange
from shoal.records import NamedTuple

DOCS_PATH = "/docs"
VIEWER_PATH = "/docs/rapidoc.js"
_SUMMARY = "A durable, replicated state layer for AI agents."
_HTML = "text/html"
_JAVASCRIPT = "text/javascript"
_VIEWER_AGE_S = 86_400
_PACKED_MAX = 256  # Files of the page that are held compressed: more than there are.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # The viewer's elements have styles of their own.
        "img-src 'self' data:",
        "connect-src 'self'",  # The description, and requests that the reader tries out.
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


PAGE_PATH = "/ui/{file}"
_ADDRESS = re.compile(r"[A-Za-z0-9.-]+:[0-9]{1,5}")  # As a policy can name one; it knows no IPv6.


class About(NamedTuple):
    """The node that serves."""

    node: str
    version: str
    is_open: bool = True  # Whether it asks for no token.
    is_local: bool = True  # Whether only its own machine reaches it.
    scheme: str = "http"
    others: Callable[[], Sequence[str]] = tuple  # "host:port" of the cluster's other members.


ABOUT: web.AppKey[About] = web.AppKey("about", About)


class Welcome(Struct):
    """The answer to `GET /`: the node, and the paths of its parts."""

    name: str
    summary: str  # What Shoal is.
    version: str  # The version of Shoal that this node runs.
    node: str  # The node's id.
    open: bool  # Whether the node asks for no token.
    local: bool  # Whether only the node's own machine reaches it.
    others: list[str] = []  # The URLs of the cluster's other members, which a client may ask if this node fails.
    docs: str = DOCS_PATH  # The description of the API, for people.
    openapi: str = "/v1/openapi.json"  # The same, for programs.
    health: str = "/healthz"  # Is the process alive?
    ready: str = "/readyz"  # Does it take reads and writes?
    metrics: str = "/metrics"  # For Prometheus.
    cluster: str = "/v1/cluster"  # The nodes and their state.
    spaces: str = "/v1/spaces"  # The spaces of the store.


async def welcome(exchange: Exchange) -> web.StreamResponse:
    """The page if the client accepts HTML, else `Welcome` as JSON or msgpack."""
    about = exchange.request.app[ABOUT]
    others = [f"{about.scheme}://{address}" for address in about.others() if _ADDRESS.fullmatch(address)]
    if _HTML not in exchange.request.headers.get(hdrs.ACCEPT, ""):
        return await exchange.answer(
            Welcome("shoal", _SUMMARY, about.version, about.node, about.is_open, about.is_local, others)
        )
    # It has no ETag: the policy among its headers changes with the members.
    policy = {"Content-Security-Policy": _page_policy(others)}
    body = await asyncio.to_thread(page.listed()[page.INDEX].path.read_bytes)
    return web.Response(body=body, content_type=_HTML, headers={**_HEADERS, **policy})


async def part(exchange: Exchange) -> web.StreamResponse:
    """A file of the page."""
    file = page.listed().get(exchange.request.match_info["file"])
    if file is None:
        raise web.HTTPNotFound
    # Disks may be slow, and the loop has others to serve.
    packed = await asyncio.to_thread(lambda: _packed(file.path, file.path.stat().st_mtime_ns))
    is_taken = "gzip" in exchange.request.headers.get(hdrs.ACCEPT_ENCODING, "")
    response = web.Response(
        body=packed if is_taken else gzip.decompress(packed),
        content_type=file.content_type,
        charset="utf-8",
        headers=_HEADERS,
    )
    if is_taken:
        response.headers[hdrs.CONTENT_ENCODING] = "gzip"
    return headers.tagged(exchange.request, response, None)


@lru_cache(maxsize=_PACKED_MAX)
def _packed(path: Path, _changed_ns: int) -> bytes:
    """A file of the page, compressed once for all who open it. A file that was changed is another one."""
    return gzip.compress(path.read_bytes(), mtime=0)


def _page_policy(others: Sequence[str]) -> str:
    """The policy of the page, which may also ask these other nodes, and join documents there."""
    sockets = (f"ws{url.removeprefix('http')}" for url in others)
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data:",
            "font-src 'self'",
            " ".join(("connect-src 'self'", *others, *sockets)),
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )


async def docs(_exchange: Exchange) -> web.Response:
    """The description of the API, shown by the viewer."""
    attributes = {
        "spec-url": "v1/openapi.json",
        "render-style": "focused",
        "show-header": "false",
        "allow-authentication": "false",
        "allow-server-selection": "false",
        "load-fonts": "false",  # They would come from another host.
        "sort-tags": "true",
        "schema-description-expanded": "true",
    }
    shown = " ".join(f'{name}="{value}"' for name, value in attributes.items())
    return _page(f'<script type="module" src="docs/rapidoc.js"></script><rapi-doc {shown}></rapi-doc>')


async def viewer(exchange: Exchange) -> web.Response:
    """RapiDoc, the web component that `docs` uses."""
    packed = _viewer()
    headers = {hdrs.CACHE_CONTROL: f"max-age={_VIEWER_AGE_S}"}
    if "gzip" in exchange.request.headers.get(hdrs.ACCEPT_ENCODING, ""):
        headers[hdrs.CONTENT_ENCODING] = "gzip"
        return web.Response(body=packed, content_type=_JAVASCRIPT, headers=headers)
    return web.Response(body=gzip.decompress(packed), content_type=_JAVASCRIPT, headers=headers)


@cache
def _viewer() -> bytes:
    return (files("shoal.api") / "viewer" / "rapidoc-min.js.gz").read_bytes()


def _page(body: str) -> web.Response:
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Shoal</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        "<style>body{font-family:sans-serif;margin:2em}rapi-doc{position:fixed;inset:0}</style>"
        f"</head><body>{body}</body></html>\n"
    )
    return web.Response(text=text, content_type=_HTML, headers=_HEADERS)
