"""A standard Yjs client in miniature: a pycrdt document over a y-websocket connection, as any provider keeps it.

For tests of a node's door. It sends step 1 first, answers the node's, applies
what it is sent and sends what it edits; `until` waits for what is to come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import aiohttp
import pycrdt

from shoal.protocol import yjs

PATIENCE_S = 120


async def closed(socket: aiohttp.ClientWebSocketResponse) -> tuple[int | None, str]:
    """How the node closed a WebSocket; what it sent before is passed over."""
    async with asyncio.timeout(PATIENCE_S):
        while (message := await socket.receive()).type is aiohttp.WSMsgType.BINARY:
            pass
    return socket.close_code, str(message.extra)


class YjsClient:
    """Use it as a context: it is connected and synchronised within."""

    def __init__(self, http: aiohttp.ClientSession, url: str, *, doc: pycrdt.Doc[Any] | None = None) -> None:
        self.doc: pycrdt.Doc[Any] = pycrdt.Doc() if doc is None else doc
        self.url = url
        self.heard: list[yjs.Message] = []  # Everything but updates.
        self.acknowledged = 0
        self.updates = 0  # Messages that brought any.
        self.answers = 0  # How often it was asked for what the node lacks; each answer is an update that it sent.
        self.close_code: int | None = None
        self.close_reason = ""
        self.reading = asyncio.Event()  # Cleared: it takes nothing from the socket.
        self.reading.set()
        self._http = http
        self._stirred = asyncio.Event()
        self._arriving = False
        self._synced = False
        self._observing: Any = None
        self._task: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self.socket: aiohttp.ClientWebSocketResponse

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.disconnect()

    async def connect(self, *, synchronise: bool = True) -> None:
        self.socket = await self._http.ws_connect(self.url, max_msg_size=0, compress=0)
        self._synced = False
        self._observing = self.doc.observe(self._edited)
        self._task = asyncio.create_task(self._read())
        if synchronise:
            await self.socket.send_bytes(yjs.encode_step_1(self.doc.get_state()))
            await self.until(lambda: self._synced)

    async def disconnect(self) -> None:
        """Edits made since stay in the document, as those of an editor that is offline."""
        self.doc.unobserve(self._observing)
        while self._sending:
            await asyncio.wait(self._sending)
        await self.socket.close()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until it does; forever, if it never will."""
        while not holds():
            self._stirred.clear()
            await self._stirred.wait()

    async def closed(self) -> tuple[int | None, str]:
        """How the node closed the connection."""
        await self.until(lambda: self.close_code is not None)
        return self.close_code, self.close_reason

    async def send(self, message: bytes) -> None:
        await self.socket.send_bytes(message)

    def _edited(self, event: pycrdt.TransactionEvent) -> None:
        if not self._arriving:
            task = asyncio.ensure_future(self.send(yjs.encode_update(event.update)))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _read(self) -> None:
        while True:
            await self.reading.wait()
            message = await self.socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                self.close_code = self.socket.close_code
                self.close_reason = message.extra or "" if message.type is aiohttp.WSMsgType.CLOSE else ""
                self._stirred.set()
                return
            if message.data[0] == yjs.DURABLE:
                self.acknowledged = pycrdt.Decoder(message.data[1:]).read_var_uint()
            else:
                for said in yjs.decode(message.data):
                    await self._take(said)
            self._stirred.set()

    async def _take(self, said: yjs.Message) -> None:
        match said:
            case yjs.Step1(state):
                await self.send(yjs.encode_step_2(self.doc.get_update(state)))
                self.answers += 1
            case yjs.Update(update, answers):
                self._arriving = True
                self.doc.apply_update(update)
                self._arriving = False
                self._synced |= answers
                self.updates += 1
            case _:
                self.heard.append(said)
