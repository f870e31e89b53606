"""When a node among peers looks for work that is due: often while something happens, seldom while nothing does.

Law: looks stay on one grid of `tick_s`, so that those which find nothing can be left out without moving the others.
"""

from __future__ import annotations

import asyncio
from math import ceil

from shoal.cluster.clocks import Clock
from shoal.cluster.consensus.motions import Known
from shoal.cluster.messages import Digest, Message, Objects, Present, Rows
from shoal.config import Config

_OF_IDLE_NODES = (Digest, Clock, Known, Rows, Objects, Present)
"""Messages that come from time to time, and leave nothing to be looked for."""

_LATE = 1e-6  # In ticks: a moment that is so little after a point of the grid is on it.


class Pace:
    """`stir` or `heard` is called when something happens, `next` by the one task that looks."""

    def __init__(self, config: Config) -> None:
        self._tick_s = config.tick_s
        self._idle_ticks = max(1, round(config.tick_idle_s / config.tick_s))
        self._quiet_ticks = round(config.tick_quiet_s / config.tick_s)
        self._quiet = 0  # So many looks in a row found that nothing had happened since the one before.
        self._is_stirred = False
        self._woken: asyncio.Event | None = None  # While a long pause lasts, which
        self._began = 0.0  # began then.

    def stir(self) -> None:
        """Something happened: look again soon, and often for a while. Cheap."""
        self._is_stirred = True
        if self._woken is not None:
            self._woken.set()

    def heard(self, message: Message) -> None:
        """A peer sent this."""
        if not isinstance(message, _OF_IDLE_NODES):
            self.stir()

    async def next(self, *, due_s: float) -> int:
        """Wait for the next look, and return the ticks that passed. Some work is due in `due_s`, even if nothing happens."""
        self._quiet = 0 if self._is_stirred else self._quiet + 1
        self._is_stirred = False
        ticks = min(self._idle_ticks, ceil(due_s / self._tick_s - _LATE))
        if ticks <= 1 or self._quiet < self._quiet_ticks:
            await asyncio.sleep(self._tick_s)
            return 1
        if not await self._stirred_within(ticks * self._tick_s):
            return ticks
        passed = (asyncio.get_running_loop().time() - self._began) / self._tick_s
        ticks = max(1, ceil(passed - _LATE))
        await asyncio.sleep((ticks - passed) * self._tick_s)
        return ticks

    async def _stirred_within(self, seconds: float) -> bool:
        self._began, self._woken = asyncio.get_running_loop().time(), asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return False
        finally:
            self._woken = None
        return True
