"""The result of an integration's `open` and `connect`: a context manager for `with` and `async with`.

It can also be kept open beyond a block: `await` it and end it with `aclose()`; in blocking code, `begin()` and `close()`.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import AsyncExitStack, ExitStack
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from shoal import opening
from shoal.client.home import calling_line
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import InvalidInput
from shoal.protocol.requests import Durability
from shoal.protocol.session import Credential
from shoal.sync import Portal

T = TypeVar("T")


def checked_store(store: object, kind: str) -> Store:
    """`store`, if it is an open store; `kind` is the class that needs it.

    Raises:
        InvalidInput: it is not a store that is open on a loop; the message shows how to open one.
    """
    if isinstance(store, Store):
        return store
    way, argument = "open", '"./state"'
    if isinstance(store, str | os.PathLike):
        way = "connect" if str(store).startswith(("http://", "https://")) else "open"
        argument = f'"{os.fspath(store)}"'
    raise InvalidInput(
        f"{kind} needs an open store, as from `async with shoal.open(…) as store:`; got {type(store).__name__}. "
        f"Nothing was written. Write `with {kind}.{way}({argument}) as made:`, or `async with`; both open the store themselves."
    )


class Opening(Generic[T]):
    """A saver or store to open. In `async with` its Shoal store is on the running loop, in `with` on a thread of its own."""

    def __init__(self, store: Callable[[], opening.Opening], make: Callable[[Store], T]) -> None:
        self._line = calling_line()
        self._store = store
        self._make = make
        self._open = AsyncExitStack()
        self._blocking = ExitStack()

    def __await__(self) -> Generator[Any, Any, T]:
        return self.__aenter__().__await__()

    async def aclose(self) -> None:
        """Close the store that `await` opened. Closing twice is allowed."""
        await self._open.aclose()

    def begin(self) -> T:
        """As `with`, without a block: until `close`."""
        return self.__enter__()

    def close(self) -> None:
        """Close the store that `begin` opened. Closing twice is allowed."""
        self._blocking.close()

    async def __aenter__(self) -> T:
        store = self._store()
        store.line = self._line
        async with AsyncExitStack() as stack:
            made = self._make(await stack.enter_async_context(store))
            self._open = stack.pop_all()
        return made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.__aexit__(kind, error, trace)

    def __enter__(self) -> T:
        with ExitStack() as stack:
            portal = Portal(self._line)
            stack.callback(portal.close)
            made: T = portal.run(self.__aenter__)
            stack.callback(lambda: None if portal.is_inherited else portal.run(self._open.aclose))
            self._blocking = stack.pop_all()
        return made

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._blocking.__exit__(kind, error, trace)


class OnStore:
    """An integration on a store and one of its spaces, with the store opened by itself if that is wanted."""

    SPACE: ClassVar[str]
    """The name of the space, if none is given."""

    @abstractmethod
    def __init__(self, store: Store, *, space: str | None = None) -> None: ...

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        space: str | None = None,
        config: Config | None = None,
        durability: Durability = "local",
    ) -> Opening[Self]:
        """On an embedded store: `async with` or `with`. See `shoal.open`, also for what it raises."""
        return Opening(
            lambda: opening.open(directory, config=config, durability=durability), lambda store: cls(store, space=space)
        )

    @classmethod
    def connect(
        cls,
        urls: str | Sequence[str],
        *,
        token: Credential | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        space: str | None = None,
        config: Config | None = None,
        durability: Durability = "local",
        wait: float = 0.0,
    ) -> Opening[Self]:
        """On a node, or on any of several: `async with` or `with`. See `shoal.connect`."""
        return Opening(
            lambda: opening.connect(urls, token=token, tls_ca=tls_ca, config=config, durability=durability, wait=wait),
            lambda store: cls(store, space=space),
        )
