"""The view of the node that the replication protocol needs: its vectors, and the bounds of its configuration."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.cluster.limits import Limits, SnapshotLimits
from shoal.config import Config
from shoal.crdt.dot import NOTHING_SEEN, Origin, VersionVector
from shoal.node.database import Database
from shoal.node.incarnation import Incarnation


class NodeReplica:
    """The vectors of this node: the `Replica` of the protocol."""

    def __init__(self, database: Database, incarnation: Incarnation) -> None:
        self._partitions = database.partitions
        self._incarnation = incarnation

    def applied(self, partition: int, /) -> VersionVector:
        """The operations that were applied, durable or not (`Replica.applied`)."""
        return self._partitions.load(partition).vector

    def durable(self, partition: int, /) -> VersionVector:
        """The applied operations that are synced to disk (`Replica.durable`)."""
        return self._partitions.load(partition).durable

    def endings(self, partition: int, /) -> VersionVector:
        """A vector that covers every deletion that was applied there (`Replica.endings`)."""
        return self._partitions.load(partition).endings

    def partitions(self) -> Iterable[int]:
        """The partitions that hold anything durable (`Replica.partitions`)."""
        return self._partitions.holding()

    def retirements(self, partition: int, known: VersionVector, /) -> tuple[VersionVector, VersionVector]:
        """The retired origins, with their last sequences and the times of their retirement (`Replica.retirements`)."""
        retired = self._partitions.load(partition).retired
        if known.dominates(retired.summary.floor):
            return NOTHING_SEEN, NOTHING_SEEN
        rows = list(retired.all())
        return VersionVector((o, row.sequence) for o, row in rows), VersionVector((o, row.time) for o, row in rows)

    def own_origin(self) -> Origin | None:
        """The origin of this opening; None before its first write (`Replica.own_origin`)."""
        return self._incarnation.current


def limits_of(config: Config) -> Limits:
    """The bounds of the protocol."""
    return Limits(
        sync_interval_s=config.sync_interval_s,
        grace_s=config.tick_s,
        answer_s=config.quorum_timeout_s,
        pause_s_max=config.peer_pause_s_max,
        push_bytes_max=config.push_bytes_max,
        vectors_bytes_max=config.vectors_bytes_max,
        early_bytes_max=config.early_bytes_max,
        quarantine_max=config.quarantine_max,
        quarantine_s=config.quarantine_s,
        early_s=config.early_s,
        claims_max=config.peer_claims_max,
        snapshots=SnapshotLimits(
            operations_min=config.snapshot_operations_min,
            open_max=config.snapshots_open_max,
            ahead=config.snapshot_pieces_ahead_max,
            # A lost piece is asked for again several times before its snapshot is given up.
            answer_s=min(config.quorum_timeout_s, config.snapshot_idle_s / 4),
            idle_s=config.snapshot_idle_s,
            pause_s=config.sync_interval_s,
            pause_s_max=config.peer_pause_s_max,
        ),
    )
