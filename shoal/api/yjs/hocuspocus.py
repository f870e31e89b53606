"""The WebSocket of a Hocuspocus provider: any number of documents of one space, each opened with a token of its own.

It has a door of its own: the first bytes could tell it from y-websocket's protocol, but a guess that fails would be a
document with a strange name.

Laws:
- A fault of one document ends that document, and the others go on: a refused token, a deleted document, an
  update that is no update. Only what may be better later (the node stops, or cannot write) ends the WebSocket: the provider
  then comes back by itself.
- An update is reported as synchronised once it is durable. If the client may only read, its edits are reported as rejected.
  With its step 1 a provider forgets the updates that it counted, and counts one: its answer to the node's step 1, which brings
  all that the node lacks. So what it sent before is not reported any more.
- A provider of version 2 without a token asks for no acceptance: its first message is its step 1, which opens the document
  as an empty token does. It does not know the message that closes a document, so a provider that names no version is told
  that it is denied, with the reason. Where a document was refused or closed, only a token opens it again.
- If a token expires, the WebSocket ends, so that the provider comes back with the token that its application gives it then.
- The provider takes a silent WebSocket for dead, so one without news gets an empty message each `heartbeat_s`. If it
  has no document open then, it is closed.
- It needs no token, only its documents do. So those that have no document open are bounded (`Waiting`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Protocol

from aiohttp import WSCloseCode, WSMsgType

from shoal.api.yjs.connection import YjsConnection
from shoal.api.yjs.room import close_code
from shoal.api.yjs.socket import UNAUTHORIZED, Message, Socket, Waiting
from shoal.errors import InvalidValue, ShoalError, TooLarge
from shoal.protocol import hocuspocus, yjs

if TYPE_CHECKING:
    from shoal.access.bearer import Bearer

_LATER = frozenset({WSCloseCode.GOING_AWAY, WSCloseCode.TRY_AGAIN_LATER, WSCloseCode.INTERNAL_ERROR})
_TIMEOUT = 4408  # Hocuspocus's own code.
_ENDED_MAX = 256  # Documents of one WebSocket that are remembered as refused or closed; the oldest are forgotten first.

Verify = Callable[[str], "Bearer | None"]
"""The bearer of a token, which is empty if the provider has none. Raises Unauthenticated, Overloaded."""


class Join(Protocol):
    """Joins a document; raises what an HTTP request for it would."""

    def __call__(
        self, line: HocuspocusLine, document: str, /, *, bearer: Bearer | None
    ) -> AbstractAsyncContextManager[YjsConnection]:
        """As `YjsDoor.joined`."""
        ...


class HocuspocusLine:
    """The line of a Hocuspocus client: one document of a provider's WebSocket."""

    def __init__(self, socket: Socket, address: bytes, leave: Callable[[], None], *, version: str) -> None:
        self.socket = socket
        self.address = hocuspocus.prefix(address)
        self._leave = leave
        self._version = version
        self._owed = False  # Whether the client counts its next answer to our step 1, as it does one after its own step 1.
        self._taken = 0
        self._forgotten = 0  # So many updates, from the first, it does not count any more.

    def taken(self, number: int, _update: yjs.Update | yjs.AskDurable, /) -> None:
        """The client sent this update, its `number`-th; or asked to be told of those after it (`Line.taken`)."""
        self._taken = number

    def asks(self) -> None:
        """The client sent a step 1 (`Line.asks`)."""
        self._owed, self._forgotten = True, self._taken

    def durable(self, number: int, update: yjs.Update, /) -> bytes | None:
        """An update is durable: what the client is told, if anything (`Line.durable`); nothing for an update that the client
        does not count.
        """
        if number <= self._forgotten:
            return None
        if update.answers:
            if not self._owed:
                return None
            self._owed = False
        return hocuspocus.encode_status(durable=True)

    def read_only(self) -> bytes | None:
        """The answer to an update that the client may not write; None: its connection ends (`Line.read_only`)."""
        return hocuspocus.encode_status(durable=False)

    async def close(self, code: int, reason: str, /) -> None:
        """End this client's part in the document, with the reason (`Line.close`)."""
        if code in _LATER:
            await self.socket.close(code, reason)
        else:
            said = hocuspocus.encode_close(reason) if self._version else hocuspocus.encode_denied(reason)
            self.socket.reply(Message(said).frame(self.address))
            self._leave()

    async def expire(self, reason: str, /) -> None:
        """End it because the token counts no more; the client may come back with another (`Line.expire`)."""
        await self.socket.close(UNAUTHORIZED, reason)


