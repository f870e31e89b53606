"""The line of a y-websocket client: one WebSocket for one document.

Laws:
- An acknowledgement counts updates in the order in which they were sent: the first so many are all durable.
- If the client's part in the document ends, its WebSocket ends, with a code and the reason.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from aiohttp import WSCloseCode, WSMsgType

from shoal.api.yjs.connection import YjsConnection
from shoal.api.yjs.room import close_code
from shoal.api.yjs.socket import UNAUTHORIZED, Socket
from shoal.errors import InvalidValue, TooLarge
from shoal.protocol import yjs


class YWebsocketLine:
    """The line of a y-websocket client (`Line`)."""

    address = b""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket
        self._taken = 0
        self._asked_at: int | None = (
            None  # How many updates it had sent when it asked for acknowledgements; None if it did not.
        )
        self._acknowledged = 0  # How many updates after that were acknowledged as durable.
        self._undurable: OrderedDict[int, None] = OrderedDict()  # The numbers of those that are not, in order.

    async def read(self, connection: YjsConnection) -> None:
        """Pass on what the client says, until either side closes."""
        while (message := await self.socket.receive()).type is WSMsgType.BINARY:
            said = _decoded(message.data, connection)
            if said is None:
                return
            await connection.take(said)
        if message.type is WSMsgType.TEXT:
            connection.end(WSCloseCode.UNSUPPORTED_DATA, "messages are binary")

    def taken(self, number: int, update: yjs.Update | yjs.AskDurable, /) -> None:
        """The client sent this update, its `number`-th; or asked to be told of those after it (`Line.taken`)."""
        self._taken = number
        if isinstance(update, yjs.AskDurable):
            self._asked_at, self._acknowledged = number, 0
            self._undurable.clear()
        elif self._asked_at is not None:
            self._undurable[number] = None

    def asks(self) -> None:
        """The client sent a step 1 (`Line.asks`); its acknowledgements go on."""

    def durable(self, number: int, _update: yjs.Update, /) -> bytes | None:
        """An update is durable: what the client is told, if anything (`Line.durable`); the count, if the client asked for it
        and it has grown.
        """
        if self._asked_at is None:
            return None
        self._undurable.pop(number, None)
        durable = next(iter(self._undurable), self._taken + 1) - 1 - self._asked_at
        if durable <= self._acknowledged:
            return None
        self._acknowledged = durable
        return yjs.encode_durable(durable)

    def read_only(self) -> bytes | None:
        """The answer to an update that the client may not write; None: its connection ends (`Line.read_only`); the protocol has
        no word for it.
        """
        return None

    async def close(self, code: int, reason: str, /) -> None:
        """End this client's part in the document, with the reason (`Line.close`)."""
        await self.socket.close(code, reason)

    async def expire(self, reason: str, /) -> None:
        """End it because the token counts no more; the client may come back with another (`Line.expire`)."""
        await self.socket.close(UNAUTHORIZED, reason)


def _decoded(data: bytes, connection: YjsConnection) -> Sequence[yjs.Message] | None:
    """The messages; None if they are none, which ends the connection."""
    try:
        return yjs.decode(data)
    except (InvalidValue, TooLarge) as error:
        connection.end(close_code(error), error.message)
        return None
