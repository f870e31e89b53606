"""A client of the session WebSocket that may send anything."""

from __future__ import annotations

from typing import Any

import aiohttp

from shoal.errors import ShoalError
from shoal.protocol.frames import (
    PROTOCOL,
    ErrorFrame,
    Hello,
    NodeFrame,
    decode_node_frames,
    decode_welcome,
    encode_hello,
    messages,
)

Served = Any  # Of conftest.py.


class Wire:
    """A client that may send anything."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self._frames: list[NodeFrame] = []

    async def send(self, *frames: bytes) -> None:
        for message in messages(frames, bytes_max=1 << 30):
            await self.socket.send_bytes(message)

    async def frame(self) -> NodeFrame:
        while not self._frames:
            self._frames = decode_node_frames(await self.socket.receive_bytes())
        return self._frames.pop(0)

    async def error(self) -> ShoalError:
        frame = await self.frame()
        assert isinstance(frame, ErrorFrame), frame
        return frame.fault.error()

    async def closed(self) -> tuple[int | None, str]:
        """Read until the node closes; its code and reason."""
        while (message := await self.socket.receive()).type is aiohttp.WSMsgType.BINARY:
            pass
        return self.socket.close_code, str(message.extra)


async def dialled(http: aiohttp.ClientSession, served: Served) -> Wire:
    socket = await http.ws_connect(served.url + "/v1/session")
    await socket.send_bytes(encode_hello(Hello(PROTOCOL, "test")))
    decode_welcome(await socket.receive_bytes())
    return Wire(socket)
