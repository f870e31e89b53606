"""An asyncio event loop with virtual time.

Laws:
- Time stands still while anything can run, and then jumps to the next timer: a run
  takes only its computing time, and depends only on the program and its seed.
- There are no sockets, threads or signals. A program that waits although no timer
  and no task is left is `Stalled`.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

STEPS_MAX = 20_000_000
"""Turns of the loop in one run: past it the program does not end by itself."""

_RESOLUTION_S = 1e-9
"""Timers that are due within it fire together."""


class Stalled(RuntimeError):
    """All tasks wait, and no timer is left."""


class TooLong(RuntimeError):
    """The run took more turns of the loop than allowed."""


class _Nothing(selectors.BaseSelector):
    """A selector that returns at once without events, and advances the loop's time instead."""

    def __init__(self, steps_max: int) -> None:
        self.now = 0.0
        self.next_timer: Callable[[], float] = lambda: self.now  # When it is due.
        self._registered: dict[int, selectors.SelectorKey] = {}  # The loop's own pipe, to which nothing writes.
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
            self.steps = 0  # The cleanup gets as many again.
            raise TooLong(f"more than {self._steps_max} turns of the loop, {self.now:.3f} virtual seconds from the beginning")
        if timeout is None:
            raise Stalled(f"everything waits, {self.now:.3f} virtual seconds from the beginning, and nothing will come")
        if timeout > 0:
            self.now += timeout
        elif 0 < (due := self.next_timer()) - self.now < _RESOLUTION_S:
            self.now = due  # It fires in this turn. Before its time, whoever waits for that time would wait again without end.
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._registered


class VirtualLoop(asyncio.SelectorEventLoop):
    """The event loop; `time()` begins at 0, in virtual seconds."""

    def __init__(self, *, steps_max: int = STEPS_MAX) -> None:
        self._nothing = _Nothing(steps_max)
        super().__init__(self._nothing)
        self._clock_resolution = _RESOLUTION_S
        self._nothing.next_timer = self._next_timer

    def time(self) -> float:
        """The virtual time, in seconds since the loop was made."""
        return self._nothing.now

    def _next_timer(self) -> float:
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return timers[0].when() if timers else self.time()

    @property
    def turns(self) -> int:
        """How many turns the loop took since it was made, or was last granted turns."""
        return self._nothing.steps

    def grant_turns(self) -> None:
        """Allow as many turns again as at the beginning."""
        self._nothing.steps = 0


def run(main: Coroutine[Any, Any, T], *, steps_max: int = STEPS_MAX) -> T:
    """Run `main` to its end in virtual time.

    Raises:
        Stalled: all tasks wait, and no timer is left.
        TooLong: it does not end.
    """
    loop = VirtualLoop(steps_max=steps_max)
    try:
        return loop.run_until_complete(main)
    finally:
        try:
            loop.grant_turns()  # The cleanup gets as many turns again, however the run ended.
            _finish(loop)
        finally:
            loop.close()


def _finish(loop: VirtualLoop) -> None:
    """Cancel the remaining tasks, so that no task outlives its run."""
    # In the order of their creation, which their names count: the order of a set of tasks changes from run to run.
    left = sorted(asyncio.all_tasks(loop), key=lambda task: (len(task.get_name()), task.get_name()))
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
