"""The status of a node and its cluster."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Struct, field, structs

from shoal.protocol.base import Read, Reply
from shoal.protocol.declared import operation
from shoal.protocol.fields import Shape

__all__ = ["Cluster", "ClusterView", "Member", "NodeStatus", "Status"]


@operation(family="cluster")
class Status(Read["NodeStatus"], array_like=True, frozen=True, tag="status"):
    """Read the status of the serving node."""


class NodeStatus(Reply, array_like=True, frozen=True, tag="node-status"):
    """The state of a node, and counts of its work."""

    version: str
    node: str  # The id of this data directory, in hex.
    origin: str  # The origin of this opening, in hex; empty until its first write.
    state: Literal["ready", "read-only", "refilling", "stopping"]
    reason: str  # Why it is not ready, or does not count in quorums; else empty.
    started_ms: int
    bytes_on_disk: int
    operations: int  # Operations issued in this opening.
    commits: int  # Group commits in this opening.
    connections: int
    spaces: int  # At most 1,000 are counted.
    garbage: int = 0  # Deletions and prunes whose rows are not swept yet; at most 1,000 are counted.
    garbage_waits_for: list[str] = field(default_factory=list)  # Owners that must hold them before their rows can be swept.
    died: int = 0  # Changes that arrived after their object was deleted, in this opening.
    repaired: int = 0  # Damaged rows that were fetched from a peer, in this opening.
    repairs_failed: int = 0  # Requests that met damage that no peer could repair, in this opening.
    tls_ends_ms: int = 0  # When the node's certificate expires; 0 if it has none.
    tls_trouble: str = ""  # What is wrong with its TLS files or their dates; else empty.
    master_key: str = ""  # The name of the master key of its directory; empty: that is not encrypted.
    data_keys: int = 0  # Data keys of its directory.
    keys_wait_for: list[str] = field(default_factory=list)  # Spaces without objects that still have keys; at most 1,000.
    register: str = ""  # Why the quorum register has no quorum, since when, and what to do; empty if it has one.
    serves: bool = True  # False: it is no member, or does not know yet what its cluster holds; `reason` says what to do.
    quotas_reached: list[str] = field(default_factory=list)  # "space: quota", of the last 10 s; at most 1,000.
    quota_refusals: int = 0  # Requests that were refused because a quota was reached, in this opening.
    tokens_end_ms: int = 0  # When the next of the authors whose tokens were shown here has none any more; 0: nobody showed one.
    tokens_ending: list[str] = field(default_factory=list)  # "author until …", whose newest token ends soon; at most 1,000.
    tokens_refused: dict[str, int] = field(default_factory=dict)  # Tokens that were not accepted, by reason, in this opening.
    cluster_keys: list[str] | None = None  # Names of the keys as in `cluster_key_file`; none: no key; None: an older version.
    cluster_key_file: bool = False  # Whether its key is in a file, and so can be changed without a restart.
    cluster_key_trouble: str = ""  # Why that file is not in use as it is now; else empty.


@operation(family="cluster")
class Cluster(Read["ClusterView"], array_like=True, frozen=True, tag="cluster"):
    """Read the cluster's state, as the serving node sees it."""


Figure = Annotated[int, Shape.TOLD]


class Member(Struct, array_like=True, frozen=True):
    """An owner, as the serving node sees it."""

    name: str  # "host:port"
    node: str  # Its id in hex; empty if it was never reached.
    state: Literal["self", "linked", "unreachable"]
    operations: Figure  # How many operations it is known to hold durably: at least these, as long as it has not `told` them.
    # How many operations the serving node holds durably that this one is not known to hold: at most these, likewise.
    lacks: Figure
    ahead: Figure  # How many operations it is known to hold that the serving node does not.
    lag_ms: Figure  # The age of the oldest operation that it lacks; 0 if it lacks none.
    waiting_bytes: int  # Bytes that wait to be sent to it.
    dropped: int  # Pushes that did not fit the queue; synchronisation makes up for them.
    linked_ms: int  # When it was linked last; 0: never.
    reason: str  # Why it is not linked, or the last rejection between the two; else empty.
    vector: dict[str, int]  # Origin (hex) → operations over all partitions that it is known to hold; the first by name.
    origins: int = 0  # How many origins there are; the vector lists at most `status_origins_max` of them.
    clock_ms: int | None = None  # How far its clock is ahead of the serving node's; None if that is not known.
    part: Literal["member", "joining", "leaving", "removed"] = "member"  # In the present epoch of the list of members.
    told: bool = True  # Whether it has told what it holds since it was linked last; else the four figures of that are unknown.

    def shown(self) -> dict[str, Any]:
        """The fields by their names, as people and programs are shown them: an unknown figure is None."""
        unknown = {} if self.told else dict.fromkeys(("operations", "lacks", "ahead", "lag_ms"))
        return structs.asdict(self) | unknown


class ClusterView(Reply, array_like=True, frozen=True, tag="cluster-view"):
    """The cluster, as one node sees it."""

    cluster: str
    size: int  # The number of owners.
    quorum: int
    members: list[Member]  # This node first.
    digest: str  # Over all durable vectors, in hex; equal on nodes that hold the same operations.
    early: int  # Operations that wait for others.
    quarantined: list[str]  # Rejected operations with the reasons, the newest last.
    clock_ahead_ms: int  # How far operations' times are ahead of this node's clock.
    disagreements: list[str] = field(default_factory=list)  # Other lists of members, and addresses that two nodes advertise.
    learning: list[str] = field(default_factory=list)  # If this node is a learner: how far it is with each of the others.
    differing: list[str] = field(default_factory=list)  # Objects whose rows differ from a peer's at equal vectors, and why.
    replaced: int = 0  # Objects whose rows were rebuilt from the log, in this opening.
    clocks: list[str] = field(default_factory=list)  # Clocks that differ by more than `clock_skew_max_ms`, and what to do.
    truncated: list[str] = field(default_factory=list)  # Partitions that need a snapshot: what they lack left a peer's log.
    epoch: int = 0  # Of the list of members; 0: the configured list.
    change: str = ""  # The change of the members that is under way, as a command; else empty.
    snapshots_due: int = 0  # Partitions that this node is about to replace by peers' snapshots.
    snapshots_taken: int = 0  # Those that it has replaced, in this opening,
    snapshot_bytes: int = 0  # and the bytes of snapshots that have arrived.
    unshown: int = 0  # How often a peer said that its log decides about rows, and did not show it, in this opening.
