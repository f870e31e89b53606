"""Standard input as lines of text, for the SDK's server over standard input and output.

Laws:
- A wait for a line can be cancelled at once. The SDK's own reader cannot: SIGTERM would wait for the client's next message.
- A line is bounded. A longer one is read to its end, and stands as an empty line, which the SDK reports as no message.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import CancelledError
from contextlib import suppress
from threading import Thread

_LINES_MAX = 16  # Read ahead of the server.


class Lines:
    """The lines of a file descriptor, of which a copy is read. It must be made on a running loop."""

    def __init__(self, fd: int, *, line_bytes_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(_LINES_MAX)
        self._max = line_bytes_max
        # A daemon: a thread that waits for input must not keep the process alive.
        Thread(target=self._read, args=(os.dup(fd),), daemon=True).start()

    def __aiter__(self) -> Lines:
        return self

    async def __anext__(self) -> str:
        line = await self._lines.get()
        if line is None:
            raise StopAsyncIteration
        return line

    def _read(self, fd: int) -> None:
        with open(fd, "rb") as file, suppress(OSError, RuntimeError, CancelledError):  # The loop has ended.
            while line := file.readline(self._max):
                whole = line
                while len(line) == self._max and not line.endswith(b"\n"):
                    whole, line = b"", file.readline(self._max)
                self._put(whole.decode(errors="replace"))
            self._put(None)

    def _put(self, line: str | None) -> None:
        asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop).result()
