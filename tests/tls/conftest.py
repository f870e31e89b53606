"""The certificates of a cluster, and a node that speaks TLS in this process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from shoal.cli.serving import listening
from shoal.config import Config
from shoal.node.environment import system_environment
from shoal.node.node import open_node
from shoal.tls import authority, contexts


class Certificates:
    """A cluster's CA, and the settings with its certificates."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        authority.found(directory, now=datetime.now(UTC) - timedelta(days=500))

    @property
    def ca(self) -> str:
        return str(self.directory / "ca.pem")

    def issue(self, name: str, *, days_ago: int = 0, days: int = 365, renew: bool = False) -> None:
        now = datetime.now(UTC) - timedelta(days=days_ago)
        authority.issue(self.directory, name, now=now, days=days, renew=renew)

    def settings(self, name: str) -> dict[str, str]:
        """Those of a node; it gets a certificate if it has none."""
        place = self.directory / name
        if not place.exists():
            self.issue(name)
        return {f"tls_{kind}": str(place / f"{kind}.pem") for kind in ("cert", "key", "ca")}


Serve = Callable[..., Awaitable[str]]


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "tls")


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Start a node with settings, and return its URL."""
    async with AsyncExitStack() as stack:

        async def start(**settings: object) -> str:
            config = msgspec.structs.replace(Config(listen_port=0), **settings)
            data = tmp_path / f"node-{os.urandom(4).hex()}"
            node = await open_node(data, config=config, environment=system_environment())
            stack.push_async_callback(node.stop)
            listener = await listening(node, config, None, contexts.listening(config) if config.tls_cert else None)
            stack.push_async_callback(listener.stop)
            return listener.url

        yield start
