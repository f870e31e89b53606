"""A node, its cluster and its spaces: status, listings, quotas, conditions; and subscriptions, with their pushes.

The table of all conditions is in `shoal.node.conditions`, and as a page in docs/CONDITIONS.md.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Never, get_args

from msgspec import Struct, field, structs

from shoal.kinds import ObjectKind as ObjectKind
from shoal.kinds.document.requests import ANY, Beginning, DocumentState, RootKind
from shoal.kinds.presence.requests import FollowPresence, Presence
from shoal.protocol.base import Cli, Few, Filtered, Http, Named, Positive, Read, Reply, Seconds, Shape, operation

__all__ = [
    "QUOTAS",
    "Change",
    "Cluster",
    "ClusterView",
    "ConditionsView",
    "Edit",
    "Follow",
    "ListObjects",
    "ListSpaces",
    "ListSummaries",
    "ListThreads",
    "Member",
    "Names",
    "NodeStatus",
    "ObjectKind",
    "OpenStep",
    "Push",
    "Question",
    "Quota",
    "QuotaView",
    "ReadConditions",
    "ReadQuota",
    "Reset",
    "Severity",
    "StandingCondition",
    "Status",
    "Subscription",
    "Summaries",
    "ThreadNames",
    "ThreadState",
    "ThreadSummary",
    "Watch",
    "Watching",
]


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
    backup: Literal["", "current", "behind", "failing"] = ""  # Of the cluster, as this node knows it; empty: none is declared.
    backup_trouble: str = ""  # Why this node does not ship to it, and what to do; else empty.
    backup_lag_ms: int = 0  # The recovery point: how long ago all that this node held was in the backup; 0: it is now.
    backup_bytes: int = 0  # Of the objects in the backup that count.
    backup_verified_ms: int = 0  # When the backup was last restored and found sound; 0: never.
    retention_checkpoints: int = 0  # Checkpoints that went by rules of retention in this opening, by this node.
    retention_events: int = 0  # Events that went by them.
    retention_threads: int = 0  # Whole threads that went by them.
    retention_bytes: int = 0  # Stored bytes of all that went by them.
    retention_due: int = 0  # Checkpoints, events and threads that may go and have not yet, as this node looked at them last.
    retention_last_ms: int = 0  # When it carried out the rules last; 0: not in this opening.
    retention_waits_for: str = ""  # Why nothing goes by them now; else empty.
    speaks: dict[str, int] = field(default_factory=dict)  # Its versions of protocols and formats; an older version says none.
    together: int = 0  # The newest protocol among nodes that it and its peers all speak; what needs a newer one waits.
    conditions: list[StandingCondition] = field(default_factory=list)  # What is wrong, as this node noticed last.
    redaction_replaced: int = 0  # Places in writes that rules of redaction replaced in this opening, at this node.
    redaction_refused: int = 0  # Writes that were refused for such rules.
    backup_begun_ms: int = 0  # When the cluster's backup was first declared at its place; 0: not known yet.
    register_founded: bool = True  # Whether the quorum register has begun, as it does once all members have been up together.
    disk_free_bytes: int = -1  # That are free on the disk of its directory; -1: not known.
    disk_full_ms: int = 0  # When that will be full at the rate of the last days; 0: that cannot be said, or is far away.
    tiering_away_bytes: int = 0  # Of chunks that this node has in object stores, as of its last look.
    tiering_moved_bytes: int = 0  # Of chunks that it moved there in this opening.
    tiering_fetched: int = 0  # Objects that it fetched from there in this opening.
    tiering_fetched_bytes: int = 0  # Their bytes.
    tiering_failed: int = 0  # Fetches that failed.
    tiering_trouble: str = ""  # Why something is not moved, fetched or deleted; else empty.


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
    origins: int = 0  # How many origins there are; the vector lists at most 1,000 of them.
    clock_ms: int | None = None  # How far its clock is ahead of the serving node's; None if that is not known.
    part: Literal["member", "joining", "leaving", "removed"] = "member"  # In the present epoch of the list of members.
    told: bool = True  # Whether it has told what it holds since it was linked last; else the four figures of that are unknown.
    version: str = ""  # Of Shoal, as it said when it was linked last; empty: it was not yet.

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
    compared_ms: int | None = None  # Since all rows had been compared with those of peers with greater ids; None: not yet.


def _listing(kind: ObjectKind) -> Http:
    plural = kind if kind == "items" else f"{kind}s"
    return Http("GET", f"/{plural}", f"List {plural}", sets={"kind": kind})


def _listed(kind: ObjectKind) -> Cli:
    """The command that lists the names of one kind: those of items are the first labels of their namespaces."""
    group, plural = "doc" if kind == "document" else kind, kind if kind == "items" else f"{kind}s"
    command = f"{group} list"
    about = "the first labels of a space's items" if kind == "items" else f"a space's {plural}"
    return Cli(command, f"shoal {command} --data ./state", rows="names", help=f"List {about}.", sets={"kind": kind})


_NAMED: tuple[ObjectKind, ...] = tuple(kind for kind in get_args(ObjectKind) if kind != "thread")  # `ListThreads` lists those.


@operation(http=tuple(map(_listing, _NAMED)), cli=tuple(map(_listed, _NAMED)))
class ListObjects(Read["Names"], array_like=True, frozen=True, tag="list-objects"):
    """List the names of a space's objects of one kind, in byte order."""

    space: str
    kind: ObjectKind
    prefix: str = ""
    after: str | None = None
    limit: Positive = 1000


