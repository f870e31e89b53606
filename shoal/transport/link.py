"""One WebSocket to one node, with many requests under way at once.

An HTTP POST costs aiohttp about 0.5 ms of processor time, a message of a WebSocket a twentieth of it, and agents save
often, from many tasks of one process. So all of them share one socket, and requests fail alone.

Laws:

- A call ends exactly once: with its reply, with the node's error, with its
  time-out, or with the link. A reply whose caller no longer waits is dropped.
- If a link breaks or a call times out, a write whose frame may have been sent ends with
  OutcomeUnknown. Unsent requests, and every read, end with Disconnected or
  Unavailable, which say that nothing was written.
- Frames of one turn of the event loop share messages; they are sent in the order
  of the calls.
- Operations that the bookmark names and the node does not know are sent before the next frame;
  operations that a reply shows are in the bookmark before its caller continues.
- A link that is lost stays lost: `shoal.transport.session` dials another.

The pushes of a subscription that its consumer has not taken yet, bounded by bytes.

Law: the consumer sees a contiguous beginning of the pushes, then the end
or the error that ended them. An overflow ends the subscription with SlowConsumer; nothing is
ever left out of the middle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count

import aiohttp
from msgspec import Raw

from shoal.config import Config
from shoal.errors import (
    Disconnected,
    InvalidValue,
    OutcomeUnknown,
    ShoalError,
    SlowConsumer,
    TooLarge,
    Unavailable,
    Unsupported,
)
from shoal.protocol.bookmark import Bookmark, Sight, take_news
from shoal.protocol.frames import (
    COALESCED_BYTES_MAX,
    PROTOCOL,
    EndFrame,
    ErrorFrame,
    Hello,
    NodeFrame,
    PushFrame,
    ReplyFrame,
    Welcome,
    decode_node_frames,
    decode_push,
    decode_reply,
    decode_welcome,
    encode_call,
    encode_cancel,
    encode_hello,
    encode_observe,
    encode_subscribe,
    message_bytes,
    messages,
)
from shoal.protocol.requests import Durability, Push, R, Read, Replaced, Request, Subscription, reply_of
from shoal.protocol.session import note
from shoal.protocol.tracing import sent_along
from shoal.transport.dialling import Connect, DialledSocket, open_socket, sent_before, unreached, untrusted, why

CLIENT_REQUESTS_MAX = 4096  # Requests in progress on one link; further callers wait.


class Inbox(AsyncIterator[Push]):
    """A queue with one consumer, which iterates; the link's reader puts."""

    __slots__ = ("_bytes", "_bytes_max", "_ended", "_error", "_pushes", "_stirred")

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._pushes: deque[tuple[Raw, int]] = deque()
        self._stirred = asyncio.Event()
        self._ended = False
        self._error: ShoalError | None = None

    @property
    def ended(self) -> bool:
        """True once nothing more can arrive."""
        return self._ended

    def put(self, push: Raw) -> None:
        """Add a push from the node. If that exceeds the budget, the subscription ends."""
        if self._ended:
            return
        size = len(memoryview(push))
        if self._pushes and self._bytes + size > self._bytes_max:
            self.end(
                SlowConsumer(
                    f"the consumer fell more than {self._bytes_max} bytes behind, and the subscription was ended. "
                    "Nothing was written. Subscribe again, and read what was missed.",
                    bytes_max=self._bytes_max,
                )
            )
            return
        self._pushes.append((push, size))
        self._bytes += size
        self._stirred.set()

    def end(self, error: ShoalError | None = None) -> None:
        """Nothing more arrives. The consumer sees the queued pushes, then `error`. Ending twice changes nothing."""
        if not self._ended:
            self._ended, self._error = True, error
            self._stirred.set()

    async def __anext__(self) -> Push:
        while not self._pushes:
            if self._ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._stirred.clear()
            await self._stirred.wait()
        push, size = self._pushes.popleft()
        self._bytes -= size
        return decode_push(push)


