"""Work that shares the loop: in steps, so that one large object does not delay requests for others, and beside its caller.

Laws:
- Long work is a generator that yields between its steps. A step looks at a bounded number of rows and bytes, never at a
  clock, so that a simulated run can be repeated. Between two steps anything may change: a step reads what it needs anew.
- Work that nobody waits for rests after each step, for `REST` times as long as that took: of a busy loop, and of the disk, it
  has a third at most. In a simulated run a step takes no time, so nothing there depends on a clock.
- The rest of such work lasts while requests wait for their turn, for a second at most: where others have the processor, too, a
  third of the loop is what requests lack, and they would wait for longer and longer.
- A task that lasts as long as its part, and ends by an error that nobody expected, is told in the log at once;
  if nothing begins it anew, the node says so for as long as it runs.
- A part that is closed cancels its work in the background and waits for it, unless that ends by itself in bounded time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import closing, suppress
from functools import partial
from typing import Any, TypeVar

from shoal.errors import ShoalError
from shoal.kinds.document.state.document import Pace
from shoal.logs import events
from shoal.logs.lines import log
from shoal.node.environment import Environment, turn

READ_STEP_ROWS_MAX = 128  # Looked at in one step of a read, so that a long one does not delay other work.
READ_STEP_BYTES_MAX = 128 * 1024  # The same in bytes; the first row may exceed it.
DOCUMENT_STEP_UPDATES_MAX = 256  # Updates read or merged in one step, so that large documents do not delay other work.
DOCUMENT_STEP_BYTES_MAX = 64 * 1024  # The same in bytes; the first update may exceed it.
DOCUMENT_WHOLE_BYTES_MAX = 1024 * 1024  # Larger merged updates and snapshots are opened in pieces: ten times as much work.

REST = 2  # Times as long as a step of work that nobody waits for, others have the loop after it.
WAITED_MAX = 20  # Rests more, while requests wait for their turn.
_REST_S_MAX = 0.05  # At most: a step that waited for a processor, and not for its work, took long by the clock.

T = TypeVar("T")

Steps = Generator[None, None, T]


def document_pace() -> Pace:
    """The most that one step of work on a document may take."""
    return Pace(DOCUMENT_STEP_UPDATES_MAX, DOCUMENT_STEP_BYTES_MAX, DOCUMENT_WHOLE_BYTES_MAX)


class Stride:
    """The bounds of one step of a long read: so many rows, or so many bytes; the first row may exceed them."""

    __slots__ = ("_bytes", "_bytes_max", "_rows", "_rows_max")

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._rows = self._bytes = 0

    @classmethod
    def usual(cls) -> Stride:
        """That of most reads."""
        return cls(READ_STEP_ROWS_MAX, READ_STEP_BYTES_MAX)

    def is_over(self, size: int, *, rows: int = 1) -> bool:
        """Count rows that were looked at. Returns whether the step is over; the next one begins then."""
        self._rows += rows
        self._bytes += size
        if self._rows < self._rows_max and self._bytes < self._bytes_max:
            return False
        self._rows = self._bytes = 0
        return True


class Resting:
    """The steps of one task that nobody waits for. `waiting`: how many requests wait for their turn of the loop."""

    def __init__(self, environment: Environment, waiting: Callable[[], int] = lambda: 0) -> None:
        self._now, self._pause, self._waiting = environment.monotonic, environment.pause, waiting
        self._began = self._now()

    async def rest(self) -> None:
        """A step is over: let others work."""
        rest_s = min((self._now() - self._began) * REST, _REST_S_MAX)
        await self._pause()
        if rest_s > 0:
            await asyncio.sleep(rest_s)
            for _ in range(WAITED_MAX):
                if not self._waiting():
                    break
                await asyncio.sleep(rest_s)
        self._began = self._now()


async def in_turns(steps: Steps[T], pause: Callable[[], Awaitable[None]] = turn) -> T:
    """Take the steps, and return their result; others get a turn between them. `pause` waits for the end of theirs."""
    with closing(steps):
        while True:
            try:
                next(steps)
            except StopIteration as done:
                outcome: T = done.value
                return outcome
            await pause()


def at_once(steps: Steps[T]) -> T:
    """Take the steps without a turn for others, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            outcome: T = done.value
            return outcome


def lasting(work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
    """Do this in a task of its own, which its part holds, and cancels when it is closed. `what` is a name for people."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(partial(_told, what))
    return task


def _told(what: str, task: asyncio.Task[None]) -> None:
    if (bug := _bug_of(task)) is not None:
        log(events.TASK_ENDED, where=what, bug=bug)


def _bug_of(task: asyncio.Task[None]) -> Exception | None:
    """The error that ended a task and should not have: a `ShoalError` is of a storage that failed, which is told."""
    error = None if task.cancelled() else task.exception()
    # What is no `Exception` ends the process, not the task.
    return error if isinstance(error, Exception) and not isinstance(error, ShoalError) else None


class Upkeep:
    """The tasks that last as long as a node, and which of them have ended too early."""

    def __init__(self) -> None:
        self.ended: dict[str, None] = {}
        """The names of those that a bug ended: their parts do nothing more until the node starts again."""

    def begin(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        """Do this as `lasting` does, and note if a bug ends it. A part that begins its task anew by itself uses `lasting`."""
        task = lasting(work, what)
        task.add_done_callback(partial(self._note, what))
        return task

    def _note(self, what: str, task: asyncio.Task[None]) -> None:
        if _bug_of(task) is not None:
            self.ended[what] = None


class Background:
    """The tasks of one part of the node, as many as this part has requests under way: it bounds them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()  # The loop itself holds tasks only weakly.

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this in a task of its own. It must not raise."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def attempt(self, work: Callable[[], Awaitable[None]]) -> None:
        """Try this, which may fail with a `ShoalError`. It is never called if the part is closed before its turn."""
        self.start(_tried(work))

    async def close(self) -> None:
        """Cancel all that is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _tried(work: Callable[[], Awaitable[None]]) -> None:
    with suppress(ShoalError):
        await work()
