"""A WebSocket of Yjs clients, as a node writes to it.

Laws:
- A message that many clients get is encoded once for all whose frames are equal.
- Frames are written to the connection's transport as they are. The bytes that wait there count against the client's budget.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from aiohttp import web

from shoal.api.http.unsent import unsent_bytes

UNAUTHORIZED = 4401
"""The close code if a token counts no more: with another one the client may come back."""

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

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self.response = socket
        self._transport: asyncio.Transport | None = None

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
            self._transport.write(frame)

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