class _Exchange:
    """A frame that waits for its answer."""

    __slots__ = ("answer", "replaced", "write")

    def __init__(self, *, write: bool) -> None:
        self.answer: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self.replaced: Sequence[Replaced] = ()
        self.write = write

    def fail(self, error: ShoalError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # Mark it as retrieved, so that a caller cancelled in this very turn leaves no warning.


class Link:
    """A connection to a node. `dial` makes it; `close`, the node or the network ends it."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        socket: DialledSocket,
        *,
        welcome: Welcome,
        config: Config,
        bookmark: Bookmark,
    ) -> None:
        self.welcome = welcome
        self._welcomed_at = asyncio.get_running_loop().time()
        self._bookmark = bookmark
        self._observed = 0  # The revision of the bookmark that the node knows.
        self._http = http
        self._socket = socket
        self._config = config
        self._ids = count(1)
        self._room = asyncio.Semaphore(min(CLIENT_REQUESTS_MAX, welcome.session_requests_max))
        self._exchanges: dict[int, _Exchange] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._outbox: dict[int, bytes] = {}  # Unsent frames, by the id that they concern.
        self._stirred = asyncio.Event()
        self._lost: str | None = None
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]

    @classmethod
    async def dial(
        cls,
        url: str,
        *,
        config: Config,
        software: str = "shoal",
        token: str | None = None,
        bookmark: Bookmark | None = None,
        others: bool = False,
        connect: Connect = open_socket,
    ) -> Link:
        """Connect to the node at `url` ("http://host:7400") and shake hands, within `connect_timeout_s`.

        If there are `others` to go to, a node that is silent is given up after `failover_timeout_s`, now and later.
        The node is told of the operations in `bookmark` before the first request, and of later ones as it grows; the
        node's replies add to it.

        Raises:
            Disconnected: it cannot be reached, or is not a node.
            Unsupported: its certificate is not trusted.
            Unauthenticated: it asks for a token, or does not accept this one.
            Overloaded: it has no room for another session.
            ShoalError: any other reason for which it refuses the session.
        """
        patience_s = config.failover_timeout_s if others else config.connect_timeout_s
        heartbeat_s = min(config.failover_timeout_s, config.heartbeat_s) if others else config.heartbeat_s
        try:
            async with asyncio.timeout(min(patience_s, config.connect_timeout_s)):
                http, socket = await connect(url, config=config, token=token, heartbeat_s=heartbeat_s)
                try:
                    await socket.send_bytes(encode_hello(Hello(PROTOCOL, software)))
                    welcome = _welcomed(url, await socket.receive_bytes())
                except BaseException:
                    socket.cut()
                    await http.close()
                    raise
        except aiohttp.ClientConnectorCertificateError as reason:
            raise untrusted(url, reason) from reason
        except (aiohttp.ClientError, aiohttp.WSMessageTypeError, OSError, TimeoutError) as reason:
            raise unreached(url, why(reason), sent_before(reason, token)) from reason
        return cls(http, socket, welcome=welcome, config=config, bookmark=Bookmark() if bookmark is None else bookmark)

    @property
    def open(self) -> bool:
        """Whether the link can be used: it is not closed or lost."""
        return self._lost is None

    # ── calls ─────────────────────────────────────────────────────────────────

    async def call(
        self,
        request: Request[R],
        /,
        *,
        key: str | None = None,
        durability: Durability = "local",
        stale: bool = False,
        timeout_s: float | None = None,
    ) -> R:
        """Send a request, and return its reply; `timeout_s` is `request_timeout_s` unless given.

        Raises:
            OutcomeUnknown: a write was sent, and no answer came, or a malformed one; send it again with the same key.
            InvalidValue: the answer to a read is malformed.
            Disconnected: the link broke before the request was sent, or during a read. Nothing was written.
            Unavailable: a read was not answered in time, or there was no room for the request.
            TooLarge: the request is over the node's `request_bytes_max`; it was not sent.
            ShoalError: the node's own answer.
        """
        id = next(self._ids)
        ends_at = asyncio.get_running_loop().time() + (timeout_s or self._config.request_timeout_s)
        # The node counts from an earlier moment, so by its clock the deadline comes no later than the caller's.
        until_ms = max(1, int((ends_at - self._welcomed_at) * 1000))
        frame = encode_call(id, request, key=key, durability=durability, stale=stale, until_ms=until_ms, trace=sent_along())
        if message_bytes(frame) > self.welcome.request_bytes_max:  # It may fit without its trace.
            frame = encode_call(id, request, key=key, durability=durability, stale=stale, until_ms=until_ms)
        frame = self._bounded(frame)
        await self._take_room(ends_at)
        try:
            raw = await self._exchange(id, frame, write=not isinstance(request, Read), ends_at=ends_at)
        finally:
            self._room.release()
        kind: type[R] = reply_of(type(request))
        try:
            return decode_reply(raw, kind)
        except InvalidValue as reason:
            if isinstance(request, Read):
                raise
            raise self._loss(reason.message.rstrip("."), left=True) from None

    def _bounded(self, frame: bytes) -> bytes:
        bytes_max = self.welcome.request_bytes_max
        if message_bytes(frame) > bytes_max:
            raise TooLarge(
                f"the request has {message_bytes(frame)} bytes; the node takes at most {bytes_max}. Nothing was written. "
                'Store large values as files, with put_file, or split it: docs/CONFIGURATION.md, "How large a value may be".',
                bytes=message_bytes(frame),
                bytes_max=bytes_max,
            )
        return frame

    async def _take_room(self, ends_at: float) -> None:
        if not self._room.locked():
            await self._room.acquire()
            return
        try:
            async with asyncio.timeout_at(ends_at):
                await self._room.acquire()
        except TimeoutError:
            raise Unavailable(
                "too many requests are under way on this connection. Nothing was sent. Try again later."
            ) from None

    async def _exchange(self, id: int, frame: bytes, *, write: bool, ends_at: float) -> Raw:
        if self._lost is not None:
            raise self._loss(self._lost, left=False)
        self._observe()
        exchange = self._exchanges[id] = _Exchange(write=write)
        timer = asyncio.get_running_loop().call_at(ends_at, self._expire, id)
        self._post(id, frame)
        try:
            raw = await exchange.answer
            if exchange.replaced:
                note(exchange.replaced)
            return raw
        finally:
            timer.cancel()
            self._exchanges.pop(id, None)
            self._outbox.pop(id, None)  # If the caller gave up, its unsent frame is withdrawn.

    def _observe(self) -> None:
        """Tell the node of operations that this client saw at other nodes, before the next frame."""
        if self._bookmark.revision == self._observed:
            return
        self._observed = self._bookmark.revision
        if self._bookmark:
            self._post(next(self._ids), self._bounded(encode_observe(self._bookmark.pack())))

    def _learn(self, seen: list[Sight]) -> None:
        in_step = self._bookmark.revision == self._observed
        take_news(self._bookmark, seen)
        if in_step:
            self._observed = self._bookmark.revision

    def _expire(self, id: int) -> None:
        exchange = self._exchanges.get(id)
        if exchange is None:
            return
        left = id not in self._outbox
        if left and not exchange.write:
            exchange.fail(Unavailable("the node did not answer in time. Nothing was written. Try again later, or elsewhere."))
        else:
            exchange.fail(self._loss("the node did not answer in time", left=left))

    # ── subscriptions ─────────────────────────────────────────────────────────

    @asynccontextmanager
    async def subscribe(self, subscription: Subscription, /, *, timeout_s: float | None = None) -> AsyncIterator[Inbox]:
        """Pushes from now on: once the context is entered, the node has begun.

        Raises:
            Disconnected: the link broke; also from the iterator, if it breaks later.
            SlowConsumer: from the iterator, if `subscription_bytes_max` overflowed.
            ShoalError: the node's own answer.
        """
        id = next(self._ids)
        frame = self._bounded(encode_subscribe(id, subscription))
        ends_at = asyncio.get_running_loop().time() + (timeout_s or self._config.request_timeout_s)
        inbox = self._inboxes[id] = Inbox(bytes_max=self._config.subscription_bytes_max)
        try:
            await self._exchange(id, frame, write=False, ends_at=ends_at)
            yield inbox
        finally:
            if self._inboxes.pop(id, None) is not None:
                self._cancel(id)

    def _cancel(self, id: int) -> None:
        if self._lost is None:
            self._post(id, encode_cancel(id))

    # ── the socket ────────────────────────────────────────────────────────────

    def _post(self, id: int, frame: bytes) -> None:
        self._outbox[id] = frame
        self._stirred.set()

    async def _write(self) -> None:
        bytes_max = min(COALESCED_BYTES_MAX, self.welcome.request_bytes_max)
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            # From here on these frames count as sent, although some may not be: that is the safe side.
            frames, self._outbox = self._outbox, {}
            for message in messages(frames.values(), bytes_max=bytes_max):
                try:
                    await self._socket.send_bytes(message)
                except (aiohttp.ClientError, OSError) as reason:
                    self._lose(f"sending failed: {reason}")
                    return

    async def _read(self) -> None:
        reason = "the node closed the connection"
        try:
            while (message := await self._socket.receive()).type is aiohttp.WSMsgType.BINARY:
                for frame in decode_node_frames(message.data):
                    self._take(frame)
            reason = _why_closed(self._socket, message)
        except ShoalError as error:
            reason = str(error)
            self._lose(reason)
            await self._socket.close(code=aiohttp.WSCloseCode.PROTOCOL_ERROR)
        finally:
            self._lose(reason)

    def _take(self, frame: NodeFrame) -> None:
        match frame:
            case ReplyFrame(id, reply, seen, replaced):
                if seen:
                    self._learn(seen)
                exchange = self._exchanges.get(id)
                if exchange is not None and not exchange.answer.done():
                    exchange.replaced = replaced
                    exchange.answer.set_result(reply)
            case PushFrame(id, push, seen):
                if seen:
                    self._learn(seen)
                self._deliver(id, push)
            case ErrorFrame(id, fault):
                exchange = self._exchanges.get(id)
                if exchange is not None:
                    exchange.fail(fault.error())
            case EndFrame(id, fault):
                inbox = self._inboxes.pop(id, None)
                if inbox is not None:
                    inbox.end(None if fault is None else fault.error())

    def _deliver(self, id: int, push: Raw) -> None:
        inbox = self._inboxes.get(id)
        if inbox is None:
            return
        inbox.put(push)
        if inbox.ended:  # It overflowed: the node need not continue.
            del self._inboxes[id]
            self._cancel(id)

    def _lose(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        for id, exchange in self._exchanges.items():
            exchange.fail(self._loss(reason, left=exchange.write and id not in self._outbox))
        for inbox in self._inboxes.values():
            inbox.end(self._loss(reason, left=False))
        self._inboxes.clear()

    def _loss(self, reason: str, *, left: bool) -> ShoalError:
        if left:
            return OutcomeUnknown(
                f"{reason}; the write may or may not be applied. Send it again, with the same idempotency key if it had one."
            )
        return Disconnected(f"{reason}. Nothing was written. Try again.")

    async def close(self) -> None:
        """Close the connection. Calls under way end as if it had broken. Closing twice is allowed."""
        self._lose("the connection was closed here")
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            with suppress(aiohttp.ClientError, OSError):
                await self._socket.close()
        finally:
            self._socket.cut()
            await self._http.close()

    def abandon(self) -> None:
        """End the connection without its loop, which has ended, so that no good-bye can be sent."""
        self._lost = "the connection was left"
        self._socket.leave()
        self._http.detach()


def _welcomed(url: str, answer: bytes) -> Welcome:
    try:
        return decode_welcome(answer)
    except InvalidValue as error:
        raise Unsupported(
            f"there is no Shoal node at {url}: {error.message}. Nothing was sent. Check the address.",
            reason="the server there is not a Shoal node",
        ) from None


def _why_closed(socket: DialledSocket, message: aiohttp.WSMessage) -> str:
    said = f" ({message.extra})" if message.type is aiohttp.WSMsgType.CLOSE and message.extra else ""
    return f"the connection broke with code {socket.close_code}{said}"
