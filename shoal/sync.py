"""The blocking face of the store: `shoal.sync.open` and `shoal.sync.connect`.

It is a facade, not a second client: an event loop runs on a thread of its own,
and every call, attribute access and item access on a proxied object is made
there. So everything that the asynchronous handles offer is here, under the same
names: a call that is awaited there returns its result here, `async for` becomes `for`, and
`async with` becomes `with`. Proxies may be used from any thread except the loop's.

The types of the proxies are in `blocking.pyi`, which `python -m tests.reference` derives
from the handles. `shoal.sync.Thread` and the like are names for annotations.

`with shoal.sync.open("./state") as store:` closes the store at the end of the block;
`store = shoal.sync.open("./state")` keeps it open until `store.close()`.

There is no blocking `Crew`: agents are coroutines, which run on the loop of the store that they use.

Closing the store ends everything: calls that still wait on other threads are
cut off with an error, and no thread is left behind.

In a forked child every call raises `WrongProcess` at once: the loop's thread stayed in the parent.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any

import shoal.opening as opening  # `from shoal import` would look for a public name first, and load them all.
from shoal.client.home import Line, wrong_process
from shoal.config import Config
from shoal.encryption import KeyService
from shoal.errors import InvalidInput, OutcomeUnknown, StoreClosed
from shoal.protocol.requests import Durability
from shoal.protocol.session import Credential

if TYPE_CHECKING:
    from shoal.blocking import *
    from shoal.blocking import Store


class Portal:
    """An event loop on a thread of its own. It runs until `close`."""

    def __init__(self, line: Line | None = None) -> None:
        self._line = line  # The line of the program that opened the store.
        self._guard = threading.Lock()  # A call is either submitted before the loop is told to end, or refused.
        self._over: asyncio.Event | None = None
        self._process = os.getpid()
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live(started)), name="shoal-loop", daemon=True)
        self._thread.start()
        self._loop = started.result()

    async def _live(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        # When this returns, `asyncio.run` cancels the tasks that still run.
        over = self._over = asyncio.Event()
        started.set_result(asyncio.get_running_loop())
        await over.wait()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._over is None

    def run(self, function: Callable[[], Any]) -> Any:
        """Call `function` on the loop, await its result if that is awaitable, and return the outcome.

        Raises:
            WrongProcess: this process was forked from the one that opened the store; nothing was called.
            StoreClosed: the portal is closed; nothing was called.
            OutcomeUnknown: it was closed during the call.
            InvalidInput: this is the loop's own thread, which would wait for itself.
        """
        self.check_process()
        future = self._submitted(function)
        try:
            return future.result()
        except CancelledError:
            raise OutcomeUnknown(
                "the store was closed during this call. A write may or may not be applied; "
                "open the store and send it again with the same key."
            ) from None
        except BaseException:
            future.cancel()  # If this thread was interrupted, the call should end too.
            raise

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one whose thread it is."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Check that the loop's thread is in this process.

        Raises:
            WrongProcess: it is in the process from which this one was forked; nothing was called.
        """
        if self.is_inherited:
            raise wrong_process(self._process, self._line)

    def _submitted(self, function: Callable[[], Any]) -> Future[Any]:
        async def call() -> Any:
            outcome = function()
            return await outcome if inspect.isawaitable(outcome) else outcome

        if threading.current_thread() is self._thread:
            raise InvalidInput(
                "a blocking call was made on the store's own loop, for example in a callback, where it would wait for itself. "
                "Nothing was written. Make it on another thread."
            )
        with self._guard:
            if self.closed:
                raise StoreClosed("this store is closed. Nothing was written. Open it again, and make new handles.")
            return asyncio.run_coroutine_threadsafe(call(), self._loop)

    def close(self) -> None:
        """End the loop with everything that still runs on it, and wait for its thread. In a forked child it is the parent's."""
        if self.is_inherited:
            return
        with self._guard:
            over, self._over = self._over, None
            if over is not None:
                self._loop.call_soon_threadsafe(over.set)
        self._thread.join()


# Results that keep using the loop, of whatever class: `doc.transaction()`, `space.watch()`, `doc.map("tasks").items()`.
_UNDER_WAY = (AbstractContextManager, AbstractAsyncContextManager, AsyncIterator, Iterator)


