"""Calls to the loop of a store of an integration, from any thread or loop.

Law: a call on the store's own loop is awaited there; from any other thread or loop it is
handed over, and the caller waits for it. A blocking call on the loop's own thread
would wait for itself, so it is rejected; and so is any call in a forked child, to which that loop will never answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from shoal.client.home import Home
from shoal.errors import InvalidInput, OutcomeUnknown, StoreClosed

T = TypeVar("T")

LOST = "the store was closed during this call. A write may or may not be applied; open the store, and read what is there."
_CLOSED_CHECK_S = 5.0  # How often a waiting thread looks whether the loop that should answer it has ended.


class Bridge:
    """A bridge to one loop; it must be made on that loop."""

    def __init__(self) -> None:
        self._home = Home()
        self.loop = self._home.loop

    @property
    def here(self) -> bool:
        """Whether the caller runs on the loop."""
        return asyncio.get_running_loop() is self.loop

    async def awaited(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await a call on the store's loop.

        Raises:
            WrongProcess: this process was forked from the one that opened the store; nothing was called.
            StoreClosed: the store's loop is closed.
        """
        self._home.check_process()
        if self.here:
            return await call()
        return await asyncio.wrap_future(self.handed(call))

    def blocking(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a call on the store's loop, and block until it has ended.

        Raises:
            WrongProcess: this process was forked from the one that opened the store; nothing was called.
            InvalidInput: this is the loop's own thread.
            StoreClosed: the loop is closed; nothing was called.
            OutcomeUnknown: it was closed during the call.
        """
        self.check_elsewhere()
        return self.waited(self.handed(call))

    def check_elsewhere(self) -> None:
        """Check that the loop runs, on another thread than this one.

        Raises:
            WrongProcess: the loop runs in the process from which this one was forked.
            InvalidInput: this is the loop's own thread.
            StoreClosed: the loop is closed.
        """
        self._home.check_process()
        if _running() is self.loop:
            raise InvalidInput(
                "a blocking call was made on the loop of the store, where it would wait for itself. "
                "Nothing was written. Use the asynchronous form here (`await graph.ainvoke(…)`, `await saver.aget_tuple(…)`), "
                "or call it from another thread."
            )
        if not self.loop.is_running():
            raise _closed()

    def soon(self, call: Callable[[], None]) -> None:
        """Call it on the loop.

        Raises:
            StoreClosed: the loop is closed.
        """
        try:
            self.loop.call_soon_threadsafe(call)
        except RuntimeError:
            raise _closed() from None

    def waited(self, future: Future[T]) -> T:
        """Block until the loop has set the result.

        Raises:
            OutcomeUnknown: the loop was closed meanwhile.
        """
        while True:
            try:
                return future.result(_CLOSED_CHECK_S)
            except CancelledError:
                raise OutcomeUnknown(LOST) from None
            except TimeoutError:
                if future.done():
                    return future.result()  # It has ended just now, or raised this itself.
                if self.loop.is_closed():
                    raise OutcomeUnknown(LOST) from None
            except BaseException:
                future.cancel()  # If this thread was interrupted, nobody waits for the call any more.
                raise

    async def iterated(self, source: AsyncIterator[T]) -> AsyncIterator[T]:
        """Yield the items of an iterator that runs on the store's loop. Raises as `awaited`."""
        if self.here:
            async for item in source:
                yield item
            return
        while (found := await self.awaited(lambda: _next(source))) is not None:
            yield found[0]

    def listed(self, source: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items of an iterator that runs on the store's loop, blocking for each. Raises as `blocking`."""
        while (found := self.blocking(lambda: _next(source))) is not None:
            yield found[0]

    def handed(self, call: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Begin a call on the store's loop, from any thread or loop; nobody need wait for it.

        Raises:
            WrongProcess: as `awaited`.
            StoreClosed: the loop is closed.
        """
        self._home.check_process()
        if not self.loop.is_running():
            raise _closed()
        return asyncio.run_coroutine_threadsafe(call(), self.loop)


def _closed() -> StoreClosed:
    return StoreClosed("the store is closed, and its loop has ended. Nothing was written. Open it again.")


async def settled(call: Awaitable[T]) -> T:
    """Await a write to its end, even if the caller is cancelled, again and again; then the cancellation is raised.

    So the caller of a cancelled write never finds out later that it was applied.
    """
    task = asyncio.ensure_future(call)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # It is known now, and less important.
        raise cancelled
    return task.result()


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
