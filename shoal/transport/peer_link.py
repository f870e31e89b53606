"""A link that this node dialled: its messages to a peer wait here, bounded, and are sent in order.

Laws:
- Messages wait in one queue and in the socket's buffer, and both count, with the heads of their frames and the
  pings that wait too: beyond `peer_send_bytes_max` a message is not taken. An empty queue takes any message.
- A link that is lost stays lost, for any cause: the peer, the network, a peer
  that sends no heartbeat, or one that takes nothing for `STALLED_BEATS`
  heartbeats. Waiting messages are lost with it.
- Losing a link cuts the connection, so that nothing keeps waiting in its buffer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

import aiohttp

from shoal.cluster.peering import Identity
from shoal.config import Config
from shoal.transport.peer import BROKEN, CLOSE_S, reason_of, why_closed
from shoal.transport.sockets import DialledSocket

STALLED_BEATS = 2

_HEAD_BYTES_MAX = 14  # Of a frame (RFC 6455); those in the socket's buffer are counted there.
_PINGS_BYTES = (STALLED_BEATS + 1) * 6  # Beyond that the link is given up.
_LOOKS = 4  # How often per heartbeat a stall is looked for.


class PeerLink:
    """An `Outlet` to `peer` while `run` runs."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        socket: DialledSocket,
        *,
        address: str,
        peer: Identity,
        proven_key: bytes,
        config: Config,
    ) -> None:
        self.address = address
        self.peer = peer
        self.proven_key = proven_key
        """The cluster's key that the other end proved."""
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
        """Bytes that were offered and are not sent yet."""
        return self._queued_bytes + self._socket.waiting_bytes

    def offer(self, message: bytes, /) -> bool:
        """Queue a message; False if the queue is full, and the message is dropped."""
        waiting = self.waiting_bytes
        framing = (len(self._queue) + 1) * _HEAD_BYTES_MAX + _PINGS_BYTES
        if waiting and waiting + framing + len(message) > self._config.peer_send_bytes_max:
            return False
        self._queue.append(message)
        self._queued_bytes += len(message)
        self._offered_bytes += len(message)
        self._stirred.set()
        return True

    # ── while it lasts ────────────────────────────────────────────────────────

    async def run(self) -> str:
        """Send offered messages until the link is lost, and return the reason."""
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
                    await asyncio.sleep(CLOSE_S)  # The peer's own reason says more, and is here by then.
                    return f"sending failed: {reason}"
                await asyncio.sleep(0)  # So that a long queue of small messages does not hold up other tasks.

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
            # Pings wait as well, so only a new maximum is progress.
            if not waiting or self._offered_bytes - waiting > left:
                left, since = self._offered_bytes - waiting, clock()
            elif clock() - since >= patience_s:
                return f"the peer took nothing of {waiting} bytes for {patience_s:g} s"

    async def close(self, code: int, /, *, reason: str) -> None:
        """Send a close frame if the peer listens, within `CLOSE_S`, and cut the connection. Closing twice is allowed."""
        try:
            with suppress(TimeoutError, *BROKEN):
                async with asyncio.timeout(CLOSE_S):
                    await self._socket.close(code=code, message=reason_of(reason))
        finally:
            self._socket.cut()
            await self._http.close()
