"""MCP over HTTP: the SDK's application under uvicorn, behind checks of the host name and of the address.

Laws:
- There are no sessions: each request stands for itself, so several servers can share their clients.
- If the nodes ask for tokens, a request without a valid one is answered with 401 before it reaches MCP.
- Before its token is looked at, a request is refused if its headers do not pass, or if too many tokens of its address were
  refused.
- All is bounded: connections, the body of a request, tokens that are known, and the time that a shutdown takes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from hashlib import sha256
from ssl import SSLContext
from typing import Any, Protocol

import uvicorn
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import TransportSecuritySettings

from shoal.config import Config
from shoal.errors import Overloaded, ShoalError
from shoal.integrations.mcp.server import ShoalServer
from shoal.integrations.mcp.views import ViewsByToken
from shoal.records import NamedTuple

PATH = "/mcp"
SHUTDOWN_S = 5
_UNAUTHENTICATED = 401

logging.getLogger("mcp").setLevel(logging.WARNING)  # It tells of each request.


class Refusals(Protocol):
    """Tokens that were refused, by address: `shoal.access.gate.Failures`."""

    def check(self, address: str, *, now_s: float) -> None:
        """Raises Overloaded if too many were."""
        ...

    def add(self, address: str, *, now_s: float) -> None:
        """One more."""
        ...


class Listening(NamedTuple):
    """Where and how a server listens."""

    socket: socket.socket
    tls: SSLContext | None
    check: Callable[[Mapping[str, str]], None]  # Raises a ShoalError for a request whose headers do not pass.
    refusals: Refusals
    url: str


async def serve_http(views: ViewsByToken, handlers: ShoalServer, listening: Listening, *, config: Config) -> None:
    """Serve until the task is cancelled; then requests under way have `SHUTDOWN_S` to end."""
    app = handlers.server().streamable_http_app(
        streamable_http_path=PATH,
        stateless_http=True,
        max_request_body_size=config.request_bytes_max,
        # Host and Origin are checked before, as nodes check them.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        auth=AuthSettings.model_validate({"issuer_url": listening.url, "resource_server_url": None}) if views.asks else None,
        token_verifier=_Verifier(views) if views.asks else None,
    )
    tls = listening.tls
    server = uvicorn.Server(
        uvicorn.Config(
            _Door(app, listening),
            log_config=None,
            access_log=False,
            ws="none",
            lifespan="on",
            proxy_headers=False,
            server_header=False,
            limit_concurrency=config.connections_max,
            timeout_keep_alive=int(config.idle_s),
            timeout_graceful_shutdown=SHUTDOWN_S,
            ssl_context_factory=None if tls is None else lambda *_: tls,
        )
    )
    server.capture_signals = nullcontext  # They are the program's.
    serving = asyncio.create_task(server.serve(sockets=[listening.socket]))
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        await asyncio.wait([serving])
        await views.close()


class _Verifier:
    """Asks the nodes whether a token counts."""

    def __init__(self, views: ViewsByToken) -> None:
        self._views = views

    async def verify_token(self, token: str) -> AccessToken | None:
        """Verify a token (`TokenVerifier`)."""
        if not await self._views.admits(token):
            return None
        return AccessToken(token=token, client_id=sha256(token.encode()).hexdigest()[:16], scopes=[])


class _Door:
    """The check of a request before it is read."""

    def __init__(self, app: Any, listening: Listening) -> None:
        self._app = app
        self._listening = listening

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        address = scope["client"][0] if scope.get("client") else ""
        refusals, shows_token = self._listening.refusals, "authorization" in headers

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] == _UNAUTHENTICATED and shows_token:
                refusals.add(address, now_s=time.monotonic())
            await send(message)

        try:
            self._listening.check(headers)
            if shows_token:
                refusals.check(address, now_s=time.monotonic())
        except ShoalError as error:
            await _refuse(send, error)
            return
        await self._app(scope, receive, sent)


async def _refuse(send: Any, error: ShoalError) -> None:
    body = json.dumps({"error": error.code, "error_description": error.message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if isinstance(error, Overloaded):
        after_s = math.ceil(float(error.detail.get("retry_after_s") or 1.0))  # type: ignore[arg-type]
        headers.append((b"retry-after", str(after_s).encode()))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
