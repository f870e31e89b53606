"""The bounds of the replication protocol."""

from __future__ import annotations

from shoal.cluster.knowledge import CLAIMS_MAX
from shoal.records import NamedTuple


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
