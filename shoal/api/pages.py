"""The pages that a node shows in a browser: a summary of the node, and the description of its API.

Law: these pages load nothing from other hosts, and run no script except the viewer that comes with Shoal
(`viewer/`); their Content-Security-Policy says so.
"""

from __future__ import annotations

import gzip
from functools import cache
from html import escape
from importlib.resources import files

from aiohttp import hdrs, web
from msgspec import Struct

from shoal.api.http.exchange import Exchange
from shoal.records import NamedTuple

DOCS_PATH = "/docs"
VIEWER_PATH = "/docs/rapidoc.js"
_SUMMARY = "A durable, replicated state layer for AI agents."
_HTML = "text/html"
_JAVASCRIPT = "text/javascript"
_VIEWER_AGE_S = 86_400
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


class About(NamedTuple):
    """The node that serves."""

    node: str
    version: str


ABOUT: web.AppKey[About] = web.AppKey("about", About)


class Welcome(Struct):
    """The answer to `GET /`: the node, and the paths of its parts."""

    name: str
    summary: str  # What Shoal is.
    version: str  # The version of Shoal that this node runs.
    node: str  # The node's id.
    docs: str = DOCS_PATH  # The description of the API, for people.
    openapi: str = "/v1/openapi.json"  # The same, for programs.
    health: str = "/healthz"  # Is the process alive?
    ready: str = "/readyz"  # Does it take reads and writes?
    metrics: str = "/metrics"  # For Prometheus.
    cluster: str = "/v1/cluster"  # The nodes and their state.
    spaces: str = "/v1/spaces"  # The spaces of the store.


async def welcome(exchange: Exchange) -> web.Response:
    """`Welcome`, as a page if the client accepts HTML, else as JSON or msgpack."""
    about = exchange.request.app[ABOUT]
    view = Welcome("shoal", _SUMMARY, about.version, about.node)
    if _HTML not in exchange.request.headers.get(hdrs.ACCEPT, ""):
        return await exchange.answer(view)
    links = "".join(
        f'<li><a href="{escape(path.lstrip("/"))}">{escape(name)}</a></li>'
        for name in ("docs", "openapi", "health", "ready", "metrics", "cluster", "spaces")
        for path in (getattr(view, name),)
    )
    return _page(
        f"<h1>Shoal {escape(about.version)}</h1><p>{_SUMMARY}</p><p>Node {escape(about.node)}</p><ul>{links}</ul>",
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
