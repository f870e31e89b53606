"""The seam between a node and whatever carries its messages to peers: sockets, or a simulated network.

Laws:
- A node sends to a peer on the link that it dialled, and hears it on the one that
  it accepted. Each direction comes and goes alone.
- On a link messages arrive whole, in order and at most once; a link may be lost at
  any time, with what was under way. A message that an `Outlet` did not take is gone.
- One link per peer and direction: a new one takes the old one's place.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Identity(NamedTuple):
    """What nodes tell each other when they meet."""

    node: bytes  # 16 bytes: the data directory.
    name: str  # "host:port", where peers reach it.
    software: str
    members: tuple[str, ...] = ()  # The addresses of all members as this node has them, itself included; empty: not told.
    opening: bytes = b""  # 16 random bytes of this run: a node that meets itself knows them, a copy of its directory does not.


class Outlet(Protocol):
    """A link that was dialled, as the node sees it."""

    @property
    def address(self) -> str:
        """Where it was dialled: "host:port", as configured."""
        ...

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were offered and have not left."""
        ...

    def offer(self, message: bytes, /) -> bool:
        """Queue a message; False if its bound is reached, and the message is dropped. One message alone is always taken."""
        ...


class Peer(Protocol):
    """The node, as whatever carries its messages sees it."""

    def identity(self) -> Identity: ...

    def admit(self, peer: Identity, /) -> None:
        """
        Raises:
            PeerRefused: it is this node itself, no member, or another directory with the same id is linked already.
        """
        ...

    def linked(self, peer: Identity, outlet: Outlet, /) -> None:
        """A link to `peer` is there: messages may be offered to it."""
        ...

    def unlinked(self, peer: Identity, outlet: Outlet, /) -> None:
        """It is gone. After another one took its place this means nothing."""
        ...

    async def received(self, peer: Identity, message: bytes, /) -> None:
        """Take a message; the next one of this link is read once this returns.

        Raises:
            ShoalError: it is no message; the link is to be closed, with this reason.
        """
        ...
