"""A route: the handler of a method and a path, and its description.

A part in braces stands for one part of the path, `[^/]+`, percent-encoded; `{file}` for all that follow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from msgspec import Struct

from shoal.api.http.exchange import Exchange, NoQuery
from shoal.errors import ShoalError
from shoal.records import NamedTuple

Handler = Callable[[Exchange], Awaitable[web.StreamResponse]]

SPACE = "/v1/spaces/{space}"
THREAD = SPACE + "/threads/{thread}"


class Route(NamedTuple):
    """One row of the route table."""

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
    repeats: bool = False  # The status is 200 instead if what was to be made was there.
    compares: bool = False  # It takes the version that is expected, as `If-Match`.
    is_open: bool = False  # Nodes that ask for tokens answer it without one.
    errors: tuple[type[ShoalError], ...] = ()  # In addition to those of all routes of its kind (`shoal.api.glossary`).
    reason: str = ""  # Why it is written by hand; empty: it follows from a declaration.

    @property
    def writes(self) -> bool:
        """Whether a request may write, so that it has an idempotency key, a durability and a deadline."""
        return self.method != "GET" and not self.reads

    @property
    def has_etag(self) -> bool:
        """Whether an answer has an ETag, so that a client that holds it gets 304."""
        return self.method == "GET" and self.has_bookmark and self.content_type == "application/json"

    @property
    def has_bookmark(self) -> bool:
        """Whether it reads or writes stored data, rather than the node's own status."""
        return self.path.startswith("/v1/spaces")
