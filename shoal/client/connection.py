"""The connection that the handles of one store share, and the Yjs client ids that their mirrors hand on.

Yjs client ids of mirrors. A closed mirror leaves its id to a later one of the same store.

A Yjs document keeps an entry for each client that ever edited it, so a document that is opened often would grow with each
opening, and opening it would take longer each time.

Laws:
- A client id is one mirror's at a time. It is left by a mirror that was closed, after all its edits were acknowledged.
- It is used again for the same document, generation and author, if the next mirror is shown exactly the edits that the last
  one made. Two mirrors that edit on from one state under one id diverge for good, and nobody notices.
- It is used again over the connection over which it was left, and no other. The memory of a machine can be copied, and each
  copy has the ids; the connection goes on in one of them at most. An embedded store has its node in the same memory: a
  copy of both writes under the origin of the other, and peers refuse its operations.
- At most `DOCUMENT_CLIENT_IDS_MAX` ids are kept. Beyond that, those of the place at which none was left for longest go.

The client's retries: their number, and the pauses between them.

Laws:
- After a `retryable` error, attempts are bounded by `request_timeout_s` on the event loop's
  clock, and the pauses between them grow up to `reconnect_delay_s_max`.
- Attempts after conflicts with concurrent saves are bounded by `SAVE_ATTEMPTS_MAX`. Their
  pauses are random, so that not all clients come back at once.

Streams that survive the failure of the node that serves them. Each waiting call of the client uses `resumed`.

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

Waits of a caller for something outside of it, which may last long: a person, a message, a lease, a change.

Laws:
- Every wait of the client that may last long is within `waiting()`. A new one belongs within it, too.
- A crew tells `attend` what is to happen around such waits of an agent's function: its lease is given back meanwhile. Other
  callers wait as if this module did not exist.
- Only waits of the function itself count, and those that it awaits with `asyncio.wait_for`. While it does something else, a
  task that it has begun may wait as long as it likes: the function still needs the lease.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import CoroutineType
from typing import Any, Protocol, TypeVar

from shoal.client.home import Home
from shoal.config import Config
from shoal.errors import Disconnected, ShoalError, SlowConsumer, StoreClosed
from shoal.protocol import requests
from shoal.records import NamedTuple
from shoal.workflows.connection import Connection, as_timeout_s


class Place(NamedTuple):
    """The document that a mirror edits, and the author: a document names one author for each client."""

    space: str
    document: str
    author: str


class Ended(NamedTuple):
    """A client id, and where its edits end."""

    client_id: int
    clock: int  # Of its next edit.
    generation: int  # Of the document.
    connections: int  # As the session counted them.


class ClientIds:
    """The ids that were left to a store's mirrors."""

    def __init__(self) -> None:
        self._left: dict[Place, list[Ended]] = {}  # The place at which one was left last is the last.
        self._count = 0

    def take(self, place: Place, connections: int) -> Ended | None:
        """An id that was left over the connection of this number; None if there is none.

        Use it only if the document that is shown then ends so, too.
        """
        left = self._left.get(place)
        if left is None:
            return None
        if left[-1].connections != connections:
            self._drop(place)
            return None
        self._count -= 1
        last = left.pop()
        if not left:
            del self._left[place]
        return last

    def leave(self, place: Place, ended: Ended, *, ids_max: int) -> None:
        """Leave an id to the next mirror. Nobody edits under it any more."""
        self._left[place] = [*self._left.pop(place, ()), ended]  # At the end.
        self._count += 1
        while self._count > ids_max:
            self._drop(next(iter(self._left)))

    def _drop(self, place: Place) -> None:
        self._count -= len(self._left.pop(place))


