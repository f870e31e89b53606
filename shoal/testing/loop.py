"""An asyncio event loop whose time is moved, not waited for.

Laws:
- Time stands still while anything can run, and then jumps to the next timer: a run
  is as fast as its computing, and depends on nothing but the program and its seed.
- There is nothing outside: no sockets, no threads, no signals. A program that waits
  for something which no timer and no task will ever bring is `Stalled`.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

STEPS_MAX = 20_000_000
"""Turns of the loop in one run: past it the program does not end by itself."""


class Stalled(RuntimeError):
    """Everything waits, and nothing will come."""


class TooLong(RuntimeError):
    """The run took more turns of the loop than it may."""


class _Nothing(selectors.BaseSelector):
    """Selects nothing, at once, and lets the loop's time pass instead."""

    def __init__(self, steps_max: int) -> None:
        self.now = 0.0
        self._registered: dict[int, selectors.SelectorKey] = {}  # The loop's own pipe, which nobody writes to.
        self.steps = 0
        self._steps_max = steps_max

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        descriptor = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._registered[descriptor] = selectors.SelectorKey(fileobj, descriptor, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._registered.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.steps += 1
        if self.steps > self._steps_max:
            raise TooLong(f"more than {self._steps_max} turns of the loop, {self.now:.3f} virtual seconds from the beginning")
        if timeout is None:
            raise Stalled(f"everything waits, {self.now:.3f} virtual seconds from the beginning, and nothing will come")
        if timeout > 0:
            self.now += timeout
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._registered


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` begins at 0, in virtual seconds."""

    def __init__(self, *, steps_max: int = STEPS_MAX) -> None:
        self._nothing = _Nothing(steps_max)
        super().__init__(self._nothing)
        # A timer is due when its time has come, and not a tick of some clock earlier.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._nothing.now

    def grant_turns(self) -> None:
        """Count the turns anew."""
        self._nothing.steps = 0


def run(main: Coroutine[Any, Any, T], *, steps_max: int = STEPS_MAX) -> T:
    """Run `main` to its end in virtual time.

    Raises:
        Stalled: it waits for something that will not come.
        TooLong: it does not end.
    """
    loop = VirtualLoop(steps_max=steps_max)
    try:
        return loop.run_until_complete(main)
    finally:
        try:
            loop.grant_turns()  # Who took too many gets as many again, to end.
            _finish(loop)
        finally:
            loop.close()


def _finish(loop: VirtualLoop) -> None:
    """Cancel what is left, so that no task outlives its run."""
    # In the order of their beginnings, which their names count: a set of tasks has another order each time.
    left = sorted(asyncio.all_tasks(loop), key=lambda task: (len(task.get_name()), task.get_name()))
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
