"""The WebSockets that are dialled: to nodes by clients, and to peers by nodes.

Law: whoever dialled a socket cuts it in the end, however it ended. In some ends, such as a `close` that is cancelled,
aiohttp keeps the connection until the garbage collector finds it, and warns then. A forked child does neither: the connection
is its parent's.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from socket import SHUT_RDWR
from typing import Any

import aiohttp

from shoal.forks import disown_in_children, never_destroy, silence


class DialledSocket(aiohttp.ClientWebSocketResponse):
    """A WebSocket that shows two things which aiohttp hides: the bytes that wait in its connection, and how to cut it."""

    def __init__(
        self, reader: Any, writer: Any, protocol: Any, response: aiohttp.ClientResponse, *rest: Any, **settings: Any
    ) -> None:
        super().__init__(reader, writer, protocol, response, *rest, **settings)
        self._held = response
        self.connection: asyncio.Transport = writer.transport
        disown_in_children(self)

    def disown(self) -> None:
        """Called in the child, in the thread that forked (`Inherited.disown`)."""
        never_destroy(self)
        socket = self.connection.get_extra_info("socket")
        if socket is not None and socket.fileno() >= 0:
            silence(socket.fileno())

    @property
    def waiting_bytes(self) -> int:
        """Bytes in the connection's write buffer."""
        return 0 if self.connection.is_closing() else self.connection.get_write_buffer_size()

    def leave(self) -> None:
        """End the connection although its loop has ended, which could do no more for it; the collector frees it."""
        socket = self.connection.get_extra_info("socket")
        if socket is not None:
            with suppress(OSError):
                socket.shutdown(SHUT_RDWR)
        self._held.close()

    def cut(self) -> None:
        """Cut the connection without a close frame, and give it back to aiohttp at once. Cutting twice is allowed."""
        self.connection.abort()
        self._held.close()
