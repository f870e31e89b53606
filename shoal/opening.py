"""`shoal.open` and `shoal.connect`: a store on this machine's disk, or on a node."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from shoal.client.connection import Connection
from shoal.client.store import Store
from shoal.config import Config, checked
from shoal.errors import InvalidConfig
from shoal.node.environment import Environment, system_environment
from shoal.node.node import open_node
from shoal.protocol.requests import Durability
from shoal.protocol.session import Session


@asynccontextmanager
async def open(
    directory: str | os.PathLike[str], *, config: Config | None = None, durability: Durability = "local"
) -> AsyncIterator[Store]:
    """Open an embedded store in `directory`, which is made if it is missing: a whole node, without a listener.

    Raises:
        StoreLocked: another process has it open; the message says how to share it.
        StoreTooNew, StoreCorrupt, StorageFull, StorageError: it cannot be opened; nothing was changed.
        InvalidConfig: a setting is out of range, or `durability` is unknown.
    """
    settings = _settings(config, durability)
    environment = system_environment()
    node = await open_node(Path(directory), config=settings, environment=environment)
    store = _store(node.session(), environment, config=settings, durability=durability, close=node.stop)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def connect(
    urls: str, *, token: str | None = None, config: Config | None = None, durability: Durability = "local"
) -> AsyncIterator[Store]:
    """Connect to a node ("http://n1:7400"), or to any one of several, separated by commas.

    Connections are made, and made again, when they are needed.

    Raises:
        InvalidConfig: a URL, a setting or `durability` is not legal.
    """
    # Here, because it takes a third of the import's time, and an embedded store never needs it.
    from shoal.transport.session import RemoteSession

    settings = _settings(config, durability)
    environment = system_environment()
    session = RemoteSession(urls, token=token, config=settings, now_ms=environment.now_ms, entropy=environment.entropy)

    async def close() -> None:
        await session.close()
        environment.close()

    store = _store(session, environment, config=settings, durability=durability, close=close)
    try:
        yield store
    finally:
        await store.close()


def _settings(config: Config | None, durability: Durability) -> Config:
    if durability not in ("memory", "local", "quorum", "all"):
        raise InvalidConfig(f"durability must be memory, local, quorum or all; got {durability!r}.", field="durability")
    return checked(config or Config())


def _store(
    session: Session,
    environment: Environment,
    *,
    config: Config,
    durability: Durability,
    close: Callable[[], Awaitable[None]],
) -> Store:
    connection = Connection(session, config, durability, environment.now_ms, environment.entropy)
    return Store(connection, close=close)
