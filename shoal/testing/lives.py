"""One life of an agent: its tasks, the points that it passes, and its end.

Laws:
- Every task that is made in a life belongs to it, however deep, and dies with it.
- A life that is over passes no point and comes through no door: whatever its code
  still does while it unwinds (`finally`, `except`), it is not observed.
- What was asked of others (`Errands`) goes on when the asker dies.
"""

from __future__ import annotations

import asyncio
import linecache
import sys
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from types import CoroutineType, FrameType
from typing import Any, TypeVar

from shoal.errors import InvalidInput
from shoal.testing.crash_report import Point

T = TypeVar("T")

CANCELS_MAX = 10
"""How often a task may swallow its cancellation; then it is not resumed any more."""

KILLS_MAX = 100

_KILL_S = 0.001
_SHOAL = str(Path(__file__).parent.parent)
_LOOP = ("asyncio/base_events.py", "asyncio/events.py")

_living: ContextVar[Life | None] = ContextVar("living", default=None)


class Life:
    """`crash_at` is the number of the point where it ends, or None; `struck` is called at that very moment."""

    def __init__(self, *, crash_at: int | None, struck: Callable[[], None]) -> None:
        self.passed = 0
        self.crash: Point | None = None
        self._crash_at = crash_at
        self._struck = struck
        self._over = False
        self._ended = asyncio.Event()
        self._tasks: dict[asyncio.Task[Any], None] = {}  # In the order in which they were made.

    async def live(self, agent: Coroutine[Any, Any, object], *, within_s: float) -> BaseException | None:
        """Run `agent` until it ends or crashes, and see to it that nothing of it is left; returns what it raised.

        Raises:
            InvalidInput: nothing ends a task of its.
        """
        before = _living.set(self)
        try:
            task = asyncio.get_running_loop().create_task(agent)
        finally:
            _living.reset(before)
        task.add_done_callback(lambda _: self._ended.set())
        try:
            async with asyncio.timeout(within_s):
                await self._ended.wait()
        except TimeoutError:
            return TimeoutError(f"it had not ended {within_s:g} virtual seconds after it was started")
        finally:
            ended = task.done() and not self._over
            await self._bury()
        if not ended:
            return None
        return asyncio.CancelledError("it cancelled itself") if task.cancelled() else task.exception()

    async def reach(self, moment: str) -> None:
        """Pass a point, or crash there; never returns to who is dead."""
        await self.go_on()
        number, self.passed = self.passed, self.passed + 1
        if number == self._crash_at:
            self.crash = Point(number, moment, _line(sys._getframe(1)))
            self._end()
            self._struck()
            await self.go_on()

    async def go_on(self) -> None:
        """Return to the living only."""
        if self._over:
            await asyncio.get_running_loop().create_future()

    def adopt(self, task: asyncio.Task[Any]) -> None:
        self._tasks[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if self._over and not task.cancelled():
            task.exception()  # Of the dead, nobody asks.

    def _end(self) -> None:
        self._over = True
        self._ended.set()
        for task in list(self._tasks):
            task.cancel()

    async def _bury(self) -> None:
        """As `kill -9` does: who swallows its cancellation is not asked again.

        Raises:
            InvalidInput: a coroutine yields even while it is closed, for ever.
        """
        for attempt in range(KILLS_MAX):
            self._end()
            if not self._tasks:
                return
            if attempt >= CANCELS_MAX:
                self._close()
            await asyncio.wait(list(self._tasks), timeout=_KILL_S)
        raise InvalidInput(
            f"the agent cannot be killed: {next(iter(self._tasks))!r} goes on whatever is raised in it. "
            "Let CancelledError and GeneratorExit pass, or nothing could ever stop it."
        )

    def _close(self) -> None:
        for task in self._tasks:
            if isinstance(coroutine := task.get_coro(), CoroutineType):
                with suppress(RuntimeError):  # "coroutine ignored GeneratorExit"
                    coroutine.close()


class Errands:
    """What others do for an agent: requests at a node, effects in the world. They outlive who asked."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}

    async def run(self, errand: Coroutine[Any, Any, T]) -> T:
        """What `errand` returns or raises, to whoever is still there to hear it."""
        before = _living.set(None)
        try:
            task = asyncio.get_running_loop().create_task(errand)
        finally:
            _living.reset(before)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        await asyncio.wait([task])
        return task.result()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # Who asked may be dead.

    async def done(self, *, within_s: float) -> None:
        """Return once all have ended; those that take longer are dropped."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=within_s)
        self.drop()

    def drop(self) -> None:
        for task in list(self._tasks):
            task.cancel()


def task_of_the_living(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T], /, **options: Any
) -> asyncio.Task[T]:
    """A task factory: whoever lives adopts the tasks that it makes."""
    task = asyncio.Task(coroutine, loop=loop, **options)
    living = _living.get()
    if living is not None:
        living.adopt(task)
    return task


def _line(frame: FrameType | None) -> str:
    """The innermost line that is the agent's: neither Shoal's nor the loop's."""
    while frame is not None and not frame.f_code.co_filename.endswith(_LOOP):
        file = frame.f_code.co_filename
        if not file.startswith(_SHOAL) and "asyncio" not in Path(file).parts:
            source = linecache.getline(file, frame.f_lineno).strip()
            return f"{Path(file).name}:{frame.f_lineno}: {source}".rstrip(": ")
        frame = frame.f_back
    return ""
