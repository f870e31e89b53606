"""Work that its caller does not wait for.

Law: a part that is closed cancels what is under way and waits for it, unless that ends by itself in bounded time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from shoal.errors import ShoalError


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
