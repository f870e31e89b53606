"""The place where a store was opened: its process, its event loop, and the line of the program.

Laws:
- A store is used where it was opened. In a forked child, and on another loop, every call raises at once, before anything is
  sent or waited for: nothing there would ever answer it.
- A store that nobody closes and nobody can use any more is closed here, with a `ResourceWarning` that names the line.
- A forked child closes nothing of its parent's.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import select
import sys
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from shoal.errors import WrongLoop, WrongProcess
from shoal.forks import disown_in_children, never_destroy
from shoal.protocol.requests import AnyRequest, Durability, Push, R, Request, Subscription
from shoal.protocol.session import Prompt, Session, Told, Wrapper
from shoal.records import NamedTuple

_PACKAGE = str(Path(__file__).parent.parent)


class Line(NamedTuple):
    """A line of the program that uses Shoal."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


def calling_line() -> Line:
    """The line outside of Shoal that led here."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (frame.f_code.co_filename.startswith(_PACKAGE) or _is_library(frame.f_code.co_filename)):
        frame = frame.f_back
    return Line(frame.f_code.co_filename, frame.f_lineno)


def _is_library(file: str) -> bool:
    return Path(file).name in ("contextlib.py", "threading.py") or f"{os.sep}asyncio{os.sep}" in file


class Home:
    """This process, and the loop that runs here and now. Made on that loop."""

    __slots__ = ("__weakref__", "_process", "line", "loop")

    def __init__(self, line: Line | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.line = line
        self._process = os.getpid()

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one that opened the store."""
        return os.getpid() != self._process

    @property
    def has_ended(self) -> bool:
        """Whether the loop is closed, so that nothing can be awaited there any more."""
        return self.loop.is_closed()

    def check(self) -> None:
        """Check that the caller runs on the loop.

        Raises:
            WrongProcess, WrongLoop: it does not; nothing was sent or written.
        """
        self.check_process()
        if _running() is not self.loop:
            raise self._elsewhere()

    def check_process(self) -> None:
        """Check that this is the process that opened the store.

        Raises:
            WrongProcess: it was forked from that process.
        """
        if self.is_inherited:
            raise wrong_process(self._process, self.line)

    def disown(self) -> None:
        """Called in the child, in the thread that forked (`Inherited.disown`)."""
        never_destroy(self.loop)
        with suppress(Exception):  # Private parts of asyncio: without them the child must not run this loop on.
            _listen_alone(self.loop)

    def _elsewhere(self) -> WrongLoop:
        state = "that has ended" if self.has_ended else "that is not the one running here"
        return WrongLoop(
            f"this store was opened{_at(self.line)} on an event loop {state}. Nothing was sent or written. Open a store on "
            "each loop (`asyncio.run` makes a new one each time), or use `shoal.sync.open(…)`, whose store serves all threads."
        )


def wrong_process(opener: int, line: Line | None) -> WrongProcess:
    """The error of a forked child that uses what its parent opened."""
    return WrongProcess(
        f"this store was opened{_at(line)} in process {opener}, from which this process ({os.getpid()}) was forked: its "
        "threads and connections stayed there. Nothing was sent or written. Open or connect a store after the fork, in each "
        "process; docs/PROCESSES.md shows it for gunicorn, Celery and multiprocessing."
    )


def _at(line: Line | None) -> str:
    return "" if line is None else f" at {line}"


def _listen_alone(loop: asyncio.AbstractEventLoop) -> None:
    """Let an inherited loop hear nothing of the parent's sockets, nor change which of them the parent's loop hears.

    The descriptor of an epoll is shared: a child that ends its loop would otherwise take the sockets out of the parent's.
    """
    shared: Any = getattr(loop, "_selector", None)
    if shared is None or not hasattr(select, "epoll"):
        return
    with select.epoll() as alone:
        os.dup2(alone.fileno(), shared.fileno(), inheritable=False)
    inside: Any = loop
    inside._close_self_pipe()
    inside._make_self_pipe()


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Homed(Wrapper):
    """A session that is used only at its home. As long as a handle of the store exists, so does this."""

    __slots__ = ("__weakref__", "_home")

    def __init__(self, session: Session, home: Home) -> None:
        super().__init__(session)
        self._home = home

    def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> Coroutine[Any, Any, R]:
        """Answer `request` (`Session.call`)."""
        self._home.check()
        return self._session.call(request, key=key, durability=durability, stale=stale)

    def subscribe(self, subscription: Subscription, /) -> AbstractAsyncContextManager[AsyncIterator[Push]]:
        """Deliver pushes until the context is left (`Session.subscribe`)."""
        self._home.check()
        return _Subscribed(self._session.subscribe(subscription), self._home)


