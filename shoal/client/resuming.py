"""Streams that survive the failure of the node that serves them. Each waiting call of the client uses `resumed`.

A loop over a stream that ended with its node would make every caller write the same retry, and each would miss or repeat
something in another way.

An attempt serves the stream until the node disconnects. The next attempt continues from there, with any node that answers.

Laws:
- No item is yielded twice, and none between two attempts is left out: an attempt begins at a place that moves with
  each item (a position, a cursor, a set of items yielded).
- If no node serves the stream for `request_timeout_s`, it ends with the last error. While a node serves it, it
  may be silent for any time.
- With a `timeout` the stream ends if no item has come for so many seconds. Only time in which a node could
  have sent one counts: if no node serves the stream then, it ends with the error instead, no earlier
  than `failover_timeout_s` after the node was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TypeVar

from shoal.client.connection import StoreConnection
from shoal.client.retrying import delays, paused
from shoal.client.waiting import waiting
from shoal.config import Config
from shoal.errors import Disconnected, ShoalError, SlowConsumer, StoreClosed
from shoal.protocol import requests
from shoal.workflows.moments import as_timeout_s

T = TypeVar("T")


class StreamTimer:
    """The state of one stream: whether a node serves it, when the last item came, and when to give up."""

    def __init__(self, config: Config, timeout_s: float | None) -> None:
        self._config = config
        self._timeout_s = as_timeout_s(timeout_s)
        self._loop = asyncio.get_running_loop()
        self._idle_since = self._lost_at = self._loop.time()
        self._served = False
        self._scope: asyncio.Timeout | None = None
        self._error: ShoalError = Disconnected(
            "no node answered within the timeout. Nothing was written. Try again, or use a longer timeout."
        )
        self.pauses = delays(config)

    def served(self) -> None:
        """Note that a node serves the stream: it has sent everything that existed, and sends new items."""
        self.pauses = delays(self._config)
        if not self._served:
            self._served = True
            self._reschedule()

    def lost(self, error: ShoalError) -> None:
        """Note that the node disconnected, with this error."""
        if self._served:
            self._lost_at = self._loop.time()
        self._served, self._error = False, error
        self._reschedule()

    def taken(self) -> None:
        """Note that the caller waits for the next item."""
        self._idle_since = self._loop.time()

    @asynccontextmanager
    async def waiting(self) -> AsyncGenerator[asyncio.Timeout, None]:
        """A context for a wait for an item, or for a part of that wait; it raises TimeoutError when it is time to give up."""
        async with asyncio.timeout_at(self._ends_at()) as scope:
            self._scope = scope
            try:
                yield scope
            finally:
                self._scope = None

    def check_served(self) -> None:
        """Call this when the timeout is over.

        Raises:
            ShoalError: no node serves the stream; this is the reason.
        """
        if not self._served:
            raise self._error

    def _ends_at(self) -> float | None:
        if self._timeout_s is None:
            return None
        ends_at = self._idle_since + self._timeout_s
        return ends_at if self._served else max(ends_at, self._lost_at + self._config.failover_timeout_s)

    def _reschedule(self) -> None:
        if self._timeout_s is not None and self._scope is not None:
            self._scope.reschedule(self._ends_at())


Serve = Callable[[StreamTimer], AsyncGenerator[T, None]]
"""Serves a stream from its current place, and calls `served`. If it ends without an error, the next one begins at once."""


async def resumed(
    config: Config,
    attempt: Serve[T],
    *,
    timeout: float | None = None,  # noqa: ASYNC109
    closed: Callable[[], bool] = lambda: False,
) -> AsyncGenerator[T, None]:
    """Yield the items of one attempt after another. Once `closed` is true, no new attempt begins.

    Raises:
        Disconnected, Unavailable: no node served it for `config.request_timeout_s`, or at the end of `timeout`.
        StoreClosed: it broke off, and `closed` is true.
        ShoalError: an error that is not retryable.
    """
    timer = StreamTimer(config, timeout)
    items = attempt(timer)
    failure: ShoalError | None = None
    try:
        while True:
            try:
                async with waiting(), timer.waiting() as scope:
                    if failure is not None:
                        if closed() or not failure.retryable or not await paused(timer.pauses, failure):
                            break
                        failure, items = None, attempt(timer)
                    item = await anext(items)
            except StopAsyncIteration:
                await asyncio.sleep(0)
                items = attempt(timer)
            except TimeoutError:
                if not scope.expired():
                    raise
                timer.check_served()
                return
            except ShoalError as error:
                failure = error
                timer.lost(error)
            else:
                timer.served()
                yield item
                timer.taken()
    finally:
        await items.aclose()
    if closed() and failure.retryable:
        raise StoreClosed(
            "this ended because its store or document was closed. Open it again, and make new handles."
        ) from failure
    raise failure


def reread(
    connection: StoreConnection,
    space: str,
    thread: str,
    what: str,
    read: Callable[[], AsyncGenerator[T, None]],
    *,
    timeout: float | None = None,
) -> AsyncGenerator[T, None]:
    """The items of `read`, called now and after each change `what` of a thread. It must leave out items it yielded before."""

    async def attempt(timer: StreamTimer) -> AsyncGenerator[T, None]:
        # Watch first, then read: an item between is seen by both, and yielded once.
        async with connection.session.subscribe(requests.Watch(space, "thread", thread)) as changes:
            async with aclosing(read()) as items:
                async for item in items:
                    yield item
            timer.served()
            with suppress(SlowConsumer):  # A slow reader reads again, as it would after a change.
                async for change in changes:
                    if isinstance(change, requests.Change) and (change.name, change.what) == (thread, what):
                        return

    return resumed(connection.config, attempt, timeout=timeout, closed=connection.closed.is_set)
