"""The doors for standard Yjs clients: y-websocket at `/v1/yjs/{space}/{document}`, Hocuspocus at `/v1/hocuspocus/{space}`.

Laws:
- A failure on one connection closes that connection alone, with a reason.
- A document's room exists as long as a connection is in it, and until all updates that
  were sent are written or rejected.
- A stop accepts nothing new, writes the updates that were received, then closes with 1001.

The WebSocket of a Hocuspocus provider: any number of documents of one space, each opened with a token of its own.

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
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from aiohttp import WSCloseCode, WSMsgType, web

from shoal.api.health import Metrics
from shoal.api.http.exchange import name_in
from shoal.api.http.origins import PROTOCOL, OpenGuarded
from shoal.api.http.problems import internal
from shoal.api.yjs.connection import YJS_SEND_BYTES_MAX, Line, YjsConnection, YWebsocketLine
from shoal.api.yjs.room import Room, close_code
from shoal.api.yjs.socket import UNAUTHORIZED, Message, Socket, Waiting
from shoal.config import Config
from shoal.errors import InvalidValue, Overloaded, ShoalError, ShuttingDown, TooLarge
from shoal.names import check_name
from shoal.protocol import yjs
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import ReadDocument, Request
from shoal.protocol.yjs import ADDRESS_BYTES_MAX

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
        self.address = yjs.prefix(address)
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
        return yjs.encode_status(durable=True)

    def read_only(self) -> bytes | None:
        """The answer to an update that the client may not write; None: its connection ends (`Line.read_only`)."""
        return yjs.encode_status(durable=False)

    async def close(self, code: int, reason: str, /) -> None:
        """End this client's part in the document, with the reason (`Line.close`)."""
        if code in _LATER:
            await self.socket.close(code, reason)
        else:
            said = yjs.encode_close(reason) if self._version else yjs.encode_denied(reason)
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
                found = yjs.decode_named(message.data)
            except InvalidValue as error:
                await self._socket.close(close_code(error), error.message)
                return
            if found is not None:
                await self._take(*found)
        if message.type is WSMsgType.TEXT:
            await self._socket.close(WSCloseCode.UNSUPPORTED_DATA, "messages are binary")

    async def _take(self, address: bytes, said: yjs.Open | yjs.Close | yjs.Said) -> None:
        match said:
            case yjs.Open():
                await self._open(address, said)
            case yjs.Close():
                self._leave(address)
            case yjs.Said(messages) if address in self._documents:
                await self._say(self._documents[address], messages)
            case yjs.Said(messages) if yjs.asks(messages) and address not in self._ended:
                await self._open(address, yjs.Open(""))
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

    async def _open(self, address: bytes, asked: yjs.Open) -> None:
        if address in self._documents:
            return  # The token that it was opened with counts.
        self._ended.pop(address, None)
        line = HocuspocusLine(self._socket, address, lambda: self._leave(address), version=asked.version)
        stack = AsyncExitStack()
        try:
            bearer = self._verify(asked.token)
            joining = self._join(line, yjs.document_of(address), bearer=bearer)
            connection = await stack.enter_async_context(joining)
        except ShoalError as error:
            self._remember(address)
            self._socket.reply(Message(yjs.encode_denied(error.message)).frame(line.address))
            return
        self._waiting.discard(self, self._address)
        self._documents[address] = _Open(line, connection, stack)
        scope: yjs.Scope = "read-write" if connection.may_write else "readonly"
        self._socket.reply(Message(yjs.encode_accepted(scope)).frame(line.address))
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


YJS_WAITING_MAX = 256  # WebSockets of Hocuspocus providers without an open document; beyond this, one is cut off.
YJS_STALLED_S = 10.0  # A client that takes none of the queued bytes for this long is disconnected.

YJS_PATH = "/v1/yjs/{space}/{document}"
HOCUSPOCUS_PATH = "/v1/hocuspocus/{space}"

_MESSAGE_OVERHEAD_BYTES = 64  # Around an update: kinds and lengths.