class PromptlyHomed(Homed):
    """The same, of a session that is `Prompt`."""

    __slots__ = ("_prompt",)

    def __init__(self, session: Prompt, home: Home) -> None:
        super().__init__(session, home)
        self._prompt = session

    def begin(
        self,
        request: AnyRequest,
        told: Told,
        /,
        *,
        key: str | None = None,
        durability: Durability = "local",
        stale: bool = False,
    ) -> bool:
        """Begin `request`, and call `told` with its answer, now or later (`Prompt.begin`)."""
        self._home.check()
        return self._prompt.begin(request, told, key=key, durability=durability, stale=stale)


def homed(session: Session, home: Home) -> Homed:
    """The session, for use at home alone."""
    return PromptlyHomed(session, home) if isinstance(session, Prompt) else Homed(session, home)


class _Subscribed(AbstractAsyncContextManager[AsyncIterator[Push]]):
    """A subscription whose pushes are taken only at home, also if it began before a fork."""

    def __init__(self, within: AbstractAsyncContextManager[AsyncIterator[Push]], home: Home) -> None:
        self._within = within
        self._home = home

    async def __aenter__(self) -> AsyncIterator[Push]:
        return _Pushes(await self._within.__aenter__(), self._home)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._home.is_inherited:
            return None
        try:
            return await self._within.__aexit__(kind, error, trace)
        except RuntimeError:
            # A loop that ends closes all generators at once: the one within may be closed before this one, and says so.
            if kind is not GeneratorExit:
                raise
            return None


class _Pushes(AsyncIterator[Push]):
    def __init__(self, pushes: AsyncIterator[Push], home: Home) -> None:
        self._pushes = pushes
        self._home = home

    def __anext__(self) -> Awaitable[Push]:
        self._home.check()
        return self._pushes.__anext__()


# ── stores that nobody closes ─────────────────────────────────────────────────


class Opened:
    """An open store at its home, from its opening to its close.

    `stop` closes it on its loop. `abandon` releases it without the loop, and `save` writes down at the end of the process
    what was acknowledged before it was on disk; both are called where they may block.
    """

    def __init__(
        self,
        home: Home,
        *,
        session: Homed,
        stop: Callable[[], Awaitable[None]],
        abandon: Callable[[], None],
        save: Callable[[], None],
        directory: Path | None = None,
    ) -> None:
        self.home = home
        self.directory = None if directory is None else directory.resolve()
        self._stop = stop
        self._abandon = abandon
        self._save = save
        self._closing: asyncio.Task[None] | None = None
        self._told = False
        disown_in_children(home)
        self._finalizer = weakref.finalize(session, self._forgotten)
        self._finalizer.atexit = False  # `_at_exit` says it, for all.
        _opened[id(self)] = self

    async def close(self) -> None:
        """Close it on its loop. Closing twice is allowed."""
        self._finalizer.detach()
        try:
            await self._stop()
        finally:
            _opened.pop(id(self), None)

    def abandon(self) -> None:
        """Release it although its loop has ended; what it wrote is on disk then."""
        self._finalizer.detach()
        if _opened.pop(id(self), None) is not None:
            self._abandon()

    def forget(self) -> None:
        """Say that nobody closed it, and abandon it."""
        self._warn()
        self.abandon()

    def save(self) -> None:
        """Say that nobody closed it, at the end of the process, which releases it."""
        self._warn()
        self._save()

    def _forgotten(self) -> None:
        # The collector calls this, on any thread: it hands over to the loop, or closes here what no loop uses any more.
        if self.home.is_inherited:
            return
        if self.home.has_ended:
            self.forget()
            return
        self._warn()
        with suppress(RuntimeError):  # The loop has ended just now; `_at_exit` does the rest.
            self.home.loop.call_soon_threadsafe(self._close_soon)

    def _close_soon(self) -> None:
        self._closing = self.home.loop.create_task(self._closed())

    async def _closed(self) -> None:
        await self.close()

    def _warn(self) -> None:
        if self._told:
            return
        self._told = True
        line = self.home.line or Line("an unknown line", 0)
        warnings.warn_explicit(
            f"the store opened at {line} was never closed. Every write that was acknowledged is safe on disk, or on the node "
            'that it went to; one under durability="memory" is safe unless the machine fails before it is on disk. '
            "Use `async with` or `await store.close()` (blocking: `with` or `store.close()`).",
            ResourceWarning,
            line.file,
            line.number,
        )


_opened: dict[int, Opened] = {}


def opened_in(directory: Path) -> Opened | None:
    """The stores that this process has open in a directory."""
    real = directory.resolve()
    return next((opened for opened in list(_opened.values()) if opened.directory == real), None)


def _at_exit() -> None:
    for opened in list(_opened.values()):
        if not opened.home.is_inherited:
            opened.save()


def _forget_parents() -> None:
    for opened in _opened.values():
        never_destroy(opened)
    _opened.clear()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents)