class Proxy:
    """Stands for an object that lives on the loop."""

    __slots__ = ("_portal", "_target")

    def __init__(self, portal: Portal, target: Any) -> None:
        object.__setattr__(self, "_portal", portal)
        object.__setattr__(self, "_target", target)

    def _call(self, function: Callable[[], Any]) -> Any:
        return _wrapped(self._portal, self._portal.run(function))

    def __repr__(self) -> str:
        return f"sync {self._target!r}"

    def __getattr__(self, name: str) -> Any:
        found = self._portal.run(lambda: getattr(self._target, name))
        if not callable(found) or inspect.isclass(found):
            return _wrapped(self._portal, found)

        def call(*args: Any, **kwargs: Any) -> Any:
            plain = [_plain(arg) for arg in args]
            named = {key: _plain(value) for key, value in kwargs.items()}
            return self._call(lambda: found(*plain, **named))

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        self._portal.run(lambda: setattr(self._target, name, _plain(value)))

    def __getitem__(self, key: Any) -> Any:
        return self._call(lambda: self._target[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        self._portal.run(lambda: self._target.__setitem__(key, _plain(value)))

    def __delitem__(self, key: Any) -> None:
        self._portal.run(lambda: self._target.__delitem__(key))

    def __iadd__(self, other: Any) -> Proxy:
        self._portal.run(lambda: self._target.__iadd__(_plain(other)))
        return self

    def __contains__(self, key: Any) -> bool:
        return bool(self._portal.run(lambda: key in self._target))

    def __len__(self) -> int:
        return int(self._portal.run(lambda: len(self._target)))

    def __bool__(self) -> bool:
        return bool(self._portal.run(lambda: bool(self._target)))

    def __str__(self) -> str:
        return str(self._portal.run(lambda: str(self._target)))

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._target, AsyncIterator) or hasattr(self._target, "__aiter__"):
            return self._iterate()
        return iter([_wrapped(self._portal, item) for item in self._portal.run(lambda: list(self._target))])

    def _iterate(self) -> Iterator[Any]:
        source = self._portal.run(lambda: self._target.__aiter__())
        try:
            while True:
                try:
                    item = self._portal.run(lambda: source.__anext__())
                except StopAsyncIteration:
                    return
                yield _wrapped(self._portal, item)
        finally:
            # An iterator that outlives its store was ended with it.
            if hasattr(source, "aclose") and not self._portal.closed and not self._portal.is_inherited:
                self._portal.run(lambda: source.aclose())

    def __enter__(self) -> Any:
        enter = "__aenter__" if hasattr(self._target, "__aenter__") else "__enter__"
        return self._call(lambda: getattr(self._target, enter)())

    def __exit__(self, *exception: Any) -> bool | None:
        leave = "__aexit__" if hasattr(self._target, "__aexit__") else "__exit__"
        return bool(self._portal.run(lambda: getattr(self._target, leave)(*exception)))


def _wrapped(portal: Portal, value: Any) -> Any:
    """A proxy for an object that lives on the loop; plain values as they are."""
    if type(value) is tuple:
        return tuple(_wrapped(portal, item) for item in value)
    module = type(value).__module__
    live = is_handles(module) or module.startswith(("shoal.kinds.document.shared.", "pycrdt"))
    live = live and not is_value(type(value))
    return Proxy(portal, value) if live or isinstance(value, _UNDER_WAY) else value


def is_handles(module: str) -> bool:
    """Whether a module of this name defines handles."""
    parts = module.split(".")
    return parts[:2] == ["shoal", "client"] or (parts[:2] == ["shoal", "kinds"] and parts[3:4] == ["handle"])


def is_value(kind: type) -> bool:
    """Whether a class is frozen, as that of checkpoints is: its objects need no loop."""
    parameters = getattr(kind, "__dataclass_params__", None) or getattr(kind, "__struct_config__", None)
    return bool(parameters is not None and parameters.frozen)


def _plain(value: Any) -> Any:
    return value._target if isinstance(value, Proxy) else value


class StoreProxy(Proxy):
    """Stands for the store, whose loop ends with it."""

    __slots__ = ()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def close(self) -> None:
        """As `Store.close`, and end the loop. Closing twice is allowed."""
        if self._portal.is_inherited or self._portal.closed:
            return
        try:
            self._portal.run(self._target.close)
        finally:
            self._portal.close()


def _opened(opening: opening.Opening) -> Any:
    """A proxy for the store that `opening` opens, on a loop of its own."""
    portal = Portal(opening.line)
    try:
        return StoreProxy(portal, portal.run(opening.__aenter__))
    except BaseException:
        portal.close()
        raise


def open(
    directory: str | os.PathLike[str],
    *,
    config: Config | None = None,
    durability: Durability = "local",
    encryption: str | KeyService = "",
) -> Store:
    """As `shoal.open`, but blocking: `with shoal.sync.open("./state") as store:`, or `store = shoal.sync.open("./state")` until
    `store.close()`. It opens the store at once. Raises the same errors.
    """
    store: Store = _opened(opening.open(directory, config=config, durability=durability, encryption=encryption))
    return store


def connect(
    urls: str | Sequence[str],
    *,
    token: Credential | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    config: Config | None = None,
    durability: Durability = "local",
    in_order: bool = False,
    wait: float = 0.0,
) -> Store:
    """As `shoal.connect`, but blocking: `with`, or until `store.close()`. Raises the same errors."""
    store: Store = _opened(
        opening.connect(urls, token=token, tls_ca=tls_ca, config=config, durability=durability, in_order=in_order, wait=wait)
    )
    return store


def __getattr__(name: str) -> type[Proxy]:
    """The names of the handles, for annotations that are evaluated at run time."""
    import shoal

    handle = getattr(shoal, name, None)
    if inspect.isclass(handle) and is_handles(handle.__module__) and not is_value(handle):
        return Proxy
    raise AttributeError(f"module 'shoal.sync' has no attribute {name!r}")
