"""The snapshots that a node sends and takes, as its replicator sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from shoal.cluster.messages import SnapshotPiece, SnapshotRequest
from shoal.cluster.replication import Replication
from shoal.cluster.snapshots.roots import RootsMessage
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.node.snapshots.receiving import SnapshotReceiver
from shoal.node.snapshots.sending import SnapshotSender
from shoal.node.snapshots.witnessing import Others, Witnesses


class Outlets(Protocol):
    """The links on which messages go out to peers."""

    def send(self, nodes: Iterable[bytes], message: SnapshotRequest | SnapshotPiece | RootsMessage, /) -> None:
        """Send a message to nodes."""
        ...

    def offer(self, node: bytes, message: SnapshotPiece, /) -> bool:
        """Send a message to a node, unless its queue has no room. Returns whether it was queued."""
        ...

    def is_behind(self, node: bytes, /) -> bool:
        """Whether too many bytes wait to be sent to a node."""
        ...


class SnapshotExchange:
    """Both sides. `installed` is called with each partition that was replaced; then the protocol has effects to carry out."""

    def __init__(
        self,
        context: NodeContext,
        protocol: Replication,
        database: Database,
        *,
        outlets: Outlets,
        others: Others,
        installed: Callable[[int], None],
    ) -> None:
        self._protocol = protocol
        self._database = database
        self._now = context.environment.monotonic
        self._announce = installed
        self._sender = SnapshotSender(context, offer=outlets.offer, is_behind=outlets.is_behind)
        self.witnesses = Witnesses(context, others, send=lambda node, message: outlets.send((node,), message))
        self._receiver = SnapshotReceiver(
            context,
            protocol.snapshots,
            database,
            witnesses=self.witnesses,
            others=others,
            send=lambda node, message: outlets.send((node,), message),
            installed=self._installed,
        )

    async def heard(self, peer: bytes, message: SnapshotRequest | SnapshotPiece) -> None:
        """Take a message of a peer. The protocol may have effects to carry out afterwards."""
        if isinstance(message, SnapshotRequest):
            await self._sender.asked(peer, message)
        else:
            await self._receiver.received(peer, message)
            self._protocol.ask_for_snapshots(self._now())

    def tick(self) -> None:
        """Give up what nobody asks for, or sends."""
        self._receiver.tick()
        self._sender.tick(self._now())

    def forget(self, peer: bytes) -> None:
        """Forget a node that is gone for good."""
        self._sender.forget(peer)

    async def stop(self) -> None:
        """End everything. The next start finishes switches that were begun."""
        await self._receiver.stop()
        await self.witnesses.stop()
        self._sender.stop()

    def _installed(self, partition: int) -> None:
        self._protocol.replaced(partition, self._now())
        self._protocol.ask_for_snapshots(self._now())
        self._announce(partition)
