"""The bounds of the replication protocol."""

from __future__ import annotations

from typing import NamedTuple


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
