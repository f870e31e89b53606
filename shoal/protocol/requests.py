"""The requests that a node answers, and its replies: one vocabulary for every door.

The embedded store, the session WebSocket, REST and the command line all speak
these. Each is a msgpack array whose first element is the tag; fields are only
ever added at the end, with a default (wire versions N and N−1 work together).
Channel values, events and register values are msgpack of `shoal.values`; a node
stores them and does not look inside. Checkpoint ids are 64 hex digits. Times
are milliseconds since 1970. Cursors and contexts are opaque bytes.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

Durability = Literal["memory", "local", "quorum", "all"]

NO_HEAD = ""
"""As `expect_head`: the branch must not exist yet. As `parent`: the checkpoint has none."""


class Request(Struct, array_like=True, frozen=True, tag=True):
    """Base of all requests."""


class Write(Request, array_like=True, frozen=True, tag=True):
    """Changes objects of one partition; may carry an idempotency key beside it."""


class Read(Request, array_like=True, frozen=True, tag=True):
    """Changes nothing."""


class Reply(Struct, array_like=True, frozen=True, tag=True):
    """Base of all replies and pushes."""


# ── threads ───────────────────────────────────────────────────────────────────


class Save(Write, array_like=True, frozen=True, tag="save"):
    """Save a checkpoint; answered by `Saved`.

    `parent` is the checkpoint that the caller last loaded or saved, or NO_HEAD for
    none; None takes the branch's winner on the node that is asked, which may differ
    where the request is sent again. `expect_head` (an id, or NO_HEAD) must be the
    only head. Of one key, saves that differ in nothing but their parent are one.
    """

    space: str
    thread: str
    channels: dict[str, bytes]
    metadata: bytes = b"\x80"  # msgpack of an empty map
    branch: str = "main"
    parent: str | None = None
    expect_head: str | None = None
    schema: int = 0


class Saved(Reply, array_like=True, frozen=True, tag="saved"):
    id: str
    parents: list[str]
    branch: str
    heads: list[str]  # Of the branch, winner first; more than one is a fork.
    wall_ms: int


class Load(Read, array_like=True, frozen=True, tag="load"):
    """Load a checkpoint by id, or a branch's winner; answered by `Checkpoint`."""

    space: str
    thread: str
    checkpoint: str | None = None
    branch: str = "main"


class Checkpoint(Reply, array_like=True, frozen=True, tag="checkpoint"):
    id: str
    parents: list[str]
    branch: str  # On which it was saved.
    heads: list[str]  # Of that branch, winner first.
    wall_ms: int
    schema: int
    metadata: bytes
    channels: dict[str, bytes]


class History(Read, array_like=True, frozen=True, tag="history"):
    """Checkpoints from the branch's winner (or strictly before `before`) back; answered by `Checkpoints`.

    They come without channels unless `channels` is set.
    """

    space: str
    thread: str
    branch: str = "main"
    before: str | None = None
    limit: int = 100
    channels: bool = False


class Checkpoints(Reply, array_like=True, frozen=True, tag="checkpoints"):
    items: list[Checkpoint]
    more: bool  # True if older ones exist; ask again with before=items[-1].id.


class Heads(Read, array_like=True, frozen=True, tag="heads"):
    """All branches and their heads; answered by `Branches`."""

    space: str
    thread: str


class Branches(Reply, array_like=True, frozen=True, tag="branches"):
    branches: dict[str, list[str]]  # Name → heads, winner first.


class Append(Write, array_like=True, frozen=True, tag="append"):
    """Append an event to a thread's journal; answered by `Appended`."""

    space: str
    thread: str
    event: bytes
    key: str | None = None  # Lives as long as the entry: the same key again appends nothing.


class Appended(Reply, array_like=True, frozen=True, tag="appended"):
    id: str  # 68 hex digits: the event's position.
    appended: bool  # False if the key was there already; `id` is then the first one's.