class YjsDoor:
    """All connections of Yjs clients at this node. `serve` is the handler of `YJS_PATH`, `serve_hocuspocus` of the other."""

    def __init__(
        self,
        open_session: OpenGuarded,
        may_read: Callable[[Bearer, Request[Any]], Awaitable[None]],
        *,
        config: Config,
        metrics: Metrics,
    ) -> None:
        self._open_session = open_session
        self._may_read = may_read  # All clients of a document read through one session of the node's own.
        self._config = config
        self._metrics = metrics
        self._open: dict[YjsConnection, None] = {}
        self._sockets: dict[HocuspocusSocket, None] = {}
        self._waiting: Waiting[HocuspocusSocket] = Waiting(most=YJS_WAITING_MAX)
        self._rooms: dict[tuple[str, str], Room] = {}
        self._stopping = False

    async def serve(self, request: web.Request, bearer: Bearer | None = None) -> web.StreamResponse:
        """Answer one client until it leaves, or until its token counts no more.

        Raises:
            InvalidName: the path names no document.
            Forbidden: the token does not grant to read it.
            ShuttingDown, Overloaded: raised before the upgrade, so that a crowd costs little.
        """
        space, document = (name_in(request, YJS_PATH, part) for part in ("space", "document"))
        socket = self._socket(_MESSAGE_OVERHEAD_BYTES)
        line = YWebsocketLine(socket)
        try:
            async with self.joined(line, space, document, bearer=bearer) as connection:
                await socket.open(request)
                connection.enter()
                await line.read(connection)
        except Exception as bug:
            await _failed(socket, bug)
        return socket.response

    async def serve_hocuspocus(self, request: web.Request, verify: Callable[[str], Bearer | None]) -> web.StreamResponse:
        """Answer one provider until it leaves. `verify` checks the token of each document, as `Verify` says.

        Raises:
            InvalidName: the path names no space.
            ShuttingDown, Overloaded: raised before the upgrade, so that a crowd costs little.
        """
        space = name_in(request, HOCUSPOCUS_PATH, "space")
        self._refuse_if_full()
        socket = self._socket(_MESSAGE_OVERHEAD_BYTES + ADDRESS_BYTES_MAX)

        def join(line: Line, document: str, /, *, bearer: Bearer | None) -> AbstractAsyncContextManager[YjsConnection]:
            return self.joined(line, space, check_name("document", document), bearer=bearer)

        provider = HocuspocusSocket(
            socket,
            join,
            verify,
            address=request.remote or "",
            waiting=self._waiting,
            heartbeat_s=self._config.heartbeat_s,
        )
        self._sockets[provider] = None
        try:
            await socket.open(request)
            await provider.serve()
        except Exception as bug:
            await _failed(socket, bug)
        finally:
            del self._sockets[provider]
        return socket.response

    @asynccontextmanager
    async def joined(self, line: Line, space: str, document: str, *, bearer: Bearer | None) -> AsyncIterator[YjsConnection]:
        """A context in which a client is in a document, once it has entered.

        Raises:
            Forbidden: the token does not grant to read it.
            ShuttingDown, Overloaded.
        """
        if bearer is not None:
            await self._may_read(bearer, ReadDocument(space, document))
        self._refuse_if_full()
        room = self._room(space, document)
        session = self._open_session(Bookmark(), bearer=bearer)
        connection = YjsConnection(line, room, session, bearer=bearer)
        self._open[connection] = None
        self._metrics.yjs_connections.inc()
        try:
            with nullcontext() if bearer is None else bearer.watched(connection.expire):
                yield connection
        finally:
            self._open.pop(connection, None)
            self._metrics.yjs_connections.dec()
            try:
                await connection.leave()
            finally:
                await self._left(room, connection)

    def _socket(self, overhead_bytes: int) -> Socket:
        return Socket(
            web.WebSocketResponse(
                heartbeat=self._config.heartbeat_s,
                compress=False,
                max_msg_size=self._config.yjs_update_bytes_max + overhead_bytes,
                protocols=(PROTOCOL,),
            ),
            send_bytes_max=YJS_SEND_BYTES_MAX,
            stalled_s=YJS_STALLED_S,
        )

    async def stop(self) -> None:
        """Accept no new connection, write the updates that were received, and close every connection."""
        self._stopping = True
        await asyncio.gather(*(room.written() for room in self._rooms.values()))
        there: list[HocuspocusSocket | YjsConnection] = [*self._sockets, *self._open]
        await asyncio.gather(*(each.close(WSCloseCode.GOING_AWAY, "the node is stopping") for each in there))

    def _refuse_if_full(self) -> None:
        if self._stopping:
            raise ShuttingDown("the node is stopping. Nothing was written. Try again later, or at another node.")
        if len(self._open) + len(self._sockets) >= self._config.yjs_connections_max:
            raise Overloaded(
                f"the node has {self._config.yjs_connections_max} Yjs connections, which is its maximum. "
                "Nothing was written. Try again later, or at another node.",
                retry_after_s=1.0,
            )

    def _room(self, space: str, document: str) -> Room:
        room = self._rooms.get((space, document))
        if room is None:
            room = self._rooms[space, document] = Room(self._open_session(Bookmark()), space, document)
        room.users += 1
        return room

    async def _left(self, room: Room, connection: YjsConnection) -> None:
        room.leave(connection)
        try:
            await room.written()
        finally:
            room.users -= 1
            if not room.users:
                del self._rooms[room.space, room.document]
                await room.close()
            await connection.session.close()


async def _failed(socket: Socket, bug: Exception) -> None:
    """Close a socket on which something went wrong; raises what can be answered over HTTP."""
    if not socket.response.prepared:
        raise bug
    # Past the upgrade there is no HTTP answer any more. ConnectionError: the peer left.
    if not isinstance(bug, ConnectionError):
        internal(bug, where="yjs connection")
        await socket.close(WSCloseCode.INTERNAL_ERROR, "unexpected error")
