"""What both ends of a link between peers share.

A link is a WebSocket at `PEER_PATH`, without compression. One message of the
dialler is one binary message; the acceptor sends nothing but signs of life.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Protocol

from aiohttp import ClientError, WSCloseCode, WSMessage, WSMsgType

from shoal.cluster.handshake import Side
from shoal.cluster.peering import Peer
from shoal.config import Config
from shoal.errors import InvalidInput, ShoalError

PEER_PATH = "/v1/peer"

CLOSE_S = 0.5
"""For the other end to answer a close; then the connection is cut."""

BROKEN = (ClientError, OSError)
"""What aiohttp raises where a connection cannot be made or used."""

_ENGINE = version("pycrdt")
_MEANING = {1009: "the message was larger than the other end takes"}
_REASON_BYTES_MAX = 120  # The protocol's own bound is 123.


class Report(Protocol):
    """Tells people what happened, as structlog does: an event, and what belongs to it."""

    def __call__(self, event: str, /, **detail: object) -> None: ...


def side_of(peer: Peer, *, opening: bytes, config: Config) -> Side:
    """What this node brings to a handshake now: its name is known once it listens."""
    return Side(peer.identity(), opening, config.cluster, config.cluster_key.encode(), _ENGINE)


def reason_of(text: str) -> bytes:
    """As much of `text` as a close frame holds."""
    return text.encode(errors="replace")[:_REASON_BYTES_MAX].decode(errors="ignore").encode()


def close_code(error: ShoalError) -> WSCloseCode:
    """1002 for what cannot be understood, 1008 for what is not allowed."""
    return WSCloseCode.PROTOCOL_ERROR if isinstance(error, InvalidInput) else WSCloseCode.POLICY_VIOLATION


def why_closed(message: WSMessage) -> str:
    """What the end of a WebSocket says, be it a close frame, an error or nothing at all."""
    if message.type is WSMsgType.CLOSE:
        said = message.extra or _MEANING.get(message.data, "without a reason")
        return f"the other end closed the link: {said} ({message.data})"
    if message.type is WSMsgType.ERROR:
        return f"the link broke: {message.data}"
    return "the connection broke"