class ReadJournal(Read, array_like=True, frozen=True, tag="read-journal"):
    """Events that `after` (a cursor of an earlier reply; empty: none) does not cover; answered by `Events`."""

    space: str
    thread: str
    after: bytes = b""
    limit: int = 1000


class Event(Struct, array_like=True, frozen=True):
    id: str
    key: str | None
    wall_ms: int
    event: bytes
    late: bool  # It sorts before events that the cursor had already passed.
    cursor: bytes  # To go on right after this event.


class Events(Reply, array_like=True, frozen=True, tag="events"):
    events: list[Event]
    cursor: bytes
    more: bool


# ── documents ─────────────────────────────────────────────────────────────────


RootKind = Literal["map", "array", "text"]


class Update(Write, array_like=True, frozen=True, tag="update"):
    """Apply a Yjs v1 update to a document; answered by `Updated`."""

    space: str
    document: str
    update: bytes
    roots: dict[str, RootKind] = field(default_factory=dict)  # Root types that the update may be the first to use.


class Updated(Reply, array_like=True, frozen=True, tag="updated"):
    pass


class Patch(Write, array_like=True, frozen=True, tag="patch"):
    """Apply a JSON Patch (RFC 6902; JSON text) as CRDT operations; answered by `DocumentJson`."""

    space: str
    document: str
    patch: bytes


class ReadDocument(Read, array_like=True, frozen=True, tag="read-document"):
    """Answered by `DocumentState`; a document that does not exist is empty."""

    space: str
    document: str
    state: bytes = b"\x00"  # The caller's Yjs state vector: only what it lacks is sent.


class DocumentState(Reply, array_like=True, frozen=True, tag="document-state"):
    update: bytes
    roots: dict[str, RootKind]


class ReadDocumentJson(Read, array_like=True, frozen=True, tag="read-document-json"):
    """Answered by `DocumentJson`.

    Raises NotFound if there is no such document.
    """

    space: str
    document: str


class DocumentJson(Reply, array_like=True, frozen=True, tag="document-json"):
    json: bytes


# ── counters and registers ────────────────────────────────────────────────────


class Add(Write, array_like=True, frozen=True, tag="add"):
    """Add to a counter; answered by `Added`. `key`: of all adds with one key, one counts."""

    space: str
    counter: str
    amount: int
    key: str | None = None


class Added(Reply, array_like=True, frozen=True, tag="added"):
    value: int
    added: bool


class ReadCounter(Read, array_like=True, frozen=True, tag="read-counter"):
    """Answered by `CounterValue`; a counter that does not exist is 0."""

    space: str
    counter: str


class CounterValue(Reply, array_like=True, frozen=True, tag="counter-value"):
    value: int


class Assign(Write, array_like=True, frozen=True, tag="assign"):
    """Set a register; answered by `Assigned`.

    `context` is that of the read this is based on: values it has not seen stay as
    siblings. None supersedes all that the serving node shows.
    """

    space: str
    register: str
    value: bytes
    context: bytes | None = None


class Assigned(Reply, array_like=True, frozen=True, tag="assigned"):
    siblings: int
    context: bytes


class ReadRegister(Read, array_like=True, frozen=True, tag="read-register"):
    """Answered by `Siblings`; a register never set has none."""

    space: str
    register: str


class Sibling(Struct, array_like=True, frozen=True):
    value: bytes
    wall_ms: int


class Siblings(Reply, array_like=True, frozen=True, tag="siblings"):
    siblings: list[Sibling]  # Greatest HLC first: the first is the `latest`.
    context: bytes


# ── batches, listings, status ─────────────────────────────────────────────────


class Batch(Write, array_like=True, frozen=True, tag="batch"):
    """Apply writes as one operation, all or none; answered by `BatchReply`. They must share a partition."""

    writes: list[Save | Append | Update | Add | Assign]