@operation(http=Http("GET", "/spaces", "List spaces"), cli=Cli("spaces", "shoal spaces --data ./state", rows="names"))
class ListSpaces(Read["Names"], array_like=True, frozen=True, tag="list-spaces"):
    """List the names of spaces."""

    after: str | None = None
    limit: Positive = 1000


class Names(Reply, array_like=True, frozen=True, tag="names"):
    """A page of names."""

    names: list[str]  # In byte order.
    more: bool  # Ask again with after=names[-1].


@operation(family="thread", http=Http("GET", "/threads", "List threads, by status and metadata"))
class ListThreads(Read["ThreadNames"], array_like=True, frozen=True, tag="list-threads"):
    """List threads by status and metadata, in byte order. A page may be empty although there are more."""

    space: str
    status: Literal["", "running", "paused", "waiting", "done", "failed"] = ""  # Empty for any status.
    prefix: str = ""
    filter: Filtered = field(default_factory=dict)  # Field → packed condition on the metadata of the head of `main`.
    after: str | None = None
    limit: Positive = 1000


class ThreadNames(Reply, array_like=True, frozen=True, tag="thread-names"):
    """A page of threads."""

    names: list[str]  # In byte order.
    after: str  # Ask again with this; empty if there are no more.

    @property
    def more(self) -> bool:
        """Whether there may be more threads: ask again with `after`."""
        return bool(self.after)


ThreadState = Literal["stuck", "waits", "unknown", "well"]
"""`waits`: for a person. `stuck`: it failed, or a step is open and nobody seems to end it. `unknown`: its rows are damaged."""


@operation(
    family="thread",
    http=Http("GET", "/summaries", "Threads, each with its state, and why, in a sentence"),
    cli=Cli(
        "summaries",
        "shoal summaries --state stuck --url http://n1:7400 --space crew",
        help="List threads, each with its state, and why.",
        rows="items",
        columns=("name", "state", "says", "driver"),
        hides=("author",),
    ),
)
class ListSummaries(Read["Summaries"], array_like=True, frozen=True, tag="list-summaries"):
    """Summarise threads, in byte order. A page looks at a bounded number of threads: it may be empty although there are more.

    Those that are `stuck` or that `wait` come by their statuses, then in byte order; after those that failed come those with an
    open step, the oldest first.
    """

    space: str
    state: Literal["", "stuck", "waits", "unknown", "well"] = ""  # Empty for any.
    text: str = ""  # Part of a name, a reason, a label, an author, a tag, a driver or an open step, in any case of letters.
    author: str = ""  # Of the newest checkpoint, or of the status.
    tag: str = ""  # One of the texts in the list `tags` of the metadata of the newest checkpoint.
    prefix: str = ""  # Of names.
    stuck_after_ms: Annotated[Seconds, Named("stuck_after_s")] = 600_000  # The age of an open step that makes a thread stuck.
    after: str = ""  # The `cursor` of the previous page.
    limit: Positive = 100


