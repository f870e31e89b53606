"""The requests that a node answers, and its replies: one vocabulary for every door.

The embedded store, the session WebSocket, REST and the command line all speak
these. Each is a msgpack array whose first element is the tag; fields are only
ever added at the end, with a default (wire versions N and N−1 work together).
Channel values, events and register values are msgpack of `shoal.values`; a node
stores them and does not look inside. Checkpoint ids are 64 hex digits. Times
are milliseconds since 1970. Cursors and contexts are opaque bytes.

A request about one object names it in its second field, which says the kind.
"""

from __future__ import annotations

from shoal.protocol.requests.base import NO_HEAD, Durability, Read, Reply, Request, Write
from shoal.protocol.requests.batches import Batch, BatchAnswer, BatchReply, BatchWrite
from shoal.protocol.requests.documents import (
    DocumentJson,
    DocumentState,
    Patch,
    ReadDocument,
    ReadDocumentJson,
    RootKind,
    Update,
    Updated,
)
from shoal.protocol.requests.journal import (
    Ack,
    Append,
    Appended,
    Consumers,
    ConsumerState,
    Event,
    Events,
    PutSnapshot,
    ReadConsumer,
    ReadConsumers,
    ReadJournal,
    ReadSnapshot,
    Snapshot,
    SnapshotKept,
)
from shoal.protocol.requests.labels import (
    Annotate,
    Annotated,
    Claim,
    Claimed,
    Labelled,
    Labels,
    Note,
    ReadLabels,
    Unlabel,
    Unlabelled,
)
from shoal.protocol.requests.listings import ListObjects, ListSpaces, Names, ObjectKind
from shoal.protocol.requests.scalars import (
    Add,
    Added,
    Assign,
    Assigned,
    CounterValue,
    ReadCounter,
    ReadRegister,
    Sibling,
    Siblings,
)
from shoal.protocol.requests.status import Cluster, ClusterView, Member, NodeStatus, Status
from shoal.protocol.requests.subscriptions import Change, Edit, Follow, Push, Subscription, Watch
from shoal.protocol.requests.threads import (
    Branches,
    Checkpoint,
    Checkpoints,
    Heads,
    History,
    Load,
    Move,
    Moved,
    Save,
    Saved,
)

SingleWrite = BatchWrite | Patch | PutSnapshot
WriteReply = BatchAnswer | DocumentJson | SnapshotKept
AnyWrite = SingleWrite | Batch
ObjectRead = (
    Load
    | History
    | Heads
    | ReadLabels
    | ReadJournal
    | ReadConsumer
    | ReadConsumers
    | ReadSnapshot
    | ReadDocument
    | ReadDocumentJson
    | ReadCounter
    | ReadRegister
)
AnyRead = ObjectRead | ListObjects | ListSpaces | Status | Cluster
AnyRequest = AnyWrite | AnyRead
AnyReply = (
    WriteReply
    | BatchReply
    | Checkpoint
    | Checkpoints
    | Branches
    | Labels
    | Events
    | Consumers
    | Snapshot
    | DocumentState
    | CounterValue
    | Siblings
    | Names
    | NodeStatus
    | ClusterView
)

__all__ = [
    "NO_HEAD",
    "Ack",
    "Add",
    "Added",
    "Annotate",
    "Annotated",
    "AnyRead",
    "AnyReply",
    "AnyRequest",
    "AnyWrite",
    "Append",
    "Appended",
    "Assign",
    "Assigned",
    "Batch",
    "BatchAnswer",
    "BatchReply",
    "BatchWrite",
    "Branches",
    "Change",
    "Checkpoint",
    "Checkpoints",
    "Claim",
    "Claimed",
    "Cluster",
    "ClusterView",
    "ConsumerState",
    "Consumers",
    "CounterValue",
    "DocumentJson",
    "DocumentState",
    "Durability",
    "Edit",
    "Event",
    "Events",
    "Follow",
    "Heads",
    "History",
    "Labelled",
    "Labels",
    "ListObjects",
    "ListSpaces",
    "Load",
    "Member",
    "Move",
    "Moved",
    "Names",
    "NodeStatus",
    "Note",
    "ObjectKind",
    "ObjectRead",
    "Patch",
    "Push",
    "PutSnapshot",
    "Read",
    "ReadConsumer",
    "ReadConsumers",
    "ReadCounter",
    "ReadDocument",
    "ReadDocumentJson",
    "ReadJournal",
    "ReadLabels",
    "ReadRegister",
    "ReadSnapshot",
    "Reply",
    "Request",
    "RootKind",
    "Save",
    "Saved",
    "Sibling",
    "Siblings",
    "SingleWrite",
    "Snapshot",
    "SnapshotKept",
    "Status",
    "Subscription",
    "Unlabel",
    "Unlabelled",
    "Update",
    "Updated",
    "Watch",
    "Write",
    "WriteReply",
]