class BatchReply(Reply, array_like=True, frozen=True, tag="batch-reply"):
    replies: list[Saved | Appended | Updated | Added | Assigned]


ObjectKind = Literal["thread", "document", "counter", "register"]


class ListObjects(Read, array_like=True, frozen=True, tag="list-objects"):
    """Names in byte order; answered by `Names`."""

    space: str
    kind: ObjectKind
    prefix: str = ""
    after: str | None = None
    limit: int = 1000


class ListSpaces(Read, array_like=True, frozen=True, tag="list-spaces"):
    """Answered by `Names`."""

    after: str | None = None
    limit: int = 1000


class Names(Reply, array_like=True, frozen=True, tag="names"):
    names: list[str]
    more: bool


class Status(Read, array_like=True, frozen=True, tag="status"):
    """Answered by `NodeStatus`."""


class NodeStatus(Reply, array_like=True, frozen=True, tag="node-status"):
    version: str
    node: str  # Hex: this data directory.
    origin: str  # Hex: this opening; empty until its first write.
    state: Literal["ready", "read-only", "stopping"]
    reason: str  # Why it is not ready; else empty.
    started_ms: int
    bytes_on_disk: int
    operations: int  # Issued in this opening.
    commits: int  # Group commits in this opening.
    connections: int
    spaces: int  # At most 1,000 are counted.


class Cluster(Read, array_like=True, frozen=True, tag="cluster"):
    """Answered by `ClusterView`."""


class Member(Struct, array_like=True, frozen=True):
    """An owner, as the node that answers sees it."""

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
    vector: dict[str, int]  # Origin (hex) → operations over all partitions, that it is known to hold.


class ClusterView(Reply, array_like=True, frozen=True, tag="cluster-view"):
    cluster: str
    size: int  # Owners, as configured.
    quorum: int
    members: list[Member]  # This node first.
    digest: str  # Hex: over all durable vectors; equal on nodes that hold the same operations.
    early: int  # Operations that wait for others.
    quarantined: list[str]  # What was refused and why, the newest last.
    clock_ahead_ms: int  # How far operations' times are ahead of this node's clock.


# ── subscriptions ─────────────────────────────────────────────────────────────


class Watch(Read, array_like=True, frozen=True, tag="watch"):
    """Push a `Change` for every durable change in a space from now on."""

    space: str
    kind: ObjectKind | None = None
    prefix: str = ""


class Change(Reply, array_like=True, frozen=True, tag="change"):
    """One mutation that became durable. `what` is the request's tag: "save", "append", "update", …"""

    space: str
    kind: ObjectKind
    name: str
    what: str
    id: str  # Of the checkpoint or event; else empty.
    hlc: int
    wall_ms: int


class Follow(Read, array_like=True, frozen=True, tag="follow"):
    """Push a document's `DocumentState`, then an `Edit` for every durable update.

    `stale`: begin with what is here, even if it is older than what the bookmark
    names; a caller that gives its `state` keeps what it has.
    """

    space: str
    document: str
    state: bytes = b"\x00"
    stale: bool = False


class Edit(Reply, array_like=True, frozen=True, tag="edit"):
    update: bytes
    roots: dict[str, RootKind]


Subscription = Watch | Follow
Push = Change | DocumentState | Edit

AnyWrite = Save | Append | Update | Patch | Add | Assign | Batch
AnyRead = (
    Load
    | History
    | Heads
    | ReadJournal
    | ReadDocument
    | ReadDocumentJson
    | ReadCounter
    | ReadRegister
    | ListObjects
    | ListSpaces
    | Status
    | Cluster
)
AnyRequest = AnyWrite | AnyRead
AnyReply = (
    Saved
    | Checkpoint
    | Checkpoints
    | Branches
    | Appended
    | Events
    | Updated
    | DocumentState
    | DocumentJson
    | Added
    | CounterValue
    | Assigned
    | Siblings
    | BatchReply
    | Names
    | NodeStatus
    | ClusterView
)
