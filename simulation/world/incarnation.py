"""One life of a simulated node, from a start to a stop or a crash.

Laws:
- Whatever a node begins belongs to the life in which it was begun: tasks inherit it
  with their context, as do those that they begin.
- Once a life is over, its tasks are cancelled, and every door to the world raises
  `Fenced`: what a `finally` of a killed node still does reaches nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")
_Work = Coroutine[Any, Any, Any] | Generator[Any, None, Any]

_REAPED_S = 1.0  # Between two attempts to end a task that outlives its cancellation.
_REAPED_TIMES = 10


class Fenced(BaseException):
    """The life of whoever called is over.

    No `Exception`: production code must not take it for an error that it can handle.
    """


class Incarnation:
    """`over` is True from the crash or the stop on."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.over = False
        self._begun = 0
        self._tasks: WeakValueDictionary[int, asyncio.Task[Any]] = WeakValueDictionary()  # In the order of their beginnings.
        self._context = copy_context()
        self._context.run(_LIVING.set, self)

    def __str__(self) -> str:
        return f"{self.name}/{self.number}"

    def check(self) -> None:
        """
        Raises:
            Fenced: this life is over.
        """
        if self.over:
            raise Fenced(str(self))

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Let `work` be done in this life."""
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    def run(self, function: Callable[..., T], /, *arguments: object) -> T:
        """Call `function` as this node would."""
        return self._context.copy().run(function, *arguments)

    def end(self) -> None:
        """Fence it, and cancel what it was doing."""
        self.over = True
        for task in self._left():
            task.cancel()

    async def gone(self) -> list[str]:
        """Wait until nothing of this life, which is over, is under way; names what does not end."""
        for _ in range(_REAPED_TIMES):
            left = self._left()
            if not left:
                return []
            await asyncio.wait(left, timeout=_REAPED_S)
            for task in self._left():
                task.cancel()
        return [repr(task.get_coro()) for task in self._left()]

    def _left(self) -> list[asyncio.Task[Any]]:
        return [task for task in self._tasks.values() if not task.done()]

    def _take(self, task: asyncio.Task[Any]) -> None:
        self._begun += 1
        self._tasks[self._begun] = task
        if self.over:
            task.cancel()


class _Owned(asyncio.Task[Any]):
    """A task that knows to whose life it belongs; None: to no node's."""

    life: Incarnation | None = None


_LIVING: ContextVar[Incarnation | None] = ContextVar("living", default=None)


def own_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Let every task on `loop` belong to the life that began it."""
    loop.set_task_factory(_begin)


def life_of(task: object) -> Incarnation | None:
    """To whose life a task belongs."""
    return task.life if isinstance(task, _Owned) else None


def _begin(
    loop: asyncio.AbstractEventLoop, work: _Work, /, *, context: Context | None = None, **settings: Any
) -> asyncio.Task[Any]:
    task = _Owned(work, loop=loop, context=context, **settings)
    task.life = _LIVING.get() if context is None else context.get(_LIVING)
    if task.life is not None:
        task.life._take(task)
    return task
