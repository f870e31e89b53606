"""WebSockets between clients and nodes, as aiohttp's would behave, without aiohttp's bytes.

Laws:
- The real `Link` is at one end, the real `SessionSocket` at the other: this has as
  much of aiohttp's interface as they use, and raises what aiohttp raises.
- Messages keep their order, whatever their delays, as TCP keeps it. A cut or a pause
  holds them; an end that hears nothing for about a heartbeat gives up, and then
  what is still under way may yet arrive at the other.
- A dead node's ends are reset. They raise `Fenced` at that node.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from random import Random

from aiohttp import ClientConnectionResetError, WSCloseCode, WSMessage, WSMessageTypeError, WSMsgType

from simulation.world.incarnation import Incarnation
from simulation.world.network import APART_S, Network

WINDOW_BYTES = 1 << 20
"""Under way and not taken by the other end; past it a sender waits, as it would for a socket buffer."""

PATIENCE = 0.5, 1.5
"""Heartbeats until silence is noticed: one may have just begun, and its answer is waited for half as long."""

_CLOSED = WSMessage(WSMsgType.CLOSED, None, None)
_CLOSING = WSMessage(WSMsgType.CLOSING, None, None)


class SimulatedSocket:
    """One end. `name` is the machine that it is at, `peer` where the other one is; `life` is None at a client's."""

    def __init__(
        self,
        network: Network,
        *,
        name: str,
        peer: str,
        life: Incarnation | None,
        heartbeat_s: float,
        close_s: float,
        random: Random,
    ) -> None:
        self.ends = (name, peer)
        self.closed = False
        self.prepared = False
        self.close_code: int | None = None
        self.other: SimulatedSocket = self  # Until `pair`.
        self._network = network
        self._life = life
        self._heartbeat_s = heartbeat_s
        self._close_s = close_s
        self._random = random
        self._inbox: deque[WSMessage] = deque()
        self._arriving: deque[WSMessage] = deque()  # Held by a cut or a pause.
        self._stirred = asyncio.Event()
        self._room = asyncio.Event()
        self._parted = asyncio.Event()  # The other end has closed, or is gone.
        self._last_due = 0.0
        self._silence = 0
        self._silent = False
        self.unsent_bytes = 0
        self._line = network.add(self)

    # ── aiohttp's interface ───────────────────────────────────────────────────

    async def prepare(self, request: object) -> None:
        """The upgrade is done by whoever dialled."""
        self._check()
        self.prepared = True

    async def send_bytes(self, message: bytes) -> None:
        """
        Raises:
            ClientConnectionResetError: it is closed, or the other end is gone.
        """
        self._check()
        while self.unsent_bytes > WINDOW_BYTES and not self._gone:
            self._room.clear()
            await self._room.wait()
            self._check()
        if self._gone:
            raise ClientConnectionResetError("Cannot write to closing transport")
        self.unsent_bytes += len(message)
        self._pass(WSMessage(WSMsgType.BINARY, bytes(message), None))

    async def receive(self) -> WSMessage:
        self._check()
        if self.closed:
            return _CLOSED
        while not self._inbox:
            self._stirred.clear()
            await self._stirred.wait()
            self._check()
        message = self._inbox.popleft()
        self._took(message)
        if message.type is WSMsgType.CLOSE:
            self.close_code = message.data
            self._shut(message.data, b"")
        elif message.type is not WSMsgType.BINARY:
            self.close_code = self.close_code or WSCloseCode.ABNORMAL_CLOSURE
            self.closed = True
        return message

    async def receive_bytes(self) -> bytes:
        """
        Raises:
            WSMessageTypeError: the next is no binary message, but the end.
        """
        message = await self.receive()
        if message.type is not WSMsgType.BINARY:
            raise WSMessageTypeError(f"Received message {message.type}:{message.data!r} is not WSMsgType.BINARY")
        return bytes(message.data)

    async def close(self, *, code: int = WSCloseCode.OK, message: bytes = b"") -> bool:
        """Say so, and wait a while for the other end to agree."""
        self._check()
        if self.closed:
            return False
        self._shut(code, message)
        self._wake(_CLOSING)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._close_s):
                await self._parted.wait()
        self.close_code = self.close_code or WSCloseCode.ABNORMAL_CLOSURE
        self._network.remove(self._line)
        return True

    def cut(self) -> None:
        """See `shoal.transport.dialling.DialledSocket`."""
        self.abort()

    def abort(self) -> None:
        """Cut the connection, as the end of a process does."""
        if not self._parted.is_set():
            self._pass(_CLOSED)
        self.closed = True
        self._part()
        self._wake(_CLOSED)

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    # ── the line ──────────────────────────────────────────────────────────────

    def silenced(self, paused: str | None, /) -> None:
        """See `Line`: this end gives up after about a heartbeat, unless it is the one that stands still."""
        if self._silent or paused == self.ends[0]:
            return
        self._silent = True
        self._silence += 1
        patience_s = self._heartbeat_s * self._random.uniform(*PATIENCE)
        asyncio.get_running_loop().call_later(patience_s, self._give_up, self._silence)

    def flow(self) -> None:
        """See `Line`: what was held arrives."""
        name, peer = self.ends
        if self._network.both_open(name, peer):
            self._silent = False
        while self._arriving and self._network.passage(peer, name) == "open":
            self._deliver(self._arriving.popleft())

    def _give_up(self, silence: int) -> None:
        if self._silent and self._silence == silence and not self.closed:
            self.close_code = WSCloseCode.ABNORMAL_CLOSURE
            self._wake(WSMessage(WSMsgType.ERROR, TimeoutError("No PONG received"), None))
            self.abort()

    def _pass(self, message: WSMessage) -> None:
        now = self._network.now()
        self._last_due = max(self._last_due + APART_S, now + self._network.delay_s(self._random, self.ends))
        asyncio.get_running_loop().call_at(self._last_due, self.other._arrive, message)

    def _arrive(self, message: WSMessage) -> None:
        name, peer = self.ends
        if self._arriving or self._network.passage(peer, name) != "open":
            self._arriving.append(message)
        else:
            self._deliver(message)

    def _deliver(self, message: WSMessage) -> None:
        if message.type is not WSMsgType.BINARY:
            self._part()
        if self.closed:
            self._took(message)
        else:
            self._wake(message)

    # ── its state ─────────────────────────────────────────────────────────────

    @property
    def _gone(self) -> bool:
        return self.closed or self._parted.is_set()

    def _check(self) -> None:
        if self._life is not None:
            self._life.check()

    def _wake(self, message: WSMessage) -> None:
        self._inbox.append(message)
        self._stirred.set()

    def _took(self, message: WSMessage) -> None:
        if message.type is WSMsgType.BINARY:
            self.other.unsent_bytes -= len(message.data)
            self.other._room.set()

    def _shut(self, code: int, reason: bytes) -> None:
        self.closed = True
        self._pass(WSMessage(WSMsgType.CLOSE, int(code), reason.decode(errors="replace")))
        self._room.set()

    def _part(self) -> None:
        self._parted.set()
        self._room.set()
        self._network.remove(self._line)


class SimulatedHttp:
    """What owns a client's socket: closing it cuts the connection."""

    def __init__(self, socket: SimulatedSocket) -> None:
        self._socket = socket

    async def close(self) -> None:
        self._socket.abort()


class SimulatedRequest:
    """As much of an HTTP request as a `SessionSocket` looks at."""

    def __init__(self, transport: SimulatedSocket) -> None:
        self.transport = transport


def pair(one: SimulatedSocket, other: SimulatedSocket) -> None:
    """Make them the two ends of one connection."""
    one.other, other.other = other, one
