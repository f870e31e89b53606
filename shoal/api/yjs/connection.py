"""A standard Yjs client in one document, over the y-websocket protocol or another one.

One standard Yjs client in one document: its messages go to the document's room, and the room's updates go to it.

Laws:
- How messages travel, and how the client learns that an update is durable or rejected, is the `Line`'s matter.
- Above `YJS_SEND_BYTES_MAX` nothing more is queued. Once everything that waited was sent, the
  client gets the missed updates as one difference from the state that it is known to have.
  A client that reads nothing for `YJS_STALLED_S` is cut off.
- The answer to step 1 is sent before the updates that were relayed meanwhile, so that
  a client whose engine does not retry early updates loses none.
- Presence is not an update: it is relayed at once, and left out if there is no room.
  The entries that this connection announced end with it.
- A rejected update closes the connection with the reason, because the client's copy
  has the update and this node never will. If an update depends on others that this node
  lacks, the node asks the client for them, and the update waits in the room.
- A client that leaves is told nothing more of its updates: it may be in the document
  again, and would take that for news of the updates that it sends now.
- A client that may only read is no writer as long as what it sends brings nothing new: a provider repeats what it has
  when a connection begins, and when it finds a copy in its browser.

The line of a y-websocket client: one WebSocket for one document.

Laws:
- An acknowledgement counts updates in the order in which they were sent: the first so many are all durable.
- If the client's part in the document ends, its WebSocket ends, with a code and the reason.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec
from aiohttp import WSCloseCode, WSMsgType

from shoal.api.yjs.room import Room, close_code
from shoal.api.yjs.socket import UNAUTHORIZED, Message, Socket
from shoal.errors import Forbidden, InvalidName, InvalidValue, Overloaded, ShoalError, TooLarge
from shoal.names import check_name
from shoal.protocol import yjs
from shoal.protocol.requests import Announce, Announced, FollowPresence, Present, ReadDocument, Updates
from shoal.protocol.session import Session

YJS_AUTHORS_MAX = 16  # Yjs clients of one connection whose names are noted; a provider has one.
YJS_SEND_BYTES_MAX = 4 * 1024 * 1024  # Bytes queued for one client; beyond this, one diff follows once the queue has drained.

if TYPE_CHECKING:
    from shoal.access.bearer import Bearer

_EMPTY = b"\x00\x00"  # The update without content.
_NOTHING = b"\x00"  # The state vector of an empty document.


class Line(Protocol):
    """A carrier of one client's messages about one document, in the protocol that the client speaks."""

    socket: Socket
    address: bytes
    """The bytes that precede each message to the client."""

    def taken(self, number: int, update: yjs.Update | yjs.AskDurable, /) -> None:
        """The client sent this update, its `number`-th; or asked to be told of those after it."""

    def asks(self) -> None:
        """The client sent a step 1."""

    def durable(self, number: int, update: yjs.Update, /) -> bytes | None:
        """An update is durable: what the client is told, if anything."""

    def read_only(self) -> bytes | None:
        """The answer to an update that the client may not write; None if its connection ends."""

    async def close(self, code: int, reason: str, /) -> None:
        """End this client's part in the document, with the reason."""

    async def expire(self, reason: str, /) -> None:
        """End it because the token counts no more; the client may come back with another."""


