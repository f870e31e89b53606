"""`shoal.open` and `shoal.connect`: a store on this machine's disk, or on a node.

Laws:
- Nothing is opened before `async with` enters it. Omitting `async with` raises an
  error that shows how to write it.
- A client loads no code of a node, and an embedded store none of the network:
  each is imported when it is opened. That halves the time to start either.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Never, get_args

from msgspec.structs import replace

from shoal.client.connection import StoreConnection
from shoal.client.store import Store
from shoal.config import Config, checked
from shoal.encryption import KeyService
from shoal.errors import InvalidConfig, InvalidInput
from shoal.protocol.conformance import nearest
from shoal.protocol.requests import Durability
from shoal.protocol.session import Credential


class Opening(AbstractAsyncContextManager[Store]):
    """A store that `async with` opens, and closes at its end."""

    def __init__(self, within: AbstractAsyncContextManager[Store], name: str) -> None:
        self._within = within
        self._name = name

    async def __aenter__(self) -> Store:
        return await self._within.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._within.__aexit__(kind, error, trace)

    def __enter__(self) -> Never:
        raise InvalidInput(
            f"shoal.{self._name} needs `async with`. Nothing was opened. "
            f"In blocking code write `with shoal.sync.{self._name}(…) as store:`."
        )

    def __exit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Never:
        raise AttributeError(
            f"shoal.{self._name}(…) by itself opens nothing, so it has no {name!r}. "
            f"Write `async with shoal.{self._name}(…) as store:`.",
            name=name,
            obj=self,
        )


def open(
    directory: str | os.PathLike[str],
    *,
    config: Config | None = None,
    durability: Durability = "local",
    encryption: str | KeyService = "",
) -> AbstractAsyncContextManager[Store]:
    """Open an embedded store in `directory`: a whole node, without a listener. The directory is created if it is missing.

    With `encryption` everything in it is encrypted: "file:PATH", "env:NAME", "command:COMMAND" or "plugin:MODULE:NAME" says
    where the master key is, or an object of your own wraps keys (`shoal.KeyService`). A directory is encrypted from the
    beginning or not at all.

    Raises:
        MasterKeyWrong: the key is wrong, missing or cannot be fetched, or the directory is not encrypted; nothing was changed.
        StoreLocked: another process has it open; the message says how to share it.
        StoreTooNew, StoreCorrupt, StorageFull, StorageError: it cannot be opened; nothing was changed.
        InvalidConfig: a setting is out of range, or `durability` is unknown.
    """
    return Opening(_open(directory, config, durability, encryption), "open")


@asynccontextmanager
async def _open(
    directory: str | os.PathLike[str], config: Config | None, durability: Durability, encryption: str | KeyService
) -> AsyncIterator[Store]:
    from shoal.node.environment import system_environment
    from shoal.node.node import open_node

    settings = _settings(config, durability)
    master = None
    if isinstance(encryption, str):
        settings = replace(settings, encryption_key=encryption or settings.encryption_key)
    else:
        master = encryption
    environment = system_environment()
    node = await open_node(Path(directory), config=settings, environment=environment, is_embedded=True, master=master)
    connection = StoreConnection(node.session(), settings, durability, environment.entropy, uptime=environment.uptime)
    store = Store(connection, close=node.stop)
    try:
        yield store
    finally:
        await store.close()


def connect(
    urls: str | Sequence[str],
    *,
    token: Credential | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    config: Config | None = None,
    durability: Durability = "local",
    in_order: bool = False,
    wait: float = 0.0,
) -> AbstractAsyncContextManager[Store]:
    """Connect to a node ("http://n1:7400"), or to any of several, given as a list or as a text with commas.

    Connections are made, and made again, when they are needed: the first with the first request. If no address leads to
    a node then, that request says why within 2 s (`Unreachable`). With `wait` it gives nodes that are still starting up
    to that many seconds. Later, if a node goes away, a request waits for it or goes to another, within `request_timeout_s`.

    Each client draws its own order of the addresses and keeps it, so that clients spread over the nodes. With `in_order`
    it prefers them as they are given, for example the nearest first.

    `token` lets the client in at nodes that ask for one: the token itself, the `pathlib.Path` of a file that holds it, or a
    function (async or not) that returns it. A file is read and a function called again for each connection, and once
    more if the token is refused, so that it can be renewed. Without it, the file that SHOAL_TOKEN_FILE names is used, or
    SHOAL_TOKEN itself.

    With "https://" the connection is encrypted. `tls_ca` is a file with the CA that issued the nodes' certificates, such as
    the `ca.pem` that `shoal tls init` makes; without it, the CAs of the system are trusted.

    Raises:
        InvalidConfig: a URL, a setting, `durability`, `token` or `wait` is not legal.
    """
    return Opening(_connect(urls, token, tls_ca, config, durability, in_order=in_order, wait_s=wait), "connect")


@asynccontextmanager
async def _connect(
    urls: str | Sequence[str],
    token: Credential | None,
    tls_ca: str | os.PathLike[str] | None,
    config: Config | None,
    durability: Durability,
    *,
    in_order: bool,
    wait_s: float,
) -> AsyncIterator[Store]:
    from shoal.transport.credentials import from_environment
    from shoal.transport.session import RemoteSession

    settings = _settings(config, durability)
    if tls_ca is not None:
        settings = replace(settings, tls_ca=os.fspath(tls_ca))
    if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or not 0 <= wait_s < math.inf:
        raise InvalidConfig(f"wait must be a number of seconds, at least 0; got {wait_s!r}. Nothing was sent.", field="wait")
    session = RemoteSession(
        urls,
        config=settings,
        now_ms=_now_ms,
        entropy=os.urandom,
        token=from_environment(os.environ) if token is None else token,
        in_order=in_order,
        wait_s=wait_s,
    )
    connection = StoreConnection(session, settings, durability, os.urandom, uptime=_uptime)
    store = Store(connection, close=session.close)
    try:
        yield store
    finally:
        await store.close()


def _uptime() -> float:
    """Seconds. On Linux they include those in which the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _settings(config: Config | None, durability: Durability) -> Config:
    if durability not in ("memory", "local", "quorum", "all"):
        raise InvalidConfig(
            f"durability must be memory, local, quorum or all; got {durability!r}.{nearest(durability, get_args(Durability))}",
            field="durability",
        )
    return checked(Config() if config is None else config)
