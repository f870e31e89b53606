"""What a reader of a document's changes waits on.

Law: what waits for a reader is bounded in bytes. Past the bound it is dropped,
and the reader is told so, rather than shown a stream with a hole in it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Literal, NamedTuple

from shoal.errors import ShoalError, SlowConsumer


class DocumentChange(NamedTuple):
    """A change that is durable."""

    origin: Literal["local", "remote"]
    update: bytes  # Yjs v1.


class Changes(AsyncIterator[DocumentChange]):
    """One reader's changes; past its bound they are dropped and it is told so."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: deque[DocumentChange] = deque()
        self._bytes = 0
        self._ended = False
        self._error: ShoalError | None = None
        self._ready = asyncio.Event()

    def put(self, change: DocumentChange) -> bool:
        """False once the reader takes no more."""
        self._bytes += len(change.update)
        if self._bytes > self._bytes_max:
            self._waiting.clear()
            self.end(
                SlowConsumer(
                    f"more than {self._bytes_max} bytes of changes waited for this reader. Nothing is lost: "
                    "the document itself is current. Read it and call changes() again."
                )
            )
            return False
        self._waiting.append(change)
        self._ready.set()
        return True

    def end(self, error: ShoalError | None) -> None:
        self._ended, self._error = True, error
        self._ready.set()

    async def __anext__(self) -> DocumentChange:
        while not self._waiting:
            if self._ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._ready.clear()
            await self._ready.wait()
        change = self._waiting.popleft()
        self._bytes -= len(change.update)
        return change