class YjsConnection:
    """One client in one document; `enter` begins, `leave` ends."""

    def __init__(self, line: Line, room: Room, session: Session, *, bearer: Bearer | None = None) -> None:
        self.session = session
        self._line = line
        self._bearer = bearer
        self._sees_presence = bearer is None or bearer.allows(FollowPresence(room.space, room.document))
        self._room = room
        self._asked: bytes | None = None  # The state vector of a step 1 that is not answered yet.
        self._wants = False  # Whether to ask the client for updates that this node lacks.
        self._awaits = False  # Whether it was asked because an update was not ready, and has not answered.
        self._known: bytes | None = None  # The state that the client has for certain: the vector of the last answer.
        self._missed = False  # Whether a relayed update was not sent to it.
        self._held: list[Message] | None = None  # Messages to relay after an answer that is being made.
        self._held_bytes = 0
        self._work: asyncio.Task[None] | None = None
        self._taken = 0  # Updates that it sent.
        self.authors: dict[int, str] = {}
        self._seen = _NOTHING  # The document's state when it was last looked whether the client brings anything new.
        self._ending: asyncio.Task[None] | None = None
        self._over = False  # It has left, or is about to.

    def enter(self) -> None:
        """Take part from now on."""
        self._room.enter(self)
        self._tell_present()

    async def leave(self) -> None:
        """Take part no more."""
        self._over = True
        self._room.leave(self)
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        if self._ending is not None:
            await asyncio.wait([self._ending])

    @property
    def may_write(self) -> bool:
        """Whether the client may change the document."""
        return self._bearer is None or self._bearer.allows(Updates(self._room.space, self._room.document, []))

    # ── what the client says ──────────────────────────────────────────────────

    async def take(self, said: Sequence[yjs.Message]) -> None:
        """Take messages of the client; returns once there is room for more."""
        for message in said:
            if self._over:
                return
            match message:
                case yjs.Awareness():
                    await self._announce(message)
                case yjs.Update():
                    await self._update(message)
                case yjs.Step1(state):
                    self._asked, self._wants = state, True
                    self._line.asks()
                    self._hold()
                    self._start_work()
                case yjs.AskDurable():
                    self._line.taken(self._taken, message)
                case yjs.QueryAwareness():
                    self._tell_present()
        if self._room.is_full:
            await self._room.has_room()

    async def _update(self, update: yjs.Update) -> None:
        self._taken += 1
        self._line.taken(self._taken, update)
        if update.update == _EMPTY:
            self.written(self._taken, update)
        elif self.may_write:
            self._room.take(self, self._taken, update)
        else:
            await self._read_only(self._taken, update)

    async def _read_only(self, number: int, update: yjs.Update) -> None:
        try:
            found = await self.session.call(ReadDocument(self._room.space, self._room.document, self._seen), stale=True)
            self._seen = found.state
            if yjs.brings_nothing(update.update, found.state, found.update):
                return self.written(number, update)
            assert self._bearer is not None
            told = self._line.read_only()
            if told is not None:
                return self._send(told)
            self._bearer.check(Updates(self._room.space, self._room.document, []))
        except ShoalError as error:
            self.refused(error)

    async def close(self, code: int, reason: str) -> None:
        """Take part no more, and tell the client why."""
        self._room.leave(self)
        await self._line.close(code, reason)

    def expire(self, reason: str) -> None:
        """Close the connection: its token counts no more."""
        self._room.leave(self)
        self._begin_end(self._line.expire(reason))

    def written(self, number: int, update: yjs.Update, /) -> None:
        """The guest's update with this number is durable (`Guest.written`)."""
        if self._over:
            return
        if update.answers:
            self._awaits = False
        told = self._line.durable(number, update)
        if told is not None:
            self._send(told)

    def early(self) -> None:
        """An update of this guest depends on others that the node lacks; it is held (`Guest.early`); asks the client for what
        the node lacks, unless it is already asked.
        """
        if not self._awaits:
            # Once, until it has answered: a client that lacks something itself cannot give more.
            self._wants = self._awaits = True
            self._start_work()

    def refused(self, error: ShoalError, /) -> None:
        """An update of this guest was rejected, so that its copy of the document differs for good (`Guest.refused`); closes the
        connection with the reason.
        """
        self.end(close_code(error), error.message)

    async def _announce(self, said: yjs.Awareness) -> None:
        request = Announce(self._room.space, self._room.document, said.entries)
        others = {each.client for each in self._room.present} - self.authors.keys()
        try:
            announced = await self.session.call(request)
        except (Overloaded, Forbidden):
            return  # Nobody sees its presence; editing continues.
        except (InvalidValue, TooLarge) as error:
            self.refused(error)
            return
        assert isinstance(announced, Announced)
        self._name([entry for entry in said.entries if entry.client not in others])
        if announced.gone:
            # A client that is present, but learns that it is gone, announces itself with a newer clock.
            self._send(yjs.encode_awareness(announced.gone))

    def _name(self, entries: Sequence[Present]) -> None:
        """Note the names of its own Yjs clients: those that were not present through another connection before."""
        for entry in entries:
            name = _named(entry.state) if self._bearer is None else self._bearer.token.author
            if name and entry.state != yjs.GONE and len(self.authors) < YJS_AUTHORS_MAX:
                self.authors.setdefault(entry.client, name)

    def _tell_present(self) -> None:
        if self._fits(0) and (present := self._room.present):
            self.mention(Message(yjs.encode_awareness(present)))

    def end(self, code: int, reason: str, /) -> None:
        """Start to close the connection, without waiting for it; only the first call counts."""
        self._begin_end(self.close(code, reason))

    def _begin_end(self, ending: Coroutine[None, None, None]) -> None:
        if not self._over:
            self._over = True
            self._ending = asyncio.get_running_loop().create_task(ending)
        else:
            ending.close()

    # ── what it is sent ───────────────────────────────────────────────────────

    def relay(self, message: Message, /) -> None:
        """Send a durable update (`Guest.relay`); held back during an answer to step 1, and skipped if there is no room."""
        if self._missed or (self._known is None and self._held is None):
            return  # It comes with the next answer, or was never asked for.
        frame = message.frame(self._line.address)
        if not self._fits(len(frame)):
            self.resync()
        elif self._held is None:
            self._line.socket.write(frame)
        else:
            self._held.append(message)
            self._held_bytes += len(frame)

    def mention(self, message: Message, /) -> None:
        """Send who is present; it may be left out (`Guest.mention`); left out if there is no room."""
        frame = message.frame(self._line.address)
        if self._sees_presence and self._fits(len(frame)):
            self._line.socket.write(frame)

    def resync(self) -> None:
        """Updates may have been missed: send the difference from the current state (`Guest.resync`); the rest is sent as one
        difference when there is room.
        """
        self._missed = self._known is not None or self._held is not None
        if self._missed:
            self._hold()
            self._start_work()

    def _hold(self) -> None:
        self._held, self._held_bytes = [], 0

    def _fits(self, size: int) -> bool:
        waiting = self._waiting_bytes + self._held_bytes
        return not waiting or waiting + size <= YJS_SEND_BYTES_MAX

    @property
    def _waiting_bytes(self) -> int:
        return self._line.socket.unsent_bytes

    def _send(self, payload: bytes) -> None:
        self._line.socket.reply(Message(payload).frame(self._line.address))

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
            self._line.socket.write(Message(yjs.encode_step_2(reply.update)).frame(self._line.address))
            self._known = reply.state
        if wants:
            self._send(yjs.encode_step_1(reply.state))
        if lacking and not self._missed and self._asked is None:
            held, self._held, self._held_bytes = self._held or [], None, 0
            for message in held:
                self.relay(message)

    async def _drained(self) -> bool:
        """Wait until all that is written by now was sent; False if the client reads nothing and is cut off."""
        if await self._line.socket.drained():
            return True
        self.end(WSCloseCode.TRY_AGAIN_LATER, self._line.socket.stalled)
        return False


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


def _named(state: bytes) -> str:
    """The name that a client gives itself in its presence, as editors do; empty if it has none that an author may have."""
    try:
        told = msgspec.json.decode(state)
    except ValueError:
        return ""
    user = told.get("user") if isinstance(told, dict) else None
    name = (user if isinstance(user, dict) else told).get("name") if isinstance(told, dict) else None
    if not isinstance(name, str) or not name:
        return ""
    with suppress(InvalidName):
        return check_name("author", name)
    return ""
