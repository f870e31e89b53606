"""The room of a document that Yjs clients share, and the updates that wait there for earlier ones.

A document's room: the connections of this node that share the document, and their updates.

Laws:
- Relayed updates are durable: the room follows the document like any other client,
  and relays each update that it receives, including to its author.
- Updates that arrive during a write become one operation after it: the
  first update of a burst is written at once, and a crowd costs one operation, one
  message and one encoding per commit, however large it is.
- If an update is rejected, those of others in its operation are written without it, and
  only its own connection is closed. What that one sent after it is not written: it is not acknowledged.
- An update that depends on others that this node lacks is held, and written as soon as
  those arrive from any client or node.
- Above `YJS_PENDING_BYTES_MAX` unwritten bytes no connection of the room is read; above
  `YJS_EARLY_BYTES_MAX` held bytes a connection that sends another early update is closed.

Updates that arrived before the updates that they build on: held in memory until those are there.

Laws:
- Each waits for one clock of one Yjs client; it cannot be ready before.
- Above `bytes_max` no update is held. Each counts somewhat more than its bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet

import msgspec
from aiohttp import WSCloseCode

from shoal.api.http.problems import internal
from shoal.api.yjs.socket import Message
from shoal.errors import Overloaded, ShoalError, SlowConsumer, StorageError, Unavailable
from shoal.protocol import yjs
from shoal.protocol.requests import DocumentState, Early, Edit, Follow, FollowPresence, Presence, Present, Updates, UpdatesTaken
from shoal.protocol.session import Session
from shoal.protocol.yjs import GONE
from shoal.records import NamedTuple

YJS_UPDATES_MAX = 256  # Updates, of one or several clients, in one operation.
YJS_PENDING_BYTES_MAX = 8 * 1024 * 1024  # Bytes received for one document, not yet durable; 256 more for each update.
YJS_EARLY_BYTES_MAX = 16 * 1024 * 1024  # Bytes held for one document until their dependencies arrive; 256 more for each update.

_NOTHING = b"\x00\x00"  # An update that brings nothing.

T = TypeVar("T")

UPDATE_OVERHEAD_BYTES = 256
"""The memory that Python needs for each update that waits."""


class _Held(NamedTuple, Generic[T]):
    clock: int
    number: int  # Unique, so that items are never compared.
    size: int
    item: T


class EarlyUpdates(Generic[T]):
    """Updates of any type `T`, by the Yjs client and clock that each waits for."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._numbers = count()
        self._waiting: dict[int, list[_Held[T]]] = {}  # A heap for each Yjs client.

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def hold(self, item: T, size: int, *, client: int, clock: int) -> bool:
        """Hold `item` until `client` has reached `clock`; False if there is no room for it."""
        size += UPDATE_OVERHEAD_BYTES
        if self._bytes + size > self._bytes_max:
            return False
        self._bytes += size
        heappush(self._waiting.setdefault(client, []), _Held(clock, next(self._numbers), size, item))
        return True

    def take(self, reached: Mapping[int, int]) -> list[T]:
        """Return, and forget, the items that waited for clocks that these clients have reached."""
        due: list[T] = []
        for client in self._waiting.keys() & reached.keys():
            heap = self._waiting[client]
            while heap and heap[0].clock <= reached[client]:
                held = heappop(heap)
                self._bytes -= held.size
                due.append(held.item)
            if not heap:
                del self._waiting[client]
        return due

    def drop(self, goes: Callable[[T], bool]) -> None:
        """Forget the updates for which `goes` is true."""
        for client, heap in list(self._waiting.items()):
            kept = [held for held in heap if not goes(held.item)]
            self._bytes -= sum(held.size for held in heap) - sum(held.size for held in kept)
            heapify(kept)
            self._waiting[client] = kept
            if not kept:
                del self._waiting[client]


_RETRY_S = 0.1
_FOR_GOOD = 4000


class Guest(Protocol):
    """A connection, as its room sees it."""

    authors: dict[int, str]
    """The names of its Yjs clients: with a token, that of its author; else as they are present."""

    def relay(self, message: Message, /) -> None:
        """Send a durable update."""

    def mention(self, message: Message, /) -> None:
        """Send who is present; it may be left out."""

    def resync(self) -> None:
        """Updates may have been missed: send the difference from the current state."""

    def written(self, number: int, update: yjs.Update, /) -> None:
        """The guest's update with this number is durable."""

    def early(self) -> None:
        """An update of this guest depends on others that the node lacks; it is held."""

    def refused(self, error: ShoalError, /) -> None:
        """An update of this guest was rejected, so that its copy of the document differs for good."""

    def end(self, code: int, reason: str, /) -> None:
        """Close the connection."""