class OpenStep(Struct, array_like=True, frozen=True):
    """A step whose outcome is not known."""

    key: str
    name: str
    begun_ms: int
    holder: str  # The last attempt's.


class Question(Struct, array_like=True, frozen=True):
    """The question of a LangGraph graph that stopped at `interrupt()`. It goes on where it runs, by `Command(resume=…)`."""

    id: str  # LangGraph's id of the interrupt; empty: not known. With several questions the answers are named by it.
    says: str  # What is asked, as text, at most 600 characters.
    asked_ms: int  # When, by the clock of the node that wrote it.
    answered: bool = False  # An answer was written, and the step that asked has not ended.


class ThreadSummary(Struct, array_like=True, frozen=True):
    """A thread at a glance."""

    name: str
    state: ThreadState
    says: str  # Why it is in that state, as a sentence.
    status: Literal["running", "paused", "waiting", "done", "failed"]
    since_ms: int = 0  # Since when, by the clock of the node that wrote it; 0: not known.
    by: str = ""  # The author of the status.
    asks: str = ""  # What is asked of a person; empty: nothing.
    driver: str = ""  # The holder of its lease; a crew's is the machine. Empty: nobody holds it, or its holder has no name.
    driven: bool = False  # Whether somebody holds its lease, as far as this node knows.
    checkpoint: str = ""  # The newest checkpoint of all branches; empty: there is none.
    checkpoint_ms: int = 0  # When it was saved.
    branch: str = ""  # Of that checkpoint.
    author: str = ""  # Likewise.
    label: str = ""  # Likewise.
    tags: list[str] = field(default_factory=list)  # Of its metadata; at most 16.
    branches: list[str] = field(default_factory=list)  # At most 32.
    steps: list[OpenStep] = field(default_factory=list)  # The oldest open ones; at most 3.
    open_steps: int = 0  # At most 100 are counted.
    last: str = ""  # What the newest checkpoint says of itself: its metadata in a line, or else the channels that it changed.
    questions: list[Question] = field(default_factory=list)  # What its graph asks of a person; at most 4.


class Summaries(Reply, array_like=True, frozen=True, tag="summaries"):
    """A page of summaries."""

    items: Annotated[list[ThreadSummary], Named("threads")]
    cursor: str  # Ask again with after=cursor; empty if there are no more.
    now_ms: int  # The node's clock.
    totals: dict[str, int]  # Of the first page: threads by status, each counted up to 1,000; of running ones, of all threads.

    @property
    def more(self) -> bool:
        """Whether there may be more threads: ask again with `after`."""
        return bool(self.cursor)


QUOTAS = "quotas"
"""The map of the space `RESERVED` with the records: for each space, its limits by name, as a packed map.

A limit that a record lacks is that of the node's configuration. Names that a node does not know are left alone.
"""


class Quota(Struct, frozen=True):
    """A number for each thing that is limited. As a limit, 0 is none."""

    bytes: int = 0  # Of the rows of its objects, deleted ones included until they are swept.
    objects: int = 0  # Threads, documents, counters, registers, sets, maps, budgets, schemas, and first labels of items.
    writes_per_s: float = 0.0  # At each node; a batch counts each of its writes.
    watchers: int = 0  # Watches, and followers of presence, at each node.
    documents: int = 0  # Open documents at each node: mirrors, and one for all Yjs clients of a document.
    leases: int = 0  # Leases and claims of work that are held or waited for, in the cluster.
    presences: int = 0  # Clients that are present in it and in its documents.


@operation(family="quota", http=Http("GET", "/quota", "A space's quota, and what it uses"))
class ReadQuota(Read["QuotaView"], array_like=True, frozen=True, tag="quota"):
    """Read the quota of a space as the serving node applies it, and what the space uses there."""

    space: str


class QuotaView(Reply, array_like=True, frozen=True, tag="quota-view"):
    """The quota of a space at one node."""

    space: str
    limits: Quota  # In force; 0: no limit.
    used: Quota  # `writes_per_s`: in the last second.
    recorded: dict[str, float] = field(default_factory=dict)  # The limits that are recorded for the space itself.
    is_counted: bool = True  # False: bytes and objects are being counted, and what is told are those counted so far.
    trouble: str = ""  # What is wrong with the record; else empty. What is wrong counts as not recorded.
    is_empty: bool = False  # Whether nothing is in it: check its name. What was set holds once something is written there.


