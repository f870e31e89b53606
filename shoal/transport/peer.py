"""The parts that both ends of a link between peers share.

A link is a WebSocket at `PEER_PATH`, without compression. Each message of the
dialler is one binary message; the acceptor sends only heartbeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from ssl import SSLContext
from typing import Protocol

from aiohttp import ClientError, WSCloseCode, WSMessage, WSMsgType

from shoal.cluster.handshake import Side
from shoal.cluster.peering import Peer
from shoal.config import Config
from shoal.errors import InvalidInput, ShoalError
from shoal.transport.keyring import Keyring

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
    """Reports to people, as structlog does: an event, and its details."""

    def __call__(self, event: str, /, **detail: object) -> None:
        """Report an event."""
        ...


class Warnings:
    """Warnings about peers: in `peer_warning_interval_s` one per event, peer and reason, and at most `peer_warnings_max`.

    A stranger chooses its own name, and must not be able to fill a log.
    """

    def __init__(self, warn: Report, *, config: Config) -> None:
        self._warn = warn
        self._interval_s = config.peer_warning_interval_s
        self._most = config.peer_warnings_max
        self._told: dict[tuple[str, str, str], float] = {}  # Event, peer and reason → when; the oldest first.
        self._left_out = 0

    def __call__(self, event: str, about: str, error: Exception, /, **detail: object) -> None:
        """Log a warning about a peer, or count it if it is one too many. `error` is its reason."""
        now = asyncio.get_running_loop().time()
        while self._told and (first := next(iter(self._told.items())))[1] <= now - self._interval_s:
            del self._told[first[0]]
        kind = error.code if isinstance(error, ShoalError) else type(error).__name__
        if isinstance(error, ShoalError):
            kind += f"/{error.detail.get('reason')}"
        if (event, about, kind) in self._told or len(self._told) >= self._most:
            self._left_out += 1
            return
        self._told[event, about, kind] = now
        if self._left_out:
            detail["left_out"], self._left_out = self._left_out, 0
        reason = error.message if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
        self._warn(event, reason=reason, **detail)


def side_of(peer: Peer, *, config: Config, ring: Keyring) -> Side:
    """The facts that this node brings to a handshake now. Its name is known only once it listens."""
    also = tuple(key.encode() for key in ring.also)
    return Side(peer.identity(), config.cluster, ring.key.encode(), _ENGINE, also)


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
