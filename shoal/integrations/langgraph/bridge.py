"""Calls to the loop that a saver's store lives on, from whatever thread or loop.

Law: what is called on the store's own loop is awaited there; from anywhere else it is
handed over, and the caller waits for it. A blocking call on the loop's own thread
would wait for itself: it is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from shoal.errors import InvalidInput, OutcomeUnknown, Unavailable

T = TypeVar("T")

_LOST = "the store was closed during this call. A write may or may not be applied; open the store, and read what is there."


class Bridge:
    """Made on the loop that it leads to."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def awaited(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """
        Raises:
            Unavailable: the store's loop is closed.
        """
        if asyncio.get_running_loop() is self._loop:
            return await call()
        return await asyncio.wrap_future(self._handed(call))

    def blocking(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """
        Raises:
            InvalidInput: this is the loop's own thread.
            Unavailable: the loop is closed; nothing was called.
            OutcomeUnknown: it was closed during the call.
        """
        if _running() is self._loop:
            raise InvalidInput(
                "a blocking call was made on the loop that the saver's store lives on, where it would wait for itself. "
                "Nothing was written. Use the asynchronous form here (`await graph.ainvoke(…)`, `await saver.aget_tuple(…)`), "
                "or call it from another thread."
            )
        future = self._handed(call)
        try:
            return future.result()
        except CancelledError:
            raise OutcomeUnknown(_LOST) from None
        except BaseException:
            future.cancel()  # Interrupted, this thread waits no longer; neither should the call.
            raise

    async def iterated(self, source: AsyncIterator[T]) -> AsyncIterator[T]:
        if asyncio.get_running_loop() is self._loop:
            async for item in source:
                yield item
            return
        while (found := await self.awaited(lambda: _next(source))) is not None:
            yield found[0]

    def listed(self, source: AsyncIterator[T]) -> Iterator[T]:
        while (found := self.blocking(lambda: _next(source))) is not None:
            yield found[0]

    def _handed(self, call: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        if self._loop.is_closed() or not self._loop.is_running():
            raise Unavailable("the saver's store is closed, and its loop has ended. Nothing was written. Open it again.")
        return asyncio.run_coroutine_threadsafe(call(), self._loop)


async def _next(source: AsyncIterator[T]) -> tuple[T] | None:
    try:
        return (await anext(source),)
    except StopAsyncIteration:
        return None


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
