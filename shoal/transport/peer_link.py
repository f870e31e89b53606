"""A link that this node dialled: what it has for a peer waits here, bounded, and leaves in order.

Laws:
- What waits is in one queue and in the socket's buffer, and both count: past
  `peer_send_bytes_max` a message is not taken. One message alone always is.
- A link that is lost stays lost, whatever lost it: the peer, the network, a peer
  that shows no sign of life, or one that takes nothing for `STALLED_BEATS`
  heartbeats. What waited is gone with it.
- Losing a link cuts the connection, so that nothing goes on waiting in its buffer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any

import aiohttp

from shoal.cluster.peering import Identity
from shoal.config import Config
from shoal.transport.peer import BROKEN, CLOSE_S, reason_of, why_closed

STALLED_BEATS = 2

_LOOKS = 4  # A heartbeat, for a stall.


class PeerSocket(aiohttp.ClientWebSocketResponse):
    """With the two things of its connection that aiohttp keeps to itself: what waits in it, and how to cut it."""

    def __init__(self, reader: Any, writer: Any, *rest: Any, **settings: Any) -> None:
        super().__init__(reader, writer, *rest, **settings)
        self.connection: asyncio.Transport = writer.transport

    @property
    def waiting_bytes(self) -> int:
        return 0 if self.connection.is_closing() else self.connection.get_write_buffer_size()


class PeerLink:
    """An `Outlet` to `peer` while `run` runs."""

    def __init__(
        self, http: aiohttp.ClientSession, socket: PeerSocket, *, address: str, peer: Identity, config: Config
    ) -> None:
        self.address = address
        self.peer = peer
        self._http = http
        self._socket = socket
        self._config = config
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._offered_bytes = 0  # Ever.
        self._stirred = asyncio.Event()

    # ── the outlet ────────────────────────────────────────────────────────────

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were offered and have not left."""
        return self._queued_bytes + self._socket.waiting_bytes

    def offer(self, message: bytes, /) -> bool:
        """Queue a message; False if its bound is reached, and the message is dropped."""
        waiting = self.waiting_bytes
        if waiting and waiting + len(message) > self._config.peer_send_bytes_max:
            return False
        self._queue.append(message)
        self._queued_bytes += len(message)
        self._offered_bytes += len(message)
        self._stirred.set()
        return True

    # ── while it lasts ────────────────────────────────────────────────────────

    async def run(self) -> str:
        """Send what is offered until the link is lost; returns why."""
        tasks = [asyncio.create_task(work) for work in (self._write(), self._listen(), self._watch())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return min(done, key=tasks.index).result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._queue.clear()
            self._queued_bytes = 0

    async def _write(self) -> str:
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            while self._queue:
                message = self._queue.popleft()
                self._queued_bytes -= len(message)
                try:
                    await self._socket.send_bytes(message)
                except BROKEN as reason:
                    await asyncio.sleep(CLOSE_S)  # What the peer said when it closed the link says more, and is heard by now.
                    return f"sending failed: {reason}"
                await asyncio.sleep(0)  # A long queue of small messages does not hold up everybody else.

    async def _listen(self) -> str:
        message = await self._socket.receive()
        if message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
            return "the peer sent a message on a link that it did not dial"
        return why_closed(message)

    async def _watch(self) -> str:
        clock = asyncio.get_running_loop().time
        patience_s = STALLED_BEATS * self._config.peer_heartbeat_s
        left, since = 0, clock()
        while True:
            await asyncio.sleep(self._config.peer_heartbeat_s / _LOOKS)
            waiting = self.waiting_bytes
            # Pings wait as well: only more than ever before is progress.
            if not waiting or self._offered_bytes - waiting > left:
                left, since = self._offered_bytes - waiting, clock()
            elif clock() - since >= patience_s:
                return f"the peer took nothing of {waiting} bytes for {patience_s:g} s"

    async def close(self, code: int, /, *, reason: str) -> None:
        """Say good-bye if the peer listens, within `CLOSE_S`, and cut the connection. Closing twice is allowed."""
        try:
            with suppress(TimeoutError, *BROKEN):
                async with asyncio.timeout(CLOSE_S):
                    await self._socket.close(code=code, message=reason_of(reason))
        finally:
            self._socket.connection.abort()
            await self._http.close()