class _Received(NamedTuple):
    guest: Guest
    number: int  # Which of the guest's updates it is.
    update: yjs.Update


class Room:
    """The connections of one document at this node; it follows the document from its creation to `close`."""

    def __init__(self, session: Session, space: str, document: str) -> None:
        self.space, self.document = space, document
        self.users = 0  # Connections that are here, or on their way out.
        self._session = session
        self._guests: dict[Guest, None] = {}
        self._received: list[_Received] = []
        self._received_bytes = 0
        self._early: EarlyUpdates[_Received] = EarlyUpdates(bytes_max=YJS_EARLY_BYTES_MAX)
        self._lately: list[DocumentState | Edit] = []  # Pushed since the write under way began.
        self._room = asyncio.Event()  # Updates were written, so that there is room.
        self._taken = 0  # Updates received, and those of them that were written, held or rejected, in this order.
        self._done = 0
        self._refused: WeakSet[Guest] = WeakSet()  # Those of which an update was rejected.
        self._writing: asyncio.Task[None] | None = None
        self._present: dict[int, Present] = {}
        self._tasks = [asyncio.get_running_loop().create_task(work) for work in (self._follow(), self._follow_presence())]
        self.following = asyncio.Event()  # From here on nothing is missed.
        self._over: tuple[int, str] | None = None  # The close code and reason, once the room has failed.

    # ── guests ────────────────────────────────────────────────────────────────

    def enter(self, guest: Guest) -> None:
        """Send it all updates that become durable from now on; if the room has failed, end it."""
        self._guests[guest] = None
        if self._over is not None:
            guest.end(*self._over)

    def leave(self, guest: Guest) -> None:
        """Send it nothing more, and forget its updates that wait. Twice is allowed."""
        self._guests.pop(guest, None)
        self._early.drop(lambda received: received.guest is guest)

    async def written(self) -> None:
        """Return once all updates received by now are written, held or rejected; it waits for none that come meanwhile."""
        taken = self._taken
        while self._done < taken and self._writing is not None:
            self._room.clear()
            await self._room.wait()

    async def close(self) -> None:
        """Stop following, and close the room's session."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    @property
    def present(self) -> list[Present]:
        """The clients that are present, on any node."""
        return list(self._present.values())

    # ── what they send ────────────────────────────────────────────────────────

    def take(self, guest: Guest, number: int, update: yjs.Update) -> None:
        """Start to write an update; the outcome is a call of `guest`: `written`, `early` or `refused`."""
        self._take([_Received(guest, number, update)])

    def _take(self, some: Sequence[_Received]) -> None:
        self._received += some
        self._taken += len(some)
        self._received_bytes += sum(map(_size, some))
        if some and self._writing is None:
            # It begins at the loop's next turn, so that what arrives in one is one operation.
            self._writing = asyncio.get_running_loop().create_task(self._write())

    @property
    def is_full(self) -> bool:
        """Whether more bytes wait to be written than may; then connections are not read."""
        return self._received_bytes > YJS_PENDING_BYTES_MAX

    async def has_room(self) -> None:
        """Wait until it is not full."""
        while self.is_full:
            self._room.clear()
            await self._room.wait()

    async def _write(self) -> None:
        try:
            while self._received:
                some = self._received[:YJS_UPDATES_MAX]
                del self._received[: len(some)]
                await self._write_some([received for received in some if received.guest not in self._refused])
                self._done += len(some)
                self._received_bytes -= sum(map(_size, some))
                self._room.set()
        except Exception as bug:
            self._end(WSCloseCode.INTERNAL_ERROR, internal(bug, where="yjs room").message)
        finally:
            self._writing = None
            self._room.set()

    async def _write_some(self, some: Sequence[_Received]) -> None:
        if not some:
            return
        updates = [received.update.update for received in some]
        authors = {client: author for received in some for client, author in received.guest.authors.items()}
        request = Updates(self.space, self.document, updates, dict(islice(authors.items(), YJS_UPDATES_MAX)))
        try:
            reply = await self._called(request)
        except ShoalError as error:
            if len(some) == 1 and "items_max" in error.detail:
                await self._write_in_pieces(some[0], request)
                return
            if len(some) == 1:
                self._refuse(some[0], error)
                return
            for received in some:
                if received.guest not in self._refused:
                    await self._write_some([received])
            return
        early = {each.index: each for each in reply.early}
        for index, received in enumerate(some):
            if index in early:
                self._hold(received, early[index])
            else:
                received.guest.written(received.number, received.update)
        # The updates that they wait for may have come while the reply was on its way.
        for push in self._lately:
            self._try_again(push)

    async def _write_in_pieces(self, received: _Received, whole: Updates) -> None:
        """Write an update with too many items for one operation, a piece after the other; it is acknowledged after the last."""
        try:
            for piece in yjs.in_pieces(received.update.update):
                await asyncio.sleep(0)
                if piece != _NOTHING:
                    reply = await self._called(msgspec.structs.replace(whole, updates=[piece]))
                    if reply.early:
                        self._hold(received, reply.early[0])
                        return
        except ShoalError as error:
            self._refuse(received, error)
            return
        received.guest.written(received.number, received.update)

    async def _called(self, request: Updates) -> UpdatesTaken:
        while True:
            self._lately.clear()
            try:
                reply = await self._session.call(request, stale=True)
                assert isinstance(reply, UpdatesTaken)
                return reply
            except Overloaded as error:
                # Many writers wait for the disk. Ours wait too, and are not read meanwhile.
                wait_s = error.detail.get("retry_after_s")
                await asyncio.sleep(float(wait_s) if isinstance(wait_s, int | float) else _RETRY_S)

    def _refuse(self, received: _Received, error: ShoalError) -> None:
        self._refused.add(received.guest)
        received.guest.refused(error)

    def _hold(self, received: _Received, early: Early) -> None:
        guest = received.guest
        if guest not in self._guests:
            return  # It is not acknowledged, and comes again with the next connection.
        if self._early.hold(received, len(received.update.update), client=early.client, clock=early.clock):
            guest.early()
        else:
            guest.end(WSCloseCode.TRY_AGAIN_LATER, "too many updates depend on others that are missing")

    def _try_again(self, push: DocumentState | Edit) -> None:
        """Write the held updates that are ready after this push."""
        if self._early:
            self._take(self._early.take(yjs.reached(push.update) if isinstance(push, Edit) else yjs.clocks(push.state)))

    # ── what they are sent ────────────────────────────────────────────────────

    async def _follow(self) -> None:
        while True:
            try:
                async with self._session.subscribe(Follow(self.space, self.document, stale=True)) as pushes:
                    async for push in pushes:
                        if not isinstance(push, DocumentState | Edit):
                            continue
                        if isinstance(push, Edit):
                            self._relay(push.update)
                        else:
                            self._begin()
                        if self._writing is not None:
                            self._lately.append(push)
                        self._try_again(push)
            except SlowConsumer:
                for guest in list(self._guests):
                    guest.resync()
            except ShoalError as error:
                self._end(close_code(error), error.message)
                return
            except Exception as bug:
                self._end(WSCloseCode.INTERNAL_ERROR, internal(bug, where="yjs room").message)
                return

    async def _follow_presence(self) -> None:
        try:
            async with self._session.subscribe(FollowPresence(self.space, self.document)) as pushes:
                async for push in pushes:
                    if isinstance(push, Presence) and push.entries:
                        self._tell_present(push.entries)
        except ShoalError:
            return  # Without presence: the node is stopping, or has too many followers.

    def _tell_present(self, entries: Sequence[Present]) -> None:
        for present in entries:
            if present.state == GONE:
                self._present.pop(present.client, None)
            else:
                self._present[present.client] = present
        message = Message(yjs.encode_awareness(entries))
        for guest in list(self._guests):
            guest.mention(message)

    def _end(self, code: int, reason: str) -> None:
        self._over = code, reason
        for guest in list(self._guests):
            guest.end(code, reason)

    def _begin(self) -> None:
        self.following.set()
        for guest in list(self._guests):
            guest.resync()

    def _relay(self, update: bytes) -> None:
        message = Message(yjs.encode_update(update))
        for guest in list(self._guests):
            guest.relay(message)


def _size(received: _Received) -> int:
    return len(received.update.update) + UPDATE_OVERHEAD_BYTES


def close_code(error: ShoalError) -> int:
    """The WebSocket close code for an error; the client sees only the code and the reason.

    Codes from 4400 to 4499 are y-websocket's for what coming back cannot help; they mirror HTTP's.
    """
    if isinstance(error, Unavailable | StorageError):
        return WSCloseCode.TRY_AGAIN_LATER
    return _FOR_GOOD + error.status if 400 <= error.status < 500 else WSCloseCode.INTERNAL_ERROR
