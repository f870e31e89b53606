"""Waits of a caller for something outside of it, which may last long: a person, a message, a lease, a change.

Laws:
- Every wait of the client that may last long is within `waiting()`. A new one belongs within it, too.
- A crew tells `attend` what is to happen around such waits of an agent's function: its lease is given back meanwhile. Other
  callers wait as if this module did not exist.
- Only waits of the function itself count, and those that it awaits with `asyncio.wait_for`. While it does something else, a
  task that it has begun may wait as long as it likes: the function still needs the lease.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar
from types import CoroutineType
from typing import Any, Protocol

from shoal.records import NamedTuple


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
