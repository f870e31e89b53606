"""What `open` and `connect` of an integration return: a context manager of either kind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from types import TracebackType
from typing import Generic, TypeVar

from shoal.client.store import Store
from shoal.sync import Portal

T = TypeVar("T")


class Opening(Generic[T]):
    """In `async with` the Shoal store lives on the running loop, in `with` on a thread of its own."""

    def __init__(self, store: Callable[[], AbstractAsyncContextManager[Store]], make: Callable[[Store], T]) -> None:
        self._store = store
        self._make = make
        self._open = AsyncExitStack()
        self._blocking = ExitStack()

    async def __aenter__(self) -> T:
        async with AsyncExitStack() as stack:
            made = self._make(await stack.enter_async_context(self._store()))
            self._open = stack.pop_all()
        return made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.__aexit__(kind, error, trace)

    def __enter__(self) -> T:
        with ExitStack() as stack:
            portal = Portal()
            stack.callback(portal.close)
            made: T = portal.run(self.__aenter__)
            stack.callback(lambda: portal.run(self._open.aclose))
            self._blocking = stack.pop_all()
        return made

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._blocking.__exit__(kind, error, trace)
