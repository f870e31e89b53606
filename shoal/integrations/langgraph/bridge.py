"""Calls to the loop of a saver's store, from any thread or loop.

Law: a call on the store's own loop is awaited there; from any other thread or loop it is
handed over, and the caller waits for it. A blocking call on the loop's own thread
would wait for itself, so it is rejected.
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
    """A bridge to one loop; it must be made on that loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def awaited(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await a call on the store's loop.

        Raises:
            Unavailable: the store's loop is closed.
        """
        if asyncio.get_running_loop() is self._loop:
            return await call()
        return await asyncio.wrap_future(self._handed(call))

    def blocking(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a call on the store's loop, and block until it has ended.

        Raises:
            InvalidInput: this is the loop's own thread.
            Unavailable: the loop is closed; nothing was called.
            OutcomeUnknown: it was closed during the call.
        """
        if _running() is self._loop:
            raise InvalidInput(
                "a blocking call was made on the loop of the saver's store, where it would wait for itself. "
                "Nothing was written. Use the asynchronous form here (`await graph.ainvoke(…)`, `await saver.aget_tuple(…)`), "
                "or call it from another thread."
            )
        future = self._handed(call)
        try:
            return future.result()
        except CancelledError:
            raise OutcomeUnknown(_LOST) from None
        except BaseException:
            future.cancel()  # This thread was interrupted, so nobody waits for the call any more.
            raise

    async def iterated(self, source: AsyncIterator[T]) -> AsyncIterator[T]:
        """Yield the items of an iterator that runs on the store's loop. Raises as `awaited`."""
        if asyncio.get_running_loop() is self._loop:
            async for item in source:
                yield item
            return
        while (found := await self.awaited(lambda: _next(source))) is not None:
            yield found[0]

    def listed(self, source: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items of an iterator that runs on the store's loop, blocking for each. Raises as `blocking`."""
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
