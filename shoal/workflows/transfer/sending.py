"""Writes of an import, sent together.

Laws:
- Writes are of one partition at a time, and are carried out in their order.
- Those that wait are at most `WRITES_MAX`, with `BYTES_MAX` bytes and one write more.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from shoal.protocol import requests
from shoal.protocol.requests import Imported
from shoal.workflows.connection import Connection

WRITES_MAX = 256
BYTES_MAX = 1024 * 1024

_encoder = msgspec.msgpack.Encoder()


class Sender:
    """Sends writes; `writes` counts them. `durability` is that of each; None: the store's."""

    def __init__(self, connection: Connection, durability: requests.Durability | None) -> None:
        self._connection, self.durability = connection, durability
        self._waiting: list[Imported] = []
        self._bytes = 0
        self._replies: list[Any] = []
        self.writes = 0

    async def put(self, write: Imported) -> None:
        """Send a write, at the latest when `flush` is called.

        Raises:
            ShoalError: it, or one of those that wait, cannot be written. None of these is.
        """
        self._waiting.append(write)
        self._bytes += len(_encoder.encode(write.write))
        if len(self._waiting) >= WRITES_MAX or self._bytes >= BYTES_MAX:
            await self.flush()

    async def flush(self) -> list[Any]:
        """Send what waits, and return the replies to what was sent last. Raises as `put`."""
        if self._waiting:
            waiting, self._waiting, self._bytes = self._waiting, [], 0
            write: Any = requests.Import(waiting)
            self._replies = (await self._connection.write(write, key=None, durability=self.durability)).replies
            self.writes += len(waiting)
        return self._replies

    def forget(self) -> None:
        """Drop what waits: it cannot be written."""
        self._waiting, self._bytes = [], 0


def key_of(*named: str) -> str:
    """The key of a write, of the object that it comes from and its place there."""
    return f"import:{sha256(chr(0).join(named).encode()).hexdigest()[:40]}"
