"""A server of MCP over HTTP, from start to stop.

Laws:
- The only line on standard output is its URL, once it listens.
- A client that could reach it from beyond this machine shows a token to the nodes, over TLS.
- It has no token of its own: what a client may do is decided by the nodes, by the client's token.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import typer

import shoal
from shoal.access.failures import Failures
from shoal.api.http.origins import Hosts
from shoal.api.http.problems import CrossOrigin
from shoal.cli import settings
from shoal.cli.execution import Target, ensured, tls_ca, token_file, wait_s
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import InvalidConfig, Unauthenticated
from shoal.integrations.mcp.http import PATH, Listening, serve_http
from shoal.integrations.mcp.server import ShoalServer
from shoal.integrations.mcp.views import ViewsByToken
from shoal.protocol.requests import ListSpaces
from shoal.tls import contexts

MCP_CLIENTS_MAX = 256  # Tokens whose connections a server over HTTP keeps.

_OF_A_CLIENT = ("SHOAL_TOKEN", "SHOAL_TOKEN_FILE")


async def serving_mcp(
    target: Target, space: str, config: Config, *, insecure: bool, author: str, memory_only: bool, read_only: bool
) -> None:
    """Serve until the task is cancelled.

    Raises:
        InvalidConfig: it may not or cannot listen there, its TLS files are wrong, or it was given a token.
        Unreachable: no node answers.
    """
    given = "--token-file" if token_file.get() else next((name for name in _OF_A_CLIENT if os.environ.get(name)), None)
    if given:
        raise InvalidConfig(
            f"over HTTP each client sends its own token, and this server has none. Nothing was started. Leave {given} out."
        )
    tls = contexts.listening(config) if config.tls_cert else None
    async with AsyncExitStack() as stack:
        asks = False
        if target.url is None:
            store = await stack.enter_async_context(ensured(target))
        else:
            asks = await _asks(target.url)
        settings.check_closed_to_mcp(config, asks=asks, insecure=insecure)

        def connect(token: str | None) -> AbstractAsyncContextManager[Store]:
            return (
                _shared(store)
                if target.url is None
                else shoal.connect(target.url, tls_ca=tls_ca.get(), token=token, config=config)
            )

        views = ViewsByToken(connect, space, asks=asks, clients_max=MCP_CLIENTS_MAX)
        handlers = ShoalServer(views, space, author=author, memory_only=memory_only, read_only=read_only)
        listener = stack.enter_context(_listener(config))
        host = f"[{config.listen_host}]" if ":" in config.listen_host else config.listen_host
        url = f"{'https' if tls else 'http'}://{host}:{listener.getsockname()[1]}{PATH}"
        typer.echo(url)
        hosts = Hosts(config)

        def check(headers: Mapping[str, str]) -> None:
            hosts.check(headers.get("host"))
            if "origin" in headers:
                raise CrossOrigin("web pages may not call this server. Nothing was written. Call it from a program.")

        await serve_http(views, handlers, Listening(listener, tls, check, Failures(config), url), config=config)


async def _asks(url: str) -> bool:
    """Whether the nodes ask for tokens."""
    async with shoal.connect(url, wait=wait_s.get(), tls_ca=tls_ca.get()) as store:
        try:
            await store.connection.read(ListSpaces(limit=1))
        except Unauthenticated:
            return True
    return False


@asynccontextmanager
async def _shared(store: Store) -> AsyncIterator[Store]:
    """A store that outlives the context."""
    yield store


def _listener(config: Config) -> socket.socket:
    try:
        return socket.create_server(
            (config.listen_host, config.listen_port), family=socket.AF_INET6 if ":" in config.listen_host else socket.AF_INET
        )
    except OSError as error:
        raise InvalidConfig(
            f"cannot listen on {config.listen_host}:{config.listen_port}: {error.strerror or error}. Nothing was started. "
            "Choose another address with --listen.",
            field="listen_port",
        ) from None