Severity = Literal["page", "ticket", "note"]
"""`page`: users feel it, or the last copy is in danger. `ticket`: somebody has to act, by day. `note`: nobody has to."""


@operation(family="cluster", http=Http("GET", "/cluster/conditions", "What is wrong with a node, and how to mend it"))
class ReadConditions(Read["ConditionsView"], array_like=True, frozen=True, tag="conditions"):
    """Look at a node, and read which conditions of the table are true of it now."""


class StandingCondition(Struct, array_like=True, frozen=True):
    """A condition that is true now."""

    name: str  # As in the table (docs/CONDITIONS.md).
    severity: Severity  # How soon somebody has to act.
    says: str  # What is so at this node, as a sentence.
    means: str  # What users feel, or will.
    mends: str  # The command that mends it. URL and DIR stand for the node's address and directory.
    page: str  # Where it is explained, such as `OPERATIONS.md#a-disk-is-full`.
    since_ms: int  # When this node noticed it.
    about: str = ""  # The member, the space or the limit that it is about; empty: this node.


class ConditionsView(Reply, array_like=True, frozen=True, tag="conditions-view"):
    """The outcome of a node's look at itself and its cluster."""

    node: str  # The id of its directory, in hex.
    name: str  # The address by which its peers reach it.
    standing: list[StandingCondition]  # The worst first.
    looked: list[str]  # The names of the conditions of which it knows whether they are true.
    unknown: dict[str, str] = field(default_factory=dict)  # The others, each with the reason why that is not known.
    begun: dict[str, int] = field(default_factory=dict)  # How often each of the table began, since the node started.


class Watch(Read[Never], array_like=True, frozen=True, tag="watch"):
    """Push a `Change` for every durable change in a space.

    Without `after` it begins now, and changes are hints to read again: a watcher that falls behind gets SlowConsumer.
    With `after` (a packed position; empty: from now on) each change comes once, also across
    nodes: first those that the position does not cover, in causal order. If it is empty, `Watching` comes
    first. `Reset` takes the place of changes that are left out.
    """

    space: str
    kind: ObjectKind | None = None
    prefix: str = ""
    kinds: Few[ObjectKind] = field(default_factory=list)  # Empty: all.
    after: bytes | None = None


class Change(Reply, array_like=True, frozen=True, tag="change"):
    """One mutation that became durable. `what` is the request's tag: "save", "append", "update", …"""

    space: str
    kind: ObjectKind
    name: str
    what: str
    id: str  # The id of the checkpoint, event, queue entry, key or item; empty if the object as a whole changed.
    hlc: int
    wall_ms: int
    partition: int = -1  # With `after`, the partition of the watcher's position that this change moves.
    seen: bytes = b""  # Packed entries of the partition's vector that changed since the last push.
    part: bytes = b""  # The operation's dot and the mutation's `nth`, if more of the operation may follow.


class Watching(Reply, array_like=True, frozen=True, tag="watching"):
    """The watch has begun."""

    position: bytes  # The position where the watch begins.


class Reset(Reply, array_like=True, frozen=True, tag="reset"):
    """Changes were left out: read the state again, and continue from this position."""

    position: bytes
    reason: str


class Follow(Read[Never], array_like=True, frozen=True, tag="follow"):
    """Push a document's `DocumentState`, then an `Edit` for every durable update.

    `stale`: begin with this node's state, even if it is older than the bookmark; a
    caller that sends its `state` keeps its content.
    """

    space: str
    document: str
    state: bytes = b"\x00"
    stale: bool = False
    generation: int = ANY


class Edit(Reply, array_like=True, frozen=True, tag="edit"):
    """A durable update of a followed document."""

    update: bytes
    roots: dict[str, RootKind]
    authors: dict[int, str] = field(default_factory=dict)  # As the update named them.
    beginnings: list[Beginning] = field(default_factory=list)  # All beginnings that the node knows, if this update brings one.


Subscription = Watch | Follow | FollowPresence
Push = Change | Watching | Reset | DocumentState | Edit | Presence
