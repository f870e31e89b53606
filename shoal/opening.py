"""`shoal.open` and `shoal.connect`: a store on this machine's disk, or on a node.

Laws:
- Nothing is opened before `async with` enters it, or `await`. Omitting both raises an
  error that shows how to write it.
- A store is used on the loop and in the process that opened it, as `shoal.client.home` says.
- A client loads no code of a node, and an embedded store none of the network:
  each is imported when it is opened. That halves the time to start either.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Never, get_args

from msgspec.structs import replace

from shoal.client.connection import StoreConnection
from shoal.client.home import Home, Line, Opened, calling_line, homed, opened_in
from shoal.client.store import Store
from shoal.config import Config, checked
from shoal.encryption import KeyService
from shoal.errors import InvalidConfig, InvalidInput, ShoalError, StoreLocked
from shoal.protocol.conformance import nearest
from shoal.protocol.requests import Durability
from shoal.protocol.session import Credential
from shoal.traces.sessions import traced


class Opening(AbstractAsyncContextManager[Store]):
    """A store to open: `async with` opens it, and closes it at its end; `await` opens it until its `close()`."""

    def __init__(self, make: Callable[[Line], Awaitable[Store]], name: str) -> None:
        self._make = make
        self._name = name
        self._store: Store | None = None
        self.line = calling_line()
        """The line of the program that opens it, for messages."""

    def __await__(self) -> Generator[Any, Any, Store]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Store:
        if self._store is not None:
            raise InvalidInput(
                f"this shoal.{self._name}(…) has opened its store already. Nothing more was opened. "
                f"Call shoal.{self._name}(…) again."
            )
        self._store = await self._make(self.line)
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._store is not None
        try:
            await self._store.close()
        except ShoalError as closing:
            if error is None:
                raise
            # The error of the block is the one to be seen first; often it is the cause of this one.
            error.add_note(f"The store could not be closed cleanly either: {closing.message}")
        return None

    def __enter__(self) -> Never:
        raise InvalidInput(
            f"shoal.{self._name} needs `async with` or `await`. Nothing was opened. "
            f"In blocking code write `with shoal.sync.{self._name}(…) as store:`."
        )

    def __exit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Never:
        raise AttributeError(
            f"shoal.{self._name}(…) by itself opens nothing, so it has no {name!r}. "
            f"Write `async with shoal.{self._name}(…) as store:`, or `store = await shoal.{self._name}(…)` and close it.",
            name=name,
            obj=self,
        )


def open(
    directory: str | os.PathLike[str],
    *,
    config: Config | None = None,
    durability: Durability = "local",
    encryption: str | KeyService = "",
    redact: Mapping[str, Callable[[Any], Any]] | None = None,
) -> Opening:
    """Open an embedded store in `directory`: a whole node, without a listener. The directory is created if it is missing.

    `async with shoal.open("./state") as store:` closes it at the end of the block; `store = await shoal.open("./state")`, as in
    a notebook, keeps it open until `await store.close()`. It is used on the loop and in the process that opened it.

    With `encryption` everything in it is encrypted: "file:PATH", "env:NAME", "command:COMMAND" or "plugin:MODULE:NAME" says
    where the master key is, or an object of your own wraps keys (`shoal.KeyService`). A directory is encrypted from the
    beginning or not at all.

    `redact` has functions that see the texts of a write before anything is stored, and replace parts of them, by the names by
    which a space's rules ask for them: docs/REDACTION.md.

    Raises:
        MasterKeyWrong: the key is wrong, missing or cannot be fetched, or the directory is not encrypted; nothing was changed.
        StoreLocked: another process, or this one, has it open; the message says where, and how to share it.
        StoreTooNew, StoreCorrupt, StorageFull, StorageError: it cannot be opened; nothing was changed.
        InvalidConfig: a setting is out of range, `durability` is unknown, or `directory` is the address of a node.
    """
    return Opening(lambda line: _open(line, directory, config, durability, encryption, redact), "open")


async def _open(
    line: Line,
    directory: str | os.PathLike[str],
    config: Config | None,
    durability: Durability,
    encryption: str | KeyService,
    redact: Mapping[str, Callable[[Any], Any]] | None,
) -> Store:
    from shoal.node.environment import system_environment
    from shoal.node.node import open_node

    if not isinstance(directory, str | os.PathLike):
        raise InvalidConfig(
            f"the directory of a store must be text or a path; got {type(directory).__name__}. Nothing was opened."
        )
    settings = _settings(config, durability)
    master = None
    if isinstance(encryption, str):
        settings = replace(settings, encryption_key=encryption or settings.encryption_key)
    else:
        master = encryption
    environment = system_environment()
    where = Path(directory)
    if where.parts and where.parts[0] in ("http:", "https:"):
        raise InvalidConfig(
            f"shoal.open() takes a directory, and {os.fspath(directory)!r} is the address of a node. Nothing was written. Use "
            "shoal.connect() for it.",
            field="directory",
        )
    before = opened_in(where)
    if before is not None and before.home.has_ended:
        before.forget()  # Nobody can close it any more.
    try:
        node = await open_node(where, config=settings, environment=environment, is_embedded=True, master=master, redact=redact)
    except StoreLocked as error:
        raise _locked_here(error, where) from None
    home = Home(line)
    own = node.session()

    async def stop() -> None:
        own.end()
        await node.stop()

    session = homed(traced(own, "store"), home)
    opened = Opened(home, session=session, stop=stop, abandon=node.abandon, save=node.save, directory=where)
    connection = StoreConnection(session, settings, durability, environment.entropy, uptime=environment.uptime, home=home)
    return Store(connection, close=opened.close, abandon=opened.abandon)


def _locked_here(error: StoreLocked, directory: Path) -> StoreLocked:
    """The same error; if it is this program that has the directory open, with the line that opened it."""
    before = opened_in(directory)
    if before is None or before.home.line is None:
        return error
    holder, _, rest = error.message.partition(". Nothing was written.")
    return StoreLocked(
        f"{holder}: this very process, which opened it at {before.home.line}. Nothing was written. Use that store, or close it "
        f"first (`await store.close()`; blocking: `store.close()`). {rest.strip()}"
    )


def connect(
    urls: str | Sequence[str],
    *,
    token: Credential | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    config: Config | None = None,
    durability: Durability = "local",
    in_order: bool = False,
    wait: float = 0.0,
) -> Opening:
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
    return Opening(
        lambda line: _connect(line, urls, token, tls_ca, config, durability, in_order=in_order, wait_s=wait), "connect"
    )


async def _connect(
    line: Line,
    urls: str | Sequence[str],
    token: Credential | None,
    tls_ca: str | os.PathLike[str] | None,
    config: Config | None,
    durability: Durability,
    *,
    in_order: bool,
    wait_s: float,
) -> Store:
    from shoal.transport.keyring import from_environment
    from shoal.transport.session import RemoteSession, SessionContext

    settings = _settings(config, durability)
    if tls_ca is not None:
        settings = replace(settings, tls_ca=os.fspath(tls_ca))
    if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or not 0 <= wait_s < math.inf:
        raise InvalidConfig(f"wait must be a number of seconds, at least 0; got {wait_s!r}. Nothing was sent.", field="wait")
    remote = RemoteSession(
        urls,
        config=settings,
        context=SessionContext(_now_ms, os.urandom),
        token=from_environment(os.environ) if token is None else token,
        in_order=in_order,
        wait_s=wait_s,
    )
    home = Home(line)
    session = homed(traced(remote, "client"), home)
    opened = Opened(home, session=session, stop=remote.close, abandon=remote.abandon, save=lambda: None)
    connection = StoreConnection(session, settings, durability, os.urandom, uptime=_uptime, home=home)
    return Store(connection, close=opened.close, abandon=opened.abandon)


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
