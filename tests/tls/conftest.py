"""The certificates of a cluster, and nodes that speak TLS in this process."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
import pytest

from shoal.api.http.listener import Listener
from shoal.cli.serving import listening, peers_of
from shoal.config import Config
from shoal.node.environment import system_environment
from shoal.node.node import Node, open_node
from shoal.tls import authority
from shoal.tls.current import CurrentTls
from shoal.transport.peers import Peers, Resolve, resolved
from simulation.bounds import altered, parted

WAIT_S = 30


class Certificates:
    """A cluster's CA, and the settings with its certificates."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        authority.found(directory, now=datetime.now(UTC) - timedelta(days=500))

    @property
    def ca(self) -> str:
        return str(self.directory / "ca.pem")

    def issue(self, name: str, *, days_ago: int = 0, days: int = 365, names: Sequence[str] = (), renew: bool = False) -> None:
        now = datetime.now(UTC) - timedelta(days=days_ago)
        authority.issue(self.directory, name, names, now=now, days=days, renew=renew)

    def settings(self, name: str) -> dict[str, str]:
        """Those of a node; it gets a certificate if it has none."""
        place = self.directory / name
        if not place.exists():
            self.issue(name)
        return {f"tls_{kind}": str(place / f"{kind}.pem") for kind in ("cert", "key", "ca")}


class Served(NamedTuple):
    """A node that listens."""

    url: str
    node: Node
    tls: CurrentTls | None
    peers: Peers | None
    listener: Listener

    @property
    def address(self) -> str:
        return self.url.partition("://")[2]

    def reason(self, other: Served) -> str:
        """Why there is no link to another one."""
        assert self.peers is not None
        return self.peers.reasons.get(other.address, "")

    @property
    def linked(self) -> int:
        """How many peers are linked, in the node's own words."""
        assert self.node.replicator is not None
        return sum(member.state == "linked" for member in self.node.replicator.quorum.view().members)


Serve = Callable[..., Awaitable[Served]]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "tls")


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Start a node with settings."""
    async with AsyncExitStack() as stack:

        async def start(**settings: object) -> Served:
            resolve = cast(Resolve, settings.pop("resolve", resolved))
            mine, bounds = parted(settings)
            stack.enter_context(altered(**bounds))
            config = msgspec.structs.replace(Config(listen_port=0, reconnect_delay_s_max=0.2), **mine)
            environment = system_environment()
            node = await open_node(tmp_path / f"node-{os.urandom(4).hex()}", config=config, environment=environment)
            stack.push_async_callback(node.stop)
            tls = CurrentTls(config, now_s=time.time) if config.tls_cert else None
            peers = peers_of(node.replicator, config, environment, tls=tls, resolve=resolve)
            listener = await listening(node, config, peers, tls)
            stack.push_async_callback(listener.stop)
            if peers is not None:
                peers.start()
            return Served(listener.url, node, tls, peers, listener)

        yield start
