"""The WebSockets that are dialled: to nodes by clients, and to peers by nodes.

Law: whoever dialled a socket cuts it in the end, however it ended. In some ends, such as a `close` that is cancelled,
aiohttp keeps the connection until the garbage collector finds it, and warns then.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp


class DialledSocket(aiohttp.ClientWebSocketResponse):
    """A WebSocket that shows two things which aiohttp hides: the bytes that wait in its connection, and how to cut it."""

    def __init__(
        self, reader: Any, writer: Any, protocol: Any, response: aiohttp.ClientResponse, *rest: Any, **settings: Any
    ) -> None:
        super().__init__(reader, writer, protocol, response, *rest, **settings)
        self._held = response
        self.connection: asyncio.Transport = writer.transport

    @property
    def waiting_bytes(self) -> int:
        """Bytes in the connection's write buffer."""
        return 0 if self.connection.is_closing() else self.connection.get_write_buffer_size()

    def cut(self) -> None:
        """Cut the connection without a close frame, and give it back to aiohttp at once. Cutting twice is allowed."""
        self.connection.abort()
        self._held.close()
