"""The seam between a node and the carrier of its messages to peers: sockets, or a simulated network.

Laws:
- A node sends to a peer on the link that it dialled, and hears it on the one that
  it accepted. Each direction comes and goes alone.
- On a link messages arrive whole, in order and at most once. A link may be lost at
  any time, with the messages under way. A message that an `Outlet` did not take is lost.
- There is one link per peer and direction: a new one replaces the old one.
"""

from __future__ import annotations

from typing import Protocol

from shoal.errors import PeerRefused
from shoal.records import NamedTuple


class Identity(NamedTuple):
    """A node's description of itself, exchanged in the handshake."""

    node: bytes  # 16 bytes: the data directory.
    name: str  # "host:port", where peers reach it.
    software: str
    members: tuple[str, ...] = ()  # The addresses of all members as configured here, itself included; empty: not told.
    opening: bytes = b""  # 16 random bytes of this run. They tell the node itself from a copy of its directory.
    epoch: int = 0  # Of its list of members; 0: the configured list.
    protocol: int = 0  # The newest version of the peer protocol that it speaks; 0: the one of this program.
    originals: tuple[bytes, ...] = ()  # The ids of the directories of which its own is a copy, the latest last.
    key: bytes = b""  # SHA-256 of the public key of the certificate that it showed; empty: none. It is not told, but seen.


class Outlet(Protocol):
    """A dialled link, as the node sees it."""

    @property
    def address(self) -> str:
        """Where it was dialled: "host:port", as configured."""
        ...

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were offered and are not sent yet."""
        ...

    def offer(self, message: bytes, /) -> bool:
        """Queue a message. False if the queue is full and the message is dropped; an empty queue takes any message."""
        ...


class Peer(Protocol):
    """The node, as the carrier of its messages sees it."""

    def identity(self) -> Identity:
        """This node's own description, for the handshake."""
        ...

    def admit(self, peer: Identity, /) -> None:
        """Decide whether a link from this peer may begin.

        Raises:
            PeerRefused: it is this node itself, no member, or another directory with the same id is linked already.
        """
        ...

    def refused(self, address: str, error: PeerRefused, peer: Identity | None, /) -> None:
        """The node at this address does not take links of this node, and says why. `peer` is that node, if it has proven it."""
        ...

    def linked(self, peer: Identity, outlet: Outlet, /) -> None:
        """A link to `peer` exists: messages may be offered to it."""
        ...

    def unlinked(self, peer: Identity, outlet: Outlet, /) -> None:
        """The link is gone. If another one has replaced it, this changes nothing."""
        ...

    async def received(self, peer: Identity, message: bytes, /) -> None:
        """Take a message. The next one of this link is read once this returns.

        Raises:
            ShoalError: it is malformed or forbidden; close the link, with this reason.
        """
        ...
