"""The effects that `shoal.cluster.replication` asks its caller to carry out, in order.

The bounds of the replication protocol.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.cluster.delivery import Arrival
from shoal.cluster.knowledge import CLAIMS_MAX
from shoal.cluster.messages import Message, Want
from shoal.crdt.dot import VersionVector
from shoal.records import NamedTuple


class Send(NamedTuple):
    """Send a message to these peers."""

    peers: Sequence[bytes]
    message: Message


class Apply(NamedTuple):
    """Store `ready`, in this order; compare `again` with the operations stored under the same dots."""

    peer: bytes
    ready: list[Arrival]
    again: list[Arrival]


class Read(NamedTuple):
    """Answer a peer's Want from the log."""

    peer: bytes
    want: Want


class SetBack(NamedTuple):
    """Record that this node's directory was set back, as `peer` says, so that it is a learner: `Replication.learning`."""

    peer: bytes


class Reset(NamedTuple):
    """Take a snapshot of a partition from this peer, whose log no longer has what this node lacks."""

    peer: bytes
    partition: int
    base: VersionVector  # What has left its log.


Effect = Send | Apply | Read | SetBack | Reset


class SnapshotLimits(NamedTuple):
    """The same, for snapshots (`shoal.cluster.snapshots.taking`)."""

    operations_min: int = 64  # If fewer are missing in a partition, its log is fetched.
    open_max: int = 8  # Snapshots at once.
    ahead: int = 2  # Pieces of one snapshot that were asked for.
    answer_s: float = 5.0  # How long one waits for its answer.
    idle_s: float = 30.0  # How long a snapshot does not move until it is given up.
    pause_s: float = 0.5  # How long a peer that failed is left alone, the first time.
    pause_s_max: float = 10.0


class Limits(NamedTuple):
    """The bounds of `Config` that matter here. Times are in seconds."""

    sync_interval_s: float
    grace_s: float  # How long an operation may be missing before it is asked for. Usually it is on its way.
    answer_s: float  # How long a Want waits for its answer.
    pause_s_max: float  # How long at most a peer that does not answer is left alone.
    push_bytes_max: int
    vectors_bytes_max: int
    early_bytes_max: int
    quarantine_max: int
    quarantine_s: float
    early_s: float = 60.0
    claims_max: int = CLAIMS_MAX  # Logs that a peer may name of which nothing is here.
    snapshots: SnapshotLimits = SnapshotLimits()
