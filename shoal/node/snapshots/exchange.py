"""The snapshots that a node sends and takes, as its replicator sees them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from shoal.cluster.messages import SnapshotPiece, SnapshotRequest
from shoal.cluster.replication import Replication
from shoal.cluster.snapshots.roots import RootsMessage
from shoal.config import Config
from shoal.node.database import Database
from shoal.node.environment import Environment
from shoal.node.incarnation import Incarnation
from shoal.node.snapshots.receiving import SnapshotReceiver
from shoal.node.snapshots.sending import SnapshotSender
from shoal.node.snapshots.witnessing import Owners, Witnesses
from shoal.storage.commit import GroupCommit
from shoal.storage.interface import Storage


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
    """Both sides. `named` gives the name of a node, for people; `is_removed` tells whether its directory was removed.

    `owners` are the other owners, and `unsure` gives the objects of a partition that cannot be compared here.
    `installed` is called with each partition that was replaced; then the protocol has effects to carry out.
    """

    def __init__(
        self,
        protocol: Replication,
        database: Database,
        *,
        storage: Storage,
        commit: GroupCommit,
        outlets: Outlets,
        installed: Callable[[int], None],
        named: Callable[[bytes], str],
        is_removed: Callable[[bytes], bool],
        owners: Callable[[], Owners],
        unsure: Callable[[int], Collection[bytes]],
        incarnation: Incarnation,
        environment: Environment,
        config: Config,
    ) -> None:
        self._protocol = protocol
        self._database = database
        self._now = environment.monotonic
        self._announce = installed
        self._sender = SnapshotSender(
            storage,
            commit,
            partitions=database.partitions,
            offer=outlets.offer,
            is_behind=outlets.is_behind,
            environment=environment,
            config=config,
        )
        self.witnesses = Witnesses(
            storage,
            commit,
            partitions=database.partitions,
            owners=owners,
            named=named,
            send=lambda node, message: outlets.send((node,), message),
            unsure=unsure,
            environment=environment,
            config=config,
        )
        self._receiver = SnapshotReceiver(
            protocol.snapshots,
            database,
            storage=storage,
            commit=commit,
            witnesses=self.witnesses,
            send=lambda node, message: outlets.send((node,), message),
            installed=self._installed,
            named=named,
            is_removed=is_removed,
            incarnation=incarnation,
            environment=environment,
            config=config,
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
