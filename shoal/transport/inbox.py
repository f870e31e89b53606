"""The pushes of a subscription that its consumer has not taken yet, bounded by bytes.

Law: the consumer sees a contiguous beginning of the pushes, then the end
or the error that ended them. An overflow ends the subscription with SlowConsumer; nothing is
ever left out of the middle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from msgspec import Raw

from shoal.errors import ShoalError, SlowConsumer
from shoal.protocol.frames import decode_push
from shoal.protocol.requests import Push


class Inbox(AsyncIterator[Push]):
    """A queue with one consumer, which iterates; the link's reader puts."""

    __slots__ = ("_bytes", "_bytes_max", "_ended", "_error", "_pushes", "_stirred")

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._pushes: deque[tuple[Raw, int]] = deque()
        self._stirred = asyncio.Event()
        self._ended = False
        self._error: ShoalError | None = None

    @property
    def ended(self) -> bool:
        """True once nothing more can arrive."""
        return self._ended

    def put(self, push: Raw) -> None:
        """Add a push from the node. If that exceeds the budget, the subscription ends."""
        if self._ended:
            return
        size = len(memoryview(push))
        if self._pushes and self._bytes + size > self._bytes_max:
            self.end(
                SlowConsumer(
                    f"the consumer fell more than {self._bytes_max} bytes behind, and the subscription was ended. "
                    "Nothing was written. Subscribe again, and read what was missed.",
                    bytes_max=self._bytes_max,
                )
            )
            return
        self._pushes.append((push, size))
        self._bytes += size
        self._stirred.set()

    def end(self, error: ShoalError | None = None) -> None:
        """Nothing more arrives. The consumer sees the queued pushes, then `error`. Ending twice changes nothing."""
        if not self._ended:
            self._ended, self._error = True, error
            self._stirred.set()

    async def __anext__(self) -> Push:
        while not self._pushes:
            if self._ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._stirred.clear()
            await self._stirred.wait()
        push, size = self._pushes.popleft()
        self._bytes -= size
        return decode_push(push)
