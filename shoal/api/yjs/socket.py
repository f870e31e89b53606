"""The WebSockets of Yjs clients: writing to one, and the bound on those that have no document open.

A WebSocket of Yjs clients, as a node writes to it.

Laws:
- A message that many clients get is encoded once for all whose frames are equal.
- Frames are written to the connection's transport as they are. The bytes that wait there count against the client's budget.
- A client that has not read `YJS_SEND_BYTES_MAX` of replies to its messages is not read, so that these cannot fill the memory.
- It is stalled if it takes nothing for `YJS_STALLED_S`. Documents that share the socket wait for what was written before.

The WebSockets of providers that have no document open, so that nobody has shown a token on them.

Laws:
- There are at most `most`. Beyond that the oldest one of the address that has most gives way, so that a flood from one
  address does not displace the clients of others.
- The addresses of one IPv6 network of 64 bits count as one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Generic, TypeVar

from aiohttp import WSCloseCode, WSMessage, web
from aiohttp.http import WS_CLOSED_MESSAGE

from shoal.access.failures import network_of
from shoal.api.http.accepting import unsent_bytes

UNAUTHORIZED = 4401
"""The close code if a token counts no more: with another one the client may come back."""

_LOOK_S = 0.05  # Between two looks at a buffer that was full.
_CLOSE_REASON_BYTES_MAX = 120  # A close frame holds 123.
_CLOSE_S = 0.5  # For the other end to answer; then the connection is cut.
_SMALL, _MEDIUM = 126, 1 << 16


class Message:
    """One message for clients. Those with an address get it behind that address."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self._frames: dict[bytes, bytes] = {}

    def frame(self, address: bytes) -> bytes:
        """The message as one WebSocket frame."""
        found = self._frames.get(address)
        if found is None:
            found = self._frames[address] = _frame(address + self.payload)
        return found


class Socket:
    """One WebSocket; `open` upgrades the request."""

    def __init__(self, socket: web.WebSocketResponse, *, send_bytes_max: int, stalled_s: float) -> None:
        self.response = socket
        self._send_bytes_max = send_bytes_max
        self._stalled_s = stalled_s
        self._transport: asyncio.Transport | None = None
        self._written_bytes = 0
        self._replied_bytes = 0  # Of replies, at least as many as wait.

    async def open(self, request: web.Request) -> None:
        """Upgrade."""
        self._transport = request.transport
        await self.response.prepare(request)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait to be sent."""
        transport = self._transport
        return 0 if transport is None or transport.is_closing() else unsent_bytes(transport)

    def write(self, frame: bytes) -> None:
        """Send a frame, unless the connection is over."""
        # Not through the response, which would encode it again. It too writes a frame in one piece.
        if self._transport is not None and not self.response.closed and not self._transport.is_closing():
            self._written_bytes += len(frame)
            self._transport.write(frame)

    def reply(self, frame: bytes) -> None:
        """Send a frame because of what the client said."""
        if not self.unsent_bytes:
            self._replied_bytes = 0
        self._replied_bytes += len(frame)
        self.write(frame)

    async def receive(self) -> WSMessage:
        """The client's next message, once there is room for replies."""
        if self._replied_bytes > self._send_bytes_max:
            if not await self._sent(self._written_bytes - self._send_bytes_max):
                await self.close(WSCloseCode.TRY_AGAIN_LATER, self.stalled)
                return WS_CLOSED_MESSAGE
            self._replied_bytes = self._send_bytes_max  # As many may wait still.
        return await self.response.receive()

    async def drained(self) -> bool:
        """Wait until all that is written by now was sent; False if the client reads nothing."""
        return await self._sent(self._written_bytes)

    @property
    def stalled(self) -> str:
        """Why a client that reads nothing is cut off."""
        return f"{self.unsent_bytes} bytes waited, and were not read"

    async def _sent(self, bytes_: int) -> bool:
        """Wait until so many bytes were sent in all; False if none was for `YJS_STALLED_S`."""
        clock = asyncio.get_running_loop().time
        before, since = self._sent_bytes, clock()
        while (sent := self._sent_bytes) < bytes_:
            if sent > before:
                before, since = sent, clock()
            elif clock() - since >= self._stalled_s:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    @property
    def _sent_bytes(self) -> int:
        return self._written_bytes - self.unsent_bytes

    def cut(self) -> None:
        """End the connection at once, without a word."""
        if self._transport is not None:
            self._transport.abort()

    async def close(self, code: int, reason: str) -> None:
        """Send the reason, wait a moment for the client to agree, then cut the connection."""
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_CLOSE_S):
                await self.response.close(code=code, message=_reason(reason))
        if self._transport is not None and unsent_bytes(self._transport):
            self._transport.abort()  # It reads nothing.


def _reason(text: str) -> bytes:
    """The beginning of `text` that fits a close frame."""
    return text.encode(errors="replace")[:_CLOSE_REASON_BYTES_MAX].decode(errors="ignore").encode()


def _frame(payload: bytes) -> bytes:
    """A whole binary message as one unmasked WebSocket frame (RFC 6455, 5.2)."""
    size = len(payload)
    if size < _SMALL:
        return b"\x82" + bytes((size,)) + payload
    if size < _MEDIUM:
        return b"\x82\x7e" + size.to_bytes(2, "big") + payload
    return b"\x82\x7f" + size.to_bytes(8, "big") + payload


T = TypeVar("T")


class Waiting(Generic[T]):
    """Sockets of any hashable type `T`, by the network that each came from."""

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._count = 0
        self._there: dict[str, dict[T, None]] = {}  # The oldest first.

    def __len__(self) -> int:
        return self._count

    def add(self, socket: T, address: str) -> T | None:
        """Add a socket; returns the one that has to give way, if any, which is forgotten."""
        self._there.setdefault(network_of(address), {})[socket] = None
        self._count += 1
        if self._count <= self._most:
            return None
        network = max(self._there, key=lambda network: len(self._there[network]))
        oldest = next(iter(self._there[network]))
        self._forget(network, oldest)
        return oldest

    def discard(self, socket: T, address: str) -> None:
        """Forget a socket, if it is there."""
        network = network_of(address)
        if socket in self._there.get(network, ()):
            self._forget(network, socket)

    def _forget(self, network: str, socket: T) -> None:
        sockets = self._there[network]
        del sockets[socket]
        self._count -= 1
        if not sockets:
            del self._there[network]
