"""How a node and its cluster are."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from shoal.protocol.requests.base import Read, Reply

__all__ = ["Cluster", "ClusterView", "Member", "NodeStatus", "Status"]


class Status(Read["NodeStatus"], array_like=True, frozen=True, tag="status"):
    """Read the status of the serving node."""


class NodeStatus(Reply, array_like=True, frozen=True, tag="node-status"):
    version: str
    node: str  # Hex: this data directory.
    origin: str  # Hex: this opening; empty until its first write.
    state: Literal["ready", "read-only", "refilling", "stopping"]
    reason: str  # Why it is not ready, or counts in no quorum; else empty.
    started_ms: int
    bytes_on_disk: int
    operations: int  # Issued in this opening.
    commits: int  # Group commits in this opening.
    connections: int
    spaces: int  # At most 1,000 are counted.
    garbage: int = 0  # Entries of what was erased and is not gone yet; at most 1,000 are counted.
    garbage_waits_for: list[str] = field(default_factory=list)  # Owners that must hold an erasure before what it erased can go.
    died: int = 0  # Changes that arrived after their object was deleted, in this opening.
    repaired: int = 0  # Damaged rows that were fetched again from a peer, in this opening.
    repairs_failed: int = 0  # Requests that met damage which no peer could mend, in this opening.


class Cluster(Read["ClusterView"], array_like=True, frozen=True, tag="cluster"):
    """Read what the serving node knows of the cluster."""


class Member(Struct, array_like=True, frozen=True):
    """An owner, as the serving node sees it."""

    name: str  # "host:port"
    node: str  # Hex; empty while it was never reached.
    state: Literal["self", "linked", "unreachable"]
    operations: int  # That it is known to hold durably.
    lacks: int  # Of the operations that the answering node holds durably, those that this one is not known to hold.
    ahead: int  # Operations that it is known to hold and the answering node does not.
    lag_ms: int  # How old the oldest is of those that it lacks; 0 if there is none.
    waiting_bytes: int  # To be sent to it.
    dropped: int  # Pushes that did not fit, and were left to sync.
    linked_ms: int  # When it was linked last; 0: never.
    reason: str  # Why it is not linked, or what was refused last; else empty.
    vector: dict[str, int]  # Origin (hex) → operations over all partitions, that it is known to hold; the first by name.
    origins: int = 0  # How many there are: the vector lists `status_origins_max` of them at most.


class ClusterView(Reply, array_like=True, frozen=True, tag="cluster-view"):
    cluster: str
    size: int  # Owners, as configured.
    quorum: int
    members: list[Member]  # This node first.
    digest: str  # Hex: over all durable vectors; equal on nodes that hold the same operations.
    early: int  # Operations that wait for others.
    quarantined: list[str]  # What was refused and why, the newest last.
    clock_ahead_ms: int  # How far operations' times are ahead of this node's clock.
    disagreements: list[str] = field(default_factory=list)  # Other lists of members, and addresses that two nodes advertise.
    learning: list[str] = field(default_factory=list)  # If this node is a learner: how far it is with each of the others.
    differing: list[str] = field(default_factory=list)  # Objects whose rows differ from a peer's at equal vectors, and why.
    replaced: int = 0  # Objects whose rows were replaced by what the log makes, in this opening.
