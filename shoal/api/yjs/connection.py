"""The WebSocket of one standard Yjs client: its messages go to its room, and the room's updates go to it.

Laws:
- Frames are written to the connection's transport as they are, so that an update is
  encoded once for all connections. The bytes that wait there count against the budget.
- Above `yjs_send_bytes_max` nothing more is queued. Once everything that waited was sent, the
  client gets the missed updates as one difference from the state that it is known to have.
  A client that reads nothing for `yjs_stalled_s` is cut off.
- The answer to step 1 is sent before the updates that were relayed meanwhile, so that
  a client whose engine does not retry early updates loses none.
- Presence is not an update: it is relayed at once, and left out if there is no room.
  The entries that this connection announced end with it.
- A rejected update closes the connection with the reason, because the client's copy
  has the update and this node never will. If an update depends on others that this node
  lacks, the node asks the client for them, and the update waits in the room.
- An acknowledgement counts updates in the order in which they were sent: the first
  so many are all durable.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

from aiohttp import WSCloseCode, WSMsgType, web

from shoal.api.http.unsent import unsent_bytes
from shoal.api.yjs.room import Room, close_code, message_frame
from shoal.config import Config
from shoal.errors import Forbidden, InvalidValue, Overloaded, ShoalError, TooLarge
from shoal.protocol import yjs
from shoal.protocol.requests import Announce, Announced, FollowPresence, ReadDocument, Updates
from shoal.protocol.session import Session

if TYPE_CHECKING:
    from shoal.access.bearer import Bearer

_CLOSE_REASON_BYTES_MAX = 120  # A close frame holds 123.
_CLOSE_S = 0.5  # For the other end to answer; then the connection is cut.
_LOOK_S = 0.05  # Between two looks at a buffer that was full.
_EMPTY = b"\x00\x00"  # The update without content.
_NOTHING = b"\x00"  # The state vector of an empty document.


class YjsConnection:
    """One client's connection; `serve` returns when it is over."""

    def __init__(
        self, socket: web.WebSocketResponse, room: Room, session: Session, *, config: Config, bearer: Bearer | None = None
    ) -> None:
        self.session = session
        self._bearer = bearer
        self._sees_presence = bearer is None or bearer.allows(FollowPresence(room.space, room.document))
        self._socket = socket
        self._room = room
        self._config = config
        self._transport: asyncio.Transport | None = None
        self._asked: bytes | None = None  # The state vector of a step 1 that is not answered yet.
        self._wants = False  # Whether to ask the client for updates that this node lacks.
        self._awaits = False  # Whether it was asked because an update was not ready, and has not answered.
        self._known: bytes | None = None  # The state that the client has for certain: the vector of the last answer.
        self._missed = False  # Whether a relayed update was not sent to it.
        self._held: list[bytes] | None = None  # Frames to relay after an answer that is being made.
        self._held_bytes = 0
        self._work: asyncio.Task[None] | None = None
        self._taken = 0  # Updates that it sent.
        self._asked_at: int | None = None  # How many it had sent when it asked for acknowledgements; None if it did not.
        self._acknowledged = 0  # How many updates after that were acknowledged as durable.
        self._undurable: OrderedDict[int, None] = OrderedDict()  # The numbers of those that are not, in order.
        self._ending: asyncio.Task[None] | None = None

    async def serve(self, request: web.Request) -> None:
        """Upgrade, then read until either side closes."""
        self._transport = request.transport
        await self._socket.prepare(request)
        self._room.enter(self)
        self._tell_present()
        try:
            await self._read()
        finally:
            self._room.leave(self)
            if self._work is not None:
                self._work.cancel()
                await asyncio.gather(self._work, return_exceptions=True)
            if self._ending is not None:
                await asyncio.wait([self._ending])

    async def close(self, code: int, reason: str) -> None:
        """Send the reason, wait a moment for the client to agree, then cut the connection."""
        self._room.leave(self)
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_CLOSE_S):
                await self._socket.close(code=code, message=_reason(reason))
        if self._transport is not None and unsent_bytes(self._transport):
            self._transport.abort()  # It reads nothing.

    # ── what the client says ──────────────────────────────────────────────────

    async def _read(self) -> None:
        while (message := await self._socket.receive()).type is WSMsgType.BINARY:
            try:
                for said in yjs.decode(message.data):
                    if isinstance(said, yjs.Awareness):
                        await self._announce(said)
                    else:
                        self._take(said)
            except (InvalidValue, TooLarge) as error:
                self.end(close_code(error), error.message)
                return
            if self._room.is_full:
                await self._room.has_room()
        if message.type is WSMsgType.TEXT:
            self.end(WSCloseCode.UNSUPPORTED_DATA, "messages are binary")

    def _take(self, said: yjs.Message) -> None:
        match said:
            case yjs.Update():
                self._taken += 1
                if self._asked_at is not None:
                    self._undurable[self._taken] = None
                if said.update == _EMPTY:
                    self.written(self._taken, said)
                elif self._may_write():
                    self._room.take(self, self._taken, said)
            case yjs.Step1(state):
                self._asked, self._wants = state, True
                self._hold()
                self._start_work()
            case yjs.AskDurable():
                self._asked_at, self._acknowledged = self._taken, 0
                self._undurable.clear()
            case yjs.QueryAwareness():
                self._tell_present()

    def _may_write(self) -> bool:
        """Whether the client may change the document. If not, the connection ends with the reason."""
        try:
            if self._bearer is not None:
                self._bearer.check(Updates(self._room.space, self._room.document, []))
        except ShoalError as error:
            self.refused(error)
            return False
        return True

    def expire(self, reason: str) -> None:
        """Close the connection: its token counts no more."""
        self.end(WSCloseCode.POLICY_VIOLATION, reason)

    def written(self, number: int, update: yjs.Update, /) -> None:
        """See `Guest.written`; sends an acknowledgement if the client asked for them."""
        if update.answers:
            self._awaits = False
        if self._asked_at is None:
            return
        self._undurable.pop(number, None)
        durable = next(iter(self._undurable), self._taken + 1) - 1 - self._asked_at
        if durable > self._acknowledged:
            self._acknowledged = durable
            self._send(message_frame(yjs.encode_durable(durable)))

    def early(self) -> None:
        """See `Guest.early`; asks the client for what the node lacks, unless it is already asked."""
        if not self._awaits:
            # Once, until it has answered: a client that lacks something itself cannot give more.
            self._wants = self._awaits = True
            self._start_work()

    def refused(self, error: ShoalError, /) -> None:
        """See `Guest.refused`; closes the connection with the reason."""
        self.end(close_code(error), error.message)

    async def _announce(self, said: yjs.Awareness) -> None:
        request = Announce(self._room.space, self._room.document, said.entries)
        try:
            announced = await self.session.call(request)
        except (Overloaded, Forbidden):
            return  # Nobody sees its presence; editing continues.
        assert isinstance(announced, Announced)
        if announced.gone:
            # A client that is present, but learns that it is gone, announces itself with a newer clock.
            self._send(message_frame(yjs.encode_awareness(announced.gone)))

    def _tell_present(self) -> None:
        if present := self._room.present:
            self.mention(message_frame(yjs.encode_awareness(present)))

    def end(self, code: int, reason: str, /) -> None:
        """Start to close the connection, without waiting for it; only the first call counts."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self.close(code, reason))

    # ── what it is sent ───────────────────────────────────────────────────────

    def relay(self, frame: bytes, /) -> None:
        """See `Guest.relay`; held back during an answer to step 1, and skipped if there is no room."""
        if self._missed or (self._known is None and self._held is None):
            return  # It comes with the next answer, or was never asked for.
        if not self._fits(len(frame)):
            self.resync()
        elif self._held is None:
            self._send(frame)
        else:
            self._held.append(frame)
            self._held_bytes += len(frame)

    def mention(self, frame: bytes, /) -> None:
        """See `Guest.mention`; left out if there is no room."""
        if self._sees_presence and self._fits(len(frame)):
            self._send(frame)

    def resync(self) -> None:
        """See `Guest.resync`; the rest is sent as one difference when there is room."""
        self._missed = self._known is not None or self._held is not None
        if self._missed:
            self._hold()
            self._start_work()

    def _hold(self) -> None:
        self._held, self._held_bytes = [], 0

    def _fits(self, size: int) -> bool:
        waiting = self._waiting_bytes + self._held_bytes
        return not waiting or waiting + size <= self._config.yjs_send_bytes_max

    @property
    def _waiting_bytes(self) -> int:
        transport = self._transport
        return 0 if transport is None or transport.is_closing() else unsent_bytes(transport)

    def _send(self, frame: bytes) -> None:
        # Not through the socket, which would encode it again. The socket too writes a frame in one piece.
        if self._transport is not None and not self._socket.closed and not self._transport.is_closing():
            self._transport.write(frame)

    # ── answers to step 1, and resynchronisations ─────────────────────────────

    def _start_work(self) -> None:
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._synchronise())

    async def _synchronise(self) -> None:
        try:
            await self._room.following.wait()
            while (self._asked is not None or self._missed or self._wants) and await self._drained():
                await self._answer()
        except ShoalError as error:
            self.end(close_code(error), error.message)
        finally:
            self._work = None

    async def _answer(self) -> None:
        """Send the updates that the client lacks, and ask for those that this node lacks, if either is due."""
        state = self._known if self._asked is None else self._asked
        lacking, wants = self._asked is not None or self._missed, self._wants
        self._asked, self._missed, self._wants = None, False, False
        reply = await self.session.call(ReadDocument(self._room.space, self._room.document, state or _NOTHING), stale=True)
        if lacking:
            self._send(message_frame(yjs.encode_step_2(reply.update)))
            self._known = reply.state
        if wants:
            self._send(message_frame(yjs.encode_step_1(reply.state)))
        if lacking and not self._missed and self._asked is None:
            held, self._held, self._held_bytes = self._held or [], None, 0
            for frame in held:
                self.relay(frame)

    async def _drained(self) -> bool:
        """Wait until nothing waits to be sent; False if the client reads nothing and is cut off."""
        clock = asyncio.get_running_loop().time
        least, since = self._waiting_bytes, clock()
        while waiting := self._waiting_bytes:
            if waiting < least:
                least, since = waiting, clock()
            elif clock() - since >= self._config.yjs_stalled_s:
                self.end(WSCloseCode.TRY_AGAIN_LATER, f"{waiting} bytes waited, and were not read")
                return False
            await asyncio.sleep(_LOOK_S)
        return True


def _reason(text: str) -> bytes:
    """The beginning of `text` that fits a close frame."""
    return text.encode(errors="replace")[:_CLOSE_REASON_BYTES_MAX].decode(errors="ignore").encode()
