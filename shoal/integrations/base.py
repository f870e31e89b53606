"""Calls to the loop of a store of an integration, from any thread or loop.

Law: a call on the store's own loop is awaited there; from any other thread or loop it is
handed over, and the caller waits for it. A blocking call on the loop's own thread
would wait for itself, so it is rejected; and so is any call in a forked child, to which that loop will never answer.

The result of an integration's `open` and `connect`: a context manager for `with` and `async with`.

It can also be kept open beyond a block: `await` it and end it with `aclose()`; in blocking code, `begin()` and `close()`.

The state that an integration keeps in one space, and reads as its store's durability says.

Writes of an integration in pieces that one batch can hold, and what is remembered between them.

Law: a piece has at most `batch_writes_max` writes and half of `request_bytes_max`; the other half is for what is
beside the values. A write that is larger by itself is a piece of its own, and is rejected where it is sent.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack, ExitStack
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from shoal import opening
from shoal.client.home import Home, calling_line
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import InvalidInput, OutcomeUnknown, StoreClosed
from shoal.kinds.step.flows import catch_up
from shoal.protocol.requests import Durability
from shoal.protocol.session import Credential
from shoal.sync import Portal

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


class InSpace(OnStore):
    """Something of a framework that keeps its state in a space. Its methods can be called on any loop."""

    def __init__(self, store: Store, *, space: str | None = None) -> None:
        """On a store that is open on the running loop, and that the caller closes.

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `open`.
        """
        self._connection = checked_store(store, type(self).__name__).connection
        self._space = store.space(self.SPACE if space is None else space)
        self._bridge = Bridge()

    async def _caught_up(self, name: str) -> None:
        """With durability `quorum` or `all`, let the node fetch what any node has acknowledged of `name`, and of all that is in
        its partition. Without a majority the node's own state counts, and a write will say what is missing.
        """
        if self._connection.durability in ("quorum", "all"):
            await catch_up(self._connection, self._space.name, name)


K = TypeVar("K")


def pieces(writes: Iterable[T], size_of: Callable[[T], int], config: Config, *, beside: int = 0) -> Iterator[list[T]]:
    """The writes in pieces, in order. `size_of` gives a write's bytes; each piece leaves room for `beside` writes more."""
    piece: list[T] = []
    size = 0
    for each in writes:
        if piece and (len(piece) >= config.batch_writes_max - beside or size + size_of(each) > config.request_bytes_max // 2):
            yield piece
            piece, size = [], 0
        piece.append(each)
        size += size_of(each)
    if piece:
        yield piece


def remember(known: OrderedDict[K, T], place: K, what: T, most: int) -> None:
    """Remember it as the newest of at most `most`."""
    known[place] = what
    known.move_to_end(place)
    if len(known) > most:
        known.popitem(last=False)
