"""The links on which messages go out to peers, and what waits in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from shoal.cluster import messages
from shoal.cluster.handshake import PEER_PROTOCOL
from shoal.cluster.messages import Message
from shoal.cluster.peering import Identity, Outlet


class Outlets:
    """One outlet for each linked node. `dropped` is told of each message that the queue of a node's link did not take.

    Above `bytes_max` waiting bytes a peer is behind: it gets no more hints, and no bulk. Every message names this node's
    `epoch`.
    """

    def __init__(
        self, *, dropped: Callable[[bytes, Message], None], bytes_max: int, epoch: Callable[[], int] = lambda: 0
    ) -> None:
        self._dropped = dropped
        self._epoch = epoch
        self._bytes_max = bytes_max
        self._outlets: dict[bytes, Outlet] = {}
        self._older: dict[bytes, int] = {}  # Nodes that speak an older protocol, and which.
        self.oldest = PEER_PROTOCOL
        """The oldest protocol that a peer spoke when it was linked last."""

    def __bool__(self) -> bool:
        return bool(self._outlets)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._outlets)

    def linked(self, peer: Identity, outlet: Outlet) -> None:
        """A link to a node begins; it takes the place of an older one."""
        self._outlets[peer.node] = outlet
        self._older.pop(peer.node, None)
        if 0 < peer.protocol < PEER_PROTOCOL:
            self._older[peer.node] = peer.protocol
        self.oldest = min(self._older.values(), default=PEER_PROTOCOL)

    def forget(self, node: bytes) -> None:
        """This node does not take part any more."""
        self._older.pop(node, None)
        self.oldest = min(self._older.values(), default=PEER_PROTOCOL)

    def unlinked(self, node: bytes, outlet: Outlet) -> bool:
        """A link has ended. Returns whether it was the node's present one."""
        if self._outlets.get(node) is not outlet:
            return False
        del self._outlets[node]
        return True

    def send(self, nodes: Iterable[bytes], message: Message) -> None:
        """Send a message, encoded once, to those nodes that have a link and know this kind of message."""
        if self._older and (since := messages.SINCE.get(type(message), 0)):
            nodes = [node for node in nodes if self._older.get(node, since) >= since]
        packed = messages.stamped(messages.encode(message), self._epoch())
        for node in nodes:
            outlet = self._outlets.get(node)
            if outlet is not None and not outlet.offer(packed):
                self._dropped(node, message)

    def offer(self, node: bytes, message: Message) -> bool:
        """Send a message to a node, unless the queue of its link has no room for it. Returns whether it was queued."""
        outlet = self._outlets.get(node)
        return outlet is not None and outlet.offer(messages.stamped(messages.encode(message), self._epoch()))

    def hint(self, nodes: Collection[bytes], message: Message) -> None:
        """Send a message that may be lost, to the nodes that have little waiting."""
        self.send([node for node in nodes if not self.is_behind(node)], message)

    def is_behind(self, node: bytes) -> bool:
        """Whether too many bytes wait to be sent to a node."""
        outlet = self._outlets.get(node)
        return outlet is not None and outlet.waiting_bytes > self._bytes_max
