"""The doors for standard Yjs clients: y-websocket at `/v1/yjs/{space}/{document}`, Hocuspocus at `/v1/hocuspocus/{space}`.

Laws:
- A failure on one connection closes that connection alone, with a reason.
- A document's room exists as long as a connection is in it, and until all updates that
  were sent are written or rejected.
- A stop accepts nothing new, writes the updates that were received, then closes with 1001.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from aiohttp import WSCloseCode, web

from shoal.api.http.exchange import name_in
from shoal.api.http.origins import PROTOCOL, OpenGuarded
from shoal.api.http.problems import internal
from shoal.api.metrics import Metrics
from shoal.api.yjs.connection import YJS_SEND_BYTES_MAX, Line, YjsConnection, YWebsocketLine
from shoal.api.yjs.hocuspocus import HocuspocusSocket
from shoal.api.yjs.room import Room
from shoal.api.yjs.socket import Socket, Waiting
from shoal.config import Config
from shoal.errors import Overloaded, ShuttingDown
from shoal.names import check_name
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.hocuspocus import ADDRESS_BYTES_MAX
from shoal.protocol.requests import ReadDocument, Request

YJS_WAITING_MAX = 256  # WebSockets of Hocuspocus providers without an open document; beyond this, one is cut off.
YJS_STALLED_S = 10.0  # A client that takes none of the queued bytes for this long is disconnected.

if TYPE_CHECKING:
    from shoal.access.bearer import Bearer

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
