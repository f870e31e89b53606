"""A route: what a request to a path does, and what its description says.

A part in braces is one part of the path, `[^/]+`, percent-encoded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from aiohttp import web
from msgspec import Struct

from shoal.api.http.exchange import Exchange, NoQuery
from shoal.errors import ShoalError

Handler = Callable[[Exchange], Awaitable[web.StreamResponse]]

SPACE = "/v1/spaces/{space}"
THREAD = SPACE + "/threads/{thread}"


class Route(NamedTuple):
    method: str
    path: str
    handler: Handler
    summary: str
    reply: Any = None  # A type for the schema; None: no JSON.
    status: int = 200
    body: Any = None
    query: type[Struct] = NoQuery
    content_type: str = "application/json"  # Of the answer.
    body_type: str = "application/json"
    reads: bool = False  # Though its method is POST.
    compares: bool = False  # It takes the version that is expected, as `If-Match`.
    errors: tuple[type[ShoalError], ...] = ()  # Besides those that all routes of its kind have (`shoal.api.failures`).

    @property
    def writes(self) -> bool:
        return self.method != "GET" and not self.reads

    @property
    def has_etag(self) -> bool:
        """Whether it shows what a client may hold already."""
        return self.method == "GET" and self.has_bookmark and self.content_type == "application/json"

    @property
    def has_bookmark(self) -> bool:
        """Whether it shows or changes what is kept, rather than how the node is."""
        return self.path.startswith("/v1/spaces")
