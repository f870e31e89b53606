"""A loop over many rows that stores its place, so that it continues there after a restart.

Law: a row counts as finished when the next one is requested, or when the loop has ended.
The stored place is never after an unfinished row: after a crash the rows since the
last stored place come again, and none is skipped.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from itertools import islice
from typing import TypeVar

from shoal.client.connection import StoreConnection
from shoal.errors import InvalidInput
from shoal.protocol import requests

T = TypeVar("T")


class Loop:
    """A loop of a thread, by its key."""

    def __init__(self, connection: StoreConnection, space: str, thread: str, key: str) -> None:
        self._connection = connection
        self._space, self._thread, self._key = space, thread, key

    async def place(self) -> int:
        """How many rows are finished."""
        reply = await self._connection.read(requests.ReadPlace(self._space, self._thread, self._key))
        return reply.place

    async def reach(self, place: int, *, restart: bool = False) -> None:
        """Record that so many rows are finished."""
        request = requests.ReachPlace(self._space, self._thread, self._key, place, restart)
        await self._connection.write(request, key=None, durability=None)

    async def rows(self, rows: Iterable[T] | AsyncIterable[T], *, every: int, restart: bool) -> AsyncGenerator[T, None]:
        """The rows after the recorded place: see `Thread.iterate`."""
        if every < 1:
            raise InvalidInput(f"`every` must be a number of rows, at least 1; got {every}. Nothing was written.")
        if restart:
            await self.reach(0, restart=True)
        finished = kept = 0 if restart else await self.place()
        try:
            async with aclosing(_after(rows, finished)) as rest:
                async for row in rest:
                    yield row
                    finished += 1
                    if finished - kept >= every:
                        await self.reach(finished)
                        kept = finished
        finally:
            if finished > kept:
                await self.reach(finished)


async def _after(rows: Iterable[T] | AsyncIterable[T], count: int) -> AsyncGenerator[T, None]:
    """Yield all rows except the first `count`."""
    if isinstance(rows, AsyncIterable):
        left = count
        source: AsyncIterator[T] = aiter(rows)
        async for row in source:
            if left:
                left -= 1
            else:
                yield row
    elif isinstance(rows, Sequence):
        for index in range(count, len(rows)):
            yield rows[index]
    else:
        for row in islice(rows, count, None):
            yield row
