"""Which waits an agent's function is asked about: its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from shoal.client.connection import attend, waiting


class Counting:
    """Counts the waits that it is told of."""

    def __init__(self) -> None:
        self.waits = 0

    def waited(self) -> AbstractAsyncContextManager[None]:
        return self._counted()

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        self.waits += 1
        yield

    def lasts(self) -> None:
        pass


async def wait() -> None:
    async with waiting():
        pass


async def test_a_wait_of_the_function_is_told() -> None:
    attendant = Counting()
    attend(attendant)
    await wait()
    await asyncio.wait_for(wait(), 1.0)
    assert attendant.waits == 2


async def test_a_wait_of_a_task_it_began_is_not() -> None:
    attendant = Counting()
    attend(attendant)
    await asyncio.create_task(wait())
    await asyncio.gather(wait(), wait())
    assert attendant.waits == 0