class _Open:
    """A document that is open."""

    def __init__(self, line: HocuspocusLine, connection: YjsConnection, stack: AsyncExitStack) -> None:
        self.line, self.connection, self.stack = line, connection, stack


class HocuspocusSocket:
    """One provider's WebSocket, which is open; `serve` returns when it is over."""

    def __init__(
        self,
        socket: Socket,
        join: Join,
        verify: Verify,
        *,
        address: str,
        waiting: Waiting[HocuspocusSocket],
        heartbeat_s: float,
    ) -> None:
        self._socket = socket
        self._address = address
        self._waiting = waiting
        self._join = join
        self._verify = verify
        self._heartbeat_s = heartbeat_s
        self._documents: dict[bytes, _Open] = {}
        self._ended: dict[bytes, None] = {}  # Refused, closed or left: what is said about them opens nothing.
        self._leaving: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Read until either side closes."""
        keeping = asyncio.create_task(self._keep())
        try:
            self._wait()
            await self._read()
        finally:
            self._waiting.discard(self, self._address)
            keeping.cancel()
            for address in list(self._documents):
                self._end(address)
            await asyncio.gather(keeping, *self._leaving, return_exceptions=True)

    async def close(self, code: int, reason: str) -> None:
        """Close the WebSocket."""
        await self._socket.close(code, reason)

    def cut(self) -> None:
        """End it at once: others wait."""
        self._socket.cut()

    def _wait(self) -> None:
        oldest = self._waiting.add(self, self._address)
        if oldest is not None:
            oldest.cut()

    async def _read(self) -> None:
        while (message := await self._socket.receive()).type is WSMsgType.BINARY:
            try:
                found = hocuspocus.decode(message.data)
            except InvalidValue as error:
                await self._socket.close(close_code(error), error.message)
                return
            if found is not None:
                await self._take(*found)
        if message.type is WSMsgType.TEXT:
            await self._socket.close(WSCloseCode.UNSUPPORTED_DATA, "messages are binary")

    async def _take(self, address: bytes, said: hocuspocus.Open | hocuspocus.Close | hocuspocus.Said) -> None:
        match said:
            case hocuspocus.Open():
                await self._open(address, said)
            case hocuspocus.Close():
                self._leave(address)
            case hocuspocus.Said(messages) if address in self._documents:
                await self._say(self._documents[address], messages)
            case hocuspocus.Said(messages) if hocuspocus.asks(messages) and address not in self._ended:
                await self._open(address, hocuspocus.Open(""))
                if address in self._documents:
                    await self._say(self._documents[address], messages)
            # Other messages of a document that is not open are not waited for: the provider repeats them when it is.

    async def _say(self, there: _Open, messages: bytes) -> None:
        try:
            said = yjs.decode(messages)
        except (InvalidValue, TooLarge) as error:
            there.connection.end(close_code(error), error.message)
            return
        await there.connection.take(said)

    async def _open(self, address: bytes, asked: hocuspocus.Open) -> None:
        if address in self._documents:
            return  # The token that it was opened with counts.
        self._ended.pop(address, None)
        line = HocuspocusLine(self._socket, address, lambda: self._leave(address), version=asked.version)
        stack = AsyncExitStack()
        try:
            bearer = self._verify(asked.token)
            joining = self._join(line, hocuspocus.document_of(address), bearer=bearer)
            connection = await stack.enter_async_context(joining)
        except ShoalError as error:
            self._remember(address)
            self._socket.reply(Message(hocuspocus.encode_denied(error.message)).frame(line.address))
            return
        self._waiting.discard(self, self._address)
        self._documents[address] = _Open(line, connection, stack)
        scope: hocuspocus.Scope = "read-write" if connection.may_write else "readonly"
        self._socket.reply(Message(hocuspocus.encode_accepted(scope)).frame(line.address))
        connection.enter()

    def _leave(self, address: bytes) -> None:
        if address in self._documents:
            self._end(address)
            self._remember(address)
            if not self._documents:
                self._wait()

    def _remember(self, address: bytes) -> None:
        self._ended[address] = None
        if len(self._ended) > _ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def _end(self, address: bytes) -> None:
        task = asyncio.create_task(self._documents.pop(address).stack.aclose())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            if not self._documents:
                await self._socket.close(_TIMEOUT, "no document is open")
                return
            line = next(iter(self._documents.values())).line
            self._socket.write(Message(yjs.encode_awareness([])).frame(line.address))