SAVE_ATTEMPTS_MAX = 64  # Attempts of a change that is repeated because another writer saved first.


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class StoreConnection(Connection):
    """A connection with a source of randomness, and with everything that must end with the store."""

    entropy: Callable[[int], bytes]
    holder: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")  # Recorded with steps begun here.
    closed: asyncio.Event = field(default_factory=asyncio.Event)  # Set when the store closes; streams then stop waiting.
    uptime: Callable[[], float] = _loop_time  # Seconds, for leases; best if they include those that the machine was suspended.
    keepers: dict[str, object] = field(default_factory=dict)  # What works for the store in the background, by name.
    client_ids: ClientIds = field(default_factory=ClientIds)  # Of documents, left by mirrors that were closed.
    home: Home | None = None  # Where the store was opened; None in tests, which use it there.
    closing: dict[object, Callable[[], Awaitable[None]]] = field(default_factory=dict)  # Called when the store closes.

    def check_home(self) -> None:
        """Check, before waiting for something that only the store's own loop can bring, that this is that loop.

        Raises:
            WrongProcess, WrongLoop: it is not.
        """
        if self.home is not None:
            self.home.check()


_FIRST_DELAY_S = 0.05
_CONTENDED_DELAY_S = 0.002  # The maximum before the second attempt: about as long as a save takes.


def delays(config: Config) -> Iterator[float]:
    """Growing pauses, for as long as `request_timeout_s`."""
    loop = asyncio.get_running_loop()
    delay, ends_at = _FIRST_DELAY_S, loop.time() + config.request_timeout_s
    while loop.time() < ends_at:
        delay = min(delay, config.reconnect_delay_s_max)
        yield delay
        delay *= 2


def contended(connection: StoreConnection) -> Iterator[float]:
    """Growing, random pauses between `SAVE_ATTEMPTS_MAX` attempts."""
    bound_s = _CONTENDED_DELAY_S
    for _ in range(SAVE_ATTEMPTS_MAX - 1):
        yield bound_s * int.from_bytes(connection.entropy(2), "big") / 0xFFFF
        bound_s = min(2 * bound_s, connection.config.reconnect_delay_s_max)


async def paused(pauses: Iterator[float], error: ShoalError) -> bool:
    """Wait before the next attempt, at least as long as the error asks for; False if there is none."""
    delay = next(pauses, None)
    if delay is None:
        return False
    asked = error.detail.get("retry_after_s")
    await asyncio.sleep(max(delay, asked) if isinstance(asked, int | float) else delay)
    return True


class Attendant(Protocol):
    """Somebody who is told of the waits of one function."""

    def waited(self) -> AbstractAsyncContextManager[None]:
        """A context around one wait. Waits may be within each other."""

    def lasts(self) -> None:
        """The present wait depends on a person, who takes long."""


class _Attended(NamedTuple):
    task: asyncio.Task[Any]
    attendant: Attendant


_attended: ContextVar[_Attended | None] = ContextVar("attended", default=None)
_NOTHING: AbstractAsyncContextManager[None] = nullcontext()


def attend(attendant: Attendant) -> None:
    """From now on `attendant` is told of the waits of the present task."""
    task = asyncio.current_task()
    assert task is not None
    _attended.set(_Attended(task, attendant))


def waiting() -> AbstractAsyncContextManager[None]:
    """A context for a wait that may last long. Leaving it may take a while, too, as a crew's agent takes its lease again."""
    attendant = _attendant()
    return _NOTHING if attendant is None else attendant.waited()


def lasting() -> None:
    """Say within `waiting()` that the wait depends on a person."""
    attendant = _attendant()
    if attendant is not None:
        attendant.lasts()


def _attendant() -> Attendant | None:
    attended = _attended.get()
    if attended is None:
        return None
    task = asyncio.current_task()
    is_its_wait = task is attended.task or (task is not None and _is_waited_for(task, attended.task))
    return attended.attendant if is_its_wait else None


if sys.version_info >= (3, 12):

    def _is_waited_for(task: asyncio.Task[Any], outer: asyncio.Task[Any]) -> bool:
        """Whether `outer` is within `asyncio.wait_for` of `task`: since Python 3.12 that begins no task."""
        return False

else:

    def _is_waited_for(task: asyncio.Task[Any], outer: asyncio.Task[Any]) -> bool:
        """Whether `outer` is within `asyncio.wait_for` of `task`: until Python 3.11 that begins a task."""
        inner: Any = outer.get_coro()
        while isinstance(inner, CoroutineType) and inner.cr_frame is not None:
            if inner.cr_code is asyncio.wait_for.__code__:
                return inner.cr_frame.f_locals.get("fut") is task
            inner = inner.cr_await
        return False


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
