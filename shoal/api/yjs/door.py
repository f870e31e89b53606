"""The door for standard Yjs clients: WebSockets at `/v1/yjs/{space}/{document}`.

Laws:
- A failure on one connection closes that connection alone, with a reason.
- A document's room exists as long as a connection is in it, and until all updates that
  were sent are written or rejected.
- A stop accepts nothing new, writes the updates that were received, then closes with 1001.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING

from aiohttp import WSCloseCode, web

from shoal.api.http.credentials import PROTOCOL, OpenGuarded
from shoal.api.http.exchange import name_in
from shoal.api.http.problems import internal
from shoal.api.metrics import Metrics
from shoal.api.yjs.connection import YjsConnection
from shoal.api.yjs.room import Room
from shoal.config import Config
from shoal.errors import Overloaded, ShuttingDown
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import ReadDocument

if TYPE_CHECKING:
    from shoal.access.bearer import Bearer

YJS_PATH = "/v1/yjs/{space}/{document}"

_MESSAGE_OVERHEAD_BYTES = 64  # Around an update: kinds and lengths.


class YjsDoor:
    """All connections of Yjs clients at this node. `serve` is the handler of `YJS_PATH`."""

    def __init__(self, open_session: OpenGuarded, *, config: Config, metrics: Metrics) -> None:
        self._open_session = open_session
        self._config = config
        self._metrics = metrics
        self._open: dict[YjsConnection, None] = {}
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
        if bearer is not None:
            bearer.check(ReadDocument(space, document))
        self._refuse_if_full()
        config = self._config
        socket = web.WebSocketResponse(
            heartbeat=config.heartbeat_s,
            compress=False,
            max_msg_size=config.yjs_update_bytes_max + _MESSAGE_OVERHEAD_BYTES,
            protocols=(PROTOCOL,),
        )
        room = self._room(space, document)
        session = self._open_session(Bookmark(), bearer=bearer)
        connection = YjsConnection(socket, room, session, config=config, bearer=bearer)
        self._open[connection] = None
        self._metrics.yjs_connections.inc()
        try:
            with nullcontext() if bearer is None else bearer.watched(connection.expire):
                await connection.serve(request)
        except Exception as bug:
            if not socket.prepared:
                raise
            # Past the upgrade there is no HTTP answer any more. ConnectionError: the peer left.
            if not isinstance(bug, ConnectionError):
                internal(bug, where="yjs connection")
                await connection.close(WSCloseCode.INTERNAL_ERROR, "unexpected error")
        finally:
            self._open.pop(connection, None)
            self._metrics.yjs_connections.dec()
            await self._left(room, connection)
        return socket

    async def stop(self) -> None:
        """Accept no new connection, write the updates that were received, and close every connection."""
        self._stopping = True
        await asyncio.gather(*(room.written() for room in self._rooms.values()))
        await asyncio.gather(
            *(connection.close(WSCloseCode.GOING_AWAY, "the node is stopping") for connection in list(self._open))
        )

    def _refuse_if_full(self) -> None:
        if self._stopping:
            raise ShuttingDown("the node is stopping. Nothing was written. Try again later, or at another node.")
        if len(self._open) >= self._config.yjs_connections_max:
            raise Overloaded(
                f"the node has {self._config.yjs_connections_max} Yjs connections, which is its maximum. "
                "Nothing was written. Try again later, or at another node.",
                retry_after_s=1.0,
            )

    def _room(self, space: str, document: str) -> Room:
        room = self._rooms.get((space, document))
        if room is None:
            room = self._rooms[space, document] = Room(self._open_session(Bookmark()), space, document, config=self._config)
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
