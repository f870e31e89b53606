"""The session WebSocket: many requests under way on one socket, each failing alone.

Laws:

- Requests start in the order in which they arrive, and are answered in the
  order in which they finish. If a request fails, its id is answered with an
  error; the socket is closed only if a message cannot be decoded or a bound
  is exceeded.
- A write that waits only for the disk begins as soon as its frame arrives, without a
  task, unless another request waits to begin.
- Both directions are bounded. Above `session_requests_max` requests under way, or
  `session_send_bytes_max` bytes of them, the socket is not read. While more than
  `session_send_bytes_max` bytes wait to be sent, no request begins, and a client
  that reads nothing for `heartbeat_s` is cut off. Pushes wait before that point, so
  that a slow watcher loses its subscription but not its session.
- A reply carries the change of the session's bookmark, so that the client's bookmark
  covers all that the reply shows (`shoal.protocol.bookmark`).
- A request does not begin after its caller has given up, because it could overwrite newer changes.
- If the socket breaks, subscriptions are cancelled and requests finish; the session counts
  against the bound until its last request is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from aiohttp import WSCloseCode, WSMsgType, web

from shoal.api.health import Metrics
from shoal.api.http.accepting import unsent_bytes
from shoal.api.http.problems import internal
from shoal.config import Config
from shoal.errors import InvalidInput, InvalidValue, OutcomeUnknown, Overloaded, ShoalError, ShuttingDown, TooLarge, Unavailable
from shoal.logs.lines import of_request, request_id
from shoal.names import check_key
from shoal.protocol.bookmark import Bookmark, SharedBookmark
from shoal.protocol.frames import (
    COALESCED_BYTES_MAX,
    CallFrame,
    CancelFrame,
    Fault,
    ObserveFrame,
    Refused,
    SubscribeFrame,
    Welcome,
    check_durability,
    decode_caller_frames,
    decode_hello,
    decode_request,
    decode_subscription,
    encode_end,
    encode_error,
    encode_hello,
    encode_push,
    encode_reply,
    messages,
    payload_bytes,
)
from shoal.protocol.requests import AnyReply, AnyRequest, Durability, Push, Replaced
from shoal.protocol.session import Prompt, Session, noting
from shoal.protocol.tracing import NOT_RECORDED
from shoal.traces.sessions import arrived, left, untraced

_CLOSE_REASON_BYTES_MAX = 120  # A close frame holds 123.


class SessionSocket:
    """One accepted WebSocket; `serve` returns when it is over."""

    def __init__(
        self,
        open_session: Callable[[Bookmark], Session],
        socket: web.WebSocketResponse,
        *,
        admit: Callable[[], None] = lambda: None,
        welcome: Welcome,
        config: Config,
        metrics: Metrics,
    ) -> None:
        self._admit = admit
        self._bookmark = SharedBookmark()
        self._session = open_session(self._bookmark)
        self._prompt = self._session if isinstance(self._session, Prompt) else None
        self._untraced = untraced(self._session)
        self._promptly_untraced = self._untraced if isinstance(self._untraced, Prompt) else None
        self._socket = socket
        self._transport: asyncio.Transport | None = None
        self._welcome = welcome
        self._config = config
        self._metrics = metrics
        self._outbox: list[bytes] = []
        self._unsent_bytes = 0
        self._calls: dict[asyncio.Task[None], None] = {}  # In order of arrival.
        self._unbegun: set[int] = set()  # Frames whose task has not begun them yet.
        self._begun = 0  # Requests under way without a task.
        self._call_bytes = 0  # The bytes of all requests under way.
        self._subscriptions: dict[int, asyncio.Task[None]] = {}
        self._stirred = asyncio.Event()  # There is something to send.
        self._sent = asyncio.Event()  # Something was sent.
        self._answered = asyncio.Event()  # A request has finished.
        self._stopping = False
        self._welcomed_at = 0.0
        self._id = ""  # Of the request that opened the socket.
        self._ending: asyncio.Task[None] | None = None  # Keeps the task alive.
        self._turn = asyncio.Lock()  # Fair: requests that wait to begin keep their order.

    async def serve(self, request: web.Request) -> None:
        """Upgrade, shake hands, then answer until either side closes."""
        self._transport, self._id = request.transport, request_id()
        await self._socket.prepare(request)
        if self._stopping:
            await self._close(WSCloseCode.GOING_AWAY, "the node is stopping")
            return
        if not await self._shake_hands():
            return
        writer = asyncio.create_task(self._write())
        try:
            await self._read()
        finally:
            for subscription in self._subscriptions.values():
                subscription.cancel()
            await asyncio.gather(*self._calls, *self._subscriptions.values(), return_exceptions=True)
            await self._answer_begun()
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            await self._session.close()
            self._abort_later()

    def end(self, reason: str) -> None:
        """Start to close, because the client's token counts no more: what it asks from now on is refused."""
        self._ending = asyncio.get_running_loop().create_task(self._end(reason))

    async def _end(self, reason: str) -> None:
        try:
            async with asyncio.timeout(self._config.heartbeat_s):
                await self._wind_down(WSCloseCode.POLICY_VIOLATION, reason)
        except TimeoutError:
            await self._close(WSCloseCode.POLICY_VIOLATION, reason)

    async def stop(self) -> None:
        """Reject new requests, let those under way finish and their answers be sent, then close with 1001."""
        self._stopping = True
        await self._wind_down(WSCloseCode.GOING_AWAY, "the node is stopping")

    async def _wind_down(self, code: WSCloseCode, reason: str) -> None:
        if not self._socket.prepared:
            return  # Still in the HTTP handshake; `serve` closes it.
        for subscription in self._subscriptions.values():
            subscription.cancel()
        while self._calls or self._subscriptions:
            await asyncio.wait([*self._calls, *self._subscriptions.values()])
        await self._answer_begun()
        while self._unsent_bytes and not self._socket.closed:
            self._sent.clear()
            await self._sent.wait()
        await self._close(code, reason)

    # ── reading ───────────────────────────────────────────────────────────────

    async def _shake_hands(self) -> bool:
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                first = await self._socket.receive()
            if first.type is not WSMsgType.BINARY:
                await self._close(WSCloseCode.PROTOCOL_ERROR, "the first message is not a hello")
                return False
            decode_hello(first.data)
            self._admit()
        except TimeoutError:
            await self._close(WSCloseCode.PROTOCOL_ERROR, "no hello came in time")
            return False
        except ShoalError as error:
            await self._socket.send_bytes(encode_hello(Refused(Fault.of(error))))
            await self._close(WSCloseCode.PROTOCOL_ERROR, str(error))
            return False
        self._welcomed_at = asyncio.get_running_loop().time()
        await self._socket.send_bytes(encode_hello(self._welcome))
        return True

    async def _read(self) -> None:
        while (message := await self._socket.receive()).type is WSMsgType.BINARY:
            self._metrics.received_bytes.inc(len(message.data))
            try:
                frames = decode_caller_frames(message.data)
            except ShoalError as error:
                await self._close(WSCloseCode.PROTOCOL_ERROR, str(error))
                return
            try:
                for frame in frames:
                    if self._is_full():
                        await self._take_room()
                    if isinstance(frame, ObserveFrame):
                        await self._observe(frame.bookmark)
                    else:
                        self._accept(frame)
            except (InvalidValue, TooLarge) as error:
                await self._close(WSCloseCode.PROTOCOL_ERROR, str(error))
                return
        if message.type is WSMsgType.TEXT:
            await self._close(WSCloseCode.UNSUPPORTED_DATA, "messages are binary")

    def _is_full(self) -> bool:
        """Whether as many requests are under way as allowed."""
        return (
            len(self._calls) + self._begun >= self._config.session_requests_max
            or self._call_bytes > self._config.session_send_bytes_max
        )

    async def _take_room(self) -> None:
        while self._is_full():
            await self._one_is_answered()

    async def _one_is_answered(self) -> None:
        self._answered.clear()
        await self._answered.wait()

    async def _observe(self, packed: bytes) -> None:
        """Take over what the client has seen elsewhere. Frames after it wait; other sessions have their turn in between."""
        steps = Bookmark.reading(packed)
        while True:
            await asyncio.sleep(0)
            try:
                next(steps)
            except StopIteration as done:
                self._bookmark.observe(done.value)
                return

    def _accept(self, frame: CallFrame | SubscribeFrame | CancelFrame) -> None:
        match frame:
            case CallFrame():
                token = None if frame.trace == NOT_RECORDED else arrived(frame.trace)
                # If others wait to begin, it waits too, so that requests keep their order.
                with of_request(f"{self._id}-{frame.id}"):
                    if self._unbegun or not self._begin(frame):
                        self._start(frame)
                left(token)
            case SubscribeFrame():
                with of_request(f"{self._id}-{frame.id}"):
                    self._subscribe(frame)
            case CancelFrame(id):
                subscription = self._subscriptions.get(id)
                if subscription is not None:
                    subscription.cancel()

    def _start(self, call: CallFrame) -> None:
        size = len(memoryview(call.request))

        def finished(task: asyncio.Task[None]) -> None:
            self._calls.pop(task, None)
            self._call_bytes -= size
            self._answered.set()

        task = asyncio.get_running_loop().create_task(self._answer(call))
        self._calls[task] = None
        self._call_bytes += size
        self._unbegun.add(call.id)
        task.add_done_callback(finished)

    # ── answering ─────────────────────────────────────────────────────────────

    def _begin(self, call: CallFrame) -> bool:
        """Begin a request that waits only for the disk, without a task; False if it needs one."""
        prompt = self._promptly_untraced if call.trace == NOT_RECORDED else self._prompt
        if prompt is None or self._stopping or self._socket.closed or not self._has_room():
            return False
        size = len(memoryview(call.request))

        def told(answer: AnyReply | ShoalError) -> None:
            self._begun -= 1
            self._call_bytes -= size
            self._answered.set()
            self._send_answer(call.id, answer)

        self._begun += 1
        self._call_bytes += size
        try:
            self._refuse_late(call)
            request, durability = _checked(call)
            if prompt.begin(request, told, key=call.key, durability=durability, stale=call.stale):
                return True
        except Exception as error:
            told(_answer_of(error))
            return True
        self._begun -= 1
        self._call_bytes -= size
        return False

    async def _answer_begun(self) -> None:
        """Wait for the requests under way that have no task."""
        while self._begun:
            await self._one_is_answered()

    async def _answer(self, call: CallFrame) -> None:
        has_turn = await self._take_turn()
        self._unbegun.discard(call.id)
        if not has_turn:
            return
        answer: AnyReply | ShoalError
        noted: list[Replaced] = []
        try:
            if self._stopping:
                raise _stopping()
            self._refuse_late(call)
            request, durability = _checked(call)
            async with asyncio.timeout_at(self._ends_at(call)):
                session = self._untraced if call.trace == NOT_RECORDED else self._session
                with noting() as noted:
                    answer = await session.call(request, key=call.key, durability=durability, stale=call.stale)
        except TimeoutError:
            answer = OutcomeUnknown("the caller gave up. The write may or may not be applied. Send it again with the same key.")
        except Exception as error:
            answer = _answer_of(error)
        self._send_answer(call.id, answer, noted)

    def _ends_at(self, call: CallFrame) -> float | None:
        return self._welcomed_at + call.until_ms / 1000 if call.until_ms else None

    def _refuse_late(self, call: CallFrame) -> None:
        """Reject a request whose caller has given up, because it could overwrite newer changes.

        Raises:
            Unavailable: it has; nothing was written.
        """
        ends_at = self._ends_at(call)
        if ends_at is not None and asyncio.get_running_loop().time() >= ends_at:
            raise Unavailable("the request arrived after its caller had given up. Nothing was written. Send it again.")

    async def _take_turn(self) -> bool:
        """Wait until the client has read enough of the answers; False if it is gone."""
        async with self._turn:
            while not self._has_room() and not self._socket.closed:
                self._sent.clear()
                try:
                    async with asyncio.timeout(self._config.heartbeat_s):
                        await self._sent.wait()
                except TimeoutError:
                    await self._close(WSCloseCode.TRY_AGAIN_LATER, "slow consumer")
        return not self._socket.closed

    def _has_room(self) -> bool:
        """Whether the bytes that wait to be sent are within their bound."""
        return self._unsent_bytes <= self._config.session_send_bytes_max

    def _subscribe(self, frame: SubscribeFrame) -> None:
        try:
            self._refuse_subscription(frame.id)
        except ShoalError as error:
            self._send(encode_error(frame.id, error))
            return
        task = self._subscriptions[frame.id] = asyncio.get_running_loop().create_task(self._pump(frame))
        self._unbegun.add(frame.id)
        task.add_done_callback(lambda _: self._forget(frame.id))

    def _forget(self, id: int) -> None:
        self._subscriptions.pop(id, None)
        self._unbegun.discard(id)  # It may have been cancelled before it began.

    def _refuse_subscription(self, id: int) -> None:
        """Check whether a subscription may begin.

        Raises:
            InvalidInput: its id is in use.
            Overloaded: the session has too many.
            ShuttingDown: the node is stopping.
        """
        if self._stopping:
            raise _stopping()
        if id in self._subscriptions:
            raise InvalidInput(
                f"a subscription with the id {id} is under way. Nothing was written. Use another id.", field="id"
            )
        if len(self._subscriptions) >= self._config.subscriptions_max:
            raise Overloaded(
                f"a session has at most {self._config.subscriptions_max} subscriptions. Nothing was written. End one first.",
                retry_after_s=1.0,
            )

    async def _pump(self, frame: SubscribeFrame) -> None:
        self._unbegun.discard(frame.id)
        begun = False
        ended: ShoalError | None = None
        try:
            async with self._session.subscribe(decode_subscription(frame.subscription)) as pushes:
                begun = True
                self._send(encode_reply(frame.id, None, self._bookmark.news()))
                await self._relay(frame.id, pushes)
        except asyncio.CancelledError:
            ended = _stopping() if self._stopping else None
        except ShoalError as error:
            ended = error
        except Exception as bug:
            ended = internal(bug, where="session subscription")
        if begun or ended is None:
            self._send(encode_end(frame.id, ended))
        else:
            self._send(encode_error(frame.id, ended))

    async def _relay(self, id: int, pushes: AsyncIterator[Push]) -> None:
        async for push in pushes:
            # Wait here, not in the outbox: pushes that the client does not read then fill the
            # subscription's own buffer, whose overflow ends the subscription but not the session.
            while self._unsent_bytes > self._config.subscription_bytes_max:
                self._sent.clear()
                await self._sent.wait()
            self._send(encode_push(id, push, self._bookmark.news()))

    # ── sending ───────────────────────────────────────────────────────────────

    def _send_answer(self, id: int, answer: AnyReply | ShoalError, replaced: Sequence[Replaced] = ()) -> None:
        try:
            frame = (
                encode_error(id, answer)
                if isinstance(answer, ShoalError)
                else encode_reply(id, answer, self._bookmark.news(), replaced)
            )
        except Exception as bug:  # By now a write may be done.
            frame = encode_error(id, internal(bug, where="session answer"))
        self._send(frame)

    def _send(self, frame: bytes) -> None:
        if self._socket.closed:
            return
        self._outbox.append(frame)
        self._unsent_bytes += len(frame)
        self._stirred.set()

    async def _write(self) -> None:
        try:
            while True:
                await self._stirred.wait()
                self._stirred.clear()
                frames, self._outbox = self._outbox, []
                await self._transmit(frames)
        except ConnectionError:
            # The peer is gone, which the reader sees too; nothing more can be sent.
            self._outbox.clear()
            self._unsent_bytes = 0
            self._sent.set()

    async def _transmit(self, frames: list[bytes]) -> None:
        for message in messages(frames, bytes_max=COALESCED_BYTES_MAX):
            await self._socket.send_bytes(message)
            self._metrics.sent_bytes.inc(len(message))
            self._unsent_bytes -= payload_bytes(message)
            self._sent.set()

    async def _close(self, code: WSCloseCode, reason: str) -> None:
        """Close with a reason, and wait for the client to agree; one that reads nothing is cut off."""
        try:
            async with asyncio.timeout(self._config.heartbeat_s):
                await self._socket.close(code=code, message=reason.encode()[:_CLOSE_REASON_BYTES_MAX])
        except TimeoutError:
            self._abort()
        finally:
            self._sent.set()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _abort_later(self) -> None:
        """Cut the connection off after a time for its last bytes: flushing them to a client that reads nothing never ends."""
        if self._transport is not None and unsent_bytes(self._transport):
            asyncio.get_running_loop().call_later(self._config.heartbeat_s, self._transport.abort)


def _checked(call: CallFrame) -> tuple[AnyRequest, Durability]:
    request = decode_request(call.request)
    if call.key is not None:
        check_key("idempotency", call.key)
    return request, check_durability(call.durability)


def _answer_of(error: Exception) -> ShoalError:
    return error if isinstance(error, ShoalError) else internal(error, where="session call")


def _stopping() -> ShuttingDown:
    return ShuttingDown("the node is stopping. Nothing was written. Send it again later, or to another node.")
