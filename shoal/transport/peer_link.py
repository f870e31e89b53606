"""A link that this node dialled: its messages to a peer wait here, bounded, and are sent in order.

Laws:
- Messages wait in one queue and in the socket's buffer, and both count, with the heads of their frames and the
  pings that wait too: beyond `peer_send_bytes_max` a message is not taken. An empty queue takes any message.
- A link that is lost stays lost, for any cause: the peer, the network, a peer
  that sends no heartbeat, or one that takes nothing for `STALLED_BEATS`
  heartbeats. Waiting messages are lost with it.
- Losing a link cuts the connection, so that nothing keeps waiting in its buffer.

The parts that both ends of a link between peers share.

A link is a WebSocket at `PEER_PATH`, without compression. Each message of the
dialler is one binary message; the acceptor sends only heartbeats.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from ssl import SSLContext
from typing import Any, Protocol

import aiohttp
from aiohttp import ClientError, WSCloseCode, WSMessage, WSMsgType

from shoal.cluster.handshake import Side
from shoal.cluster.peering import Identity, Peer
from shoal.config import Config
from shoal.errors import InvalidInput, PeerRefused, ShoalError
from shoal.logs.event import Event, Value
from shoal.logs.events import LINES_LEFT_OUT
from shoal.tls.contexts import names_host
from shoal.transport.dialling import DialledSocket
from shoal.transport.keyring import Keyring

PEER_WARNING_INTERVAL_S = 60.0  # Between two logged warnings about one peer, for one reason.
PEER_WARNINGS_MAX = 256  # Logged warnings in that time, for all peers.

PEER_PATH = "/v1/peer"

CLOSE_S = 0.5
"""How long the other end has to answer a close; then the connection is cut."""

BROKEN = (ClientError, OSError)
"""The errors that aiohttp raises if a connection cannot be made or used."""

_ENGINE = version("pycrdt")
_MEANING = {1009: "the message was larger than the other end takes"}
_REASON_BYTES_MAX = 120  # The protocol's own bound is 123.


Tls = Callable[[], SSLContext | None]
"""The context for a link that is dialled now; None for a plain one."""


Keys = Callable[[], Keyring]
"""The keys for a handshake that begins now."""


def plain() -> None:
    """No TLS, for `Tls`."""


class Report(Protocol):
    """Reports to people, as `shoal.logs.lines.log` does: an event, and its fields."""

    def __call__(self, event: Event, /, *, bug: BaseException | None = None, **fields: Value) -> None:
        """Report an event."""
        ...


class Warnings:
    """Warnings about peers: in `PEER_WARNING_INTERVAL_S` one per event, peer and reason, and at most `PEER_WARNINGS_MAX`.

    A stranger chooses its own name, and must not be able to fill a log.
    """

    def __init__(self, warn: Report) -> None:
        self._warn = warn
        self._interval_s = PEER_WARNING_INTERVAL_S
        self._most = PEER_WARNINGS_MAX
        self._told: dict[tuple[str, str, str], float] = {}  # Event, peer and reason → when; the oldest first.
        self._left_out = 0

    def __call__(
        self, event: Event, about: str, error: Exception, /, *, bug: BaseException | None = None, **fields: Value
    ) -> None:
        """Log a warning about a peer, or count it if it is one too many. `error` is its reason."""
        now = asyncio.get_running_loop().time()
        while self._told and (first := next(iter(self._told.items())))[1] <= now - self._interval_s:
            del self._told[first[0]]
        kind = error.code if isinstance(error, ShoalError) else type(error).__name__
        if isinstance(error, ShoalError):
            kind += f"/{error.detail.get('reason')}"
        if (event.name, about, kind) in self._told or len(self._told) >= self._most:
            self._left_out += 1
            return
        self._told[event.name, about, kind] = now
        if self._left_out:
            self._warn(LINES_LEFT_OUT, of="warnings about peers", count=self._left_out)
            self._left_out = 0
        reason = error.message if isinstance(error, ShoalError) else type(error).__name__
        self._warn(event, bug=bug, reason=reason, **fields)


@dataclass(frozen=True, slots=True)
class LinkContext:
    """The things that all links of a node share, and that are constant in its life."""

    peer: Peer  # The node.
    config: Config
    entropy: Callable[[int], bytes]
    report: Report  # Called with the events of links,
    warn: Warnings  # and with peers that are refused, or refuse this node.
    keys: Keys  # Asked at each handshake.
    tls: Tls = plain  # Asked for each link that is dialled,
    asking: Tls = plain  # and for each node that is asked who it is.


def side_of(peer: Peer, *, config: Config, ring: Keyring) -> Side:
    """The facts that this node brings to a handshake now. Its name is known only once it listens."""
    also = tuple(key.encode() for key in ring.also)
    return Side(peer.identity(), config.cluster, ring.key.encode(), _ENGINE, also)


def check_names(shown: Mapping[str, Any] | None, identity: Identity, config: Config) -> None:
    """Check that the certificate that a peer showed, as `ssl` tells of it, is its own, if `tls_peer_names` asks for that.

    Raises:
        PeerRefused: it does not name the peer's host.
    """
    if config.tls_peer_names == "own" and not names_host(shown or {}, identity.name.rpartition(":")[0]):
        raise PeerRefused(
            f"the certificate of the peer that claims to be {identity.name} does not name that host, and tls_peer_names is "
            "own. Nothing was written. Issue one that does: `shoal tls node`.",
            reason="certificate",
        )


def accepts(ring: Keyring, proven: bytes) -> bool:
    """Whether a link whose other end proved this key may go on."""
    return proven in {key.encode() for key in (ring.key, *ring.also)}


def reason_of(text: str) -> bytes:
    """As much of `text` as fits a close frame."""
    return text.encode(errors="replace")[:_REASON_BYTES_MAX].decode(errors="ignore").encode()


def close_code(error: ShoalError) -> WSCloseCode:
    """1002 for a malformed message, 1008 for one that is not allowed."""
    return WSCloseCode.PROTOCOL_ERROR if isinstance(error, InvalidInput) else WSCloseCode.POLICY_VIOLATION


def why_closed(message: WSMessage) -> str:
    """Why a WebSocket ended, from its last message: a close frame, an error, or nothing at all."""
    if message.type is WSMsgType.CLOSE:
        said = message.extra or _MEANING.get(message.data, "without a reason")
        return f"the other end closed the link: {said} ({message.data})"
    if message.type is WSMsgType.ERROR:
        return f"the link broke: {message.data}"
    return "the connection broke"


STALLED_BEATS = 2

_HEAD_BYTES_MAX = 14  # Of a frame (RFC 6455); those in the socket's buffer are counted there.
_PINGS_BYTES = (STALLED_BEATS + 1) * 6  # Beyond that the link is given up.
_LOOKS = 4  # How often per heartbeat a stall is looked for.


class PeerLink:
    """An `Outlet` to `peer` while `run` runs."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        socket: DialledSocket,
        *,
        address: str,
        peer: Identity,
        proven_key: bytes,
        config: Config,
    ) -> None:
        self.address = address
        self.peer = peer
        self.proven_key = proven_key
        """The cluster's key that the other end proved."""
        self._http = http
        self._socket = socket
        self._config = config
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._offered_bytes = 0  # Ever.
        self._stirred = asyncio.Event()

    # ── the outlet ────────────────────────────────────────────────────────────

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were offered and are not sent yet."""
        return self._queued_bytes + self._socket.waiting_bytes

    def offer(self, message: bytes, /) -> bool:
        """Queue a message; False if the queue is full, and the message is dropped."""
        waiting = self.waiting_bytes
        framing = (len(self._queue) + 1) * _HEAD_BYTES_MAX + _PINGS_BYTES
        if waiting and waiting + framing + len(message) > self._config.peer_send_bytes_max:
            return False
        self._queue.append(message)
        self._queued_bytes += len(message)
        self._offered_bytes += len(message)
        self._stirred.set()
        return True

    # ── while it lasts ────────────────────────────────────────────────────────

    async def run(self) -> str:
        """Send offered messages until the link is lost, and return the reason."""
        tasks = [asyncio.create_task(work) for work in (self._write(), self._listen(), self._watch())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return min(done, key=tasks.index).result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._queue.clear()
            self._queued_bytes = 0

    async def _write(self) -> str:
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            while self._queue:
                message = self._queue.popleft()
                self._queued_bytes -= len(message)
                try:
                    await self._socket.send_bytes(message)
                except BROKEN as reason:
                    await asyncio.sleep(CLOSE_S)  # The peer's own reason says more, and is here by then.
                    return f"sending failed: {reason}"
                await asyncio.sleep(0)  # So that a long queue of small messages does not hold up other tasks.

    async def _listen(self) -> str:
        message = await self._socket.receive()
        if message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
            return "the peer sent a message on a link that it did not dial"
        return why_closed(message)

    async def _watch(self) -> str:
        clock = asyncio.get_running_loop().time
        patience_s = STALLED_BEATS * self._config.peer_heartbeat_s
        left, since = 0, clock()
        while True:
            await asyncio.sleep(self._config.peer_heartbeat_s / _LOOKS)
            waiting = self.waiting_bytes
            # Pings wait as well, so only a new maximum is progress.
            if not waiting or self._offered_bytes - waiting > left:
                left, since = self._offered_bytes - waiting, clock()
            elif clock() - since >= patience_s:
                return f"the peer took nothing of {waiting} bytes for {patience_s:g} s"

    async def close(self, code: int, /, *, reason: str) -> None:
        """Send a close frame if the peer listens, within `CLOSE_S`, and cut the connection. Closing twice is allowed."""
        try:
            with suppress(TimeoutError, *BROKEN):
                async with asyncio.timeout(CLOSE_S):
                    await self._socket.close(code=code, message=reason_of(reason))
        finally:
            self._socket.cut()
            await self._http.close()
