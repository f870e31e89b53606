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
from shoal.protocol.requests.budgets import (
    BudgetConflict,
    BudgetState,
    DrawRights,
    Grant,
    Granted,
    Holder,
    ReadBudget,
    ReleaseRights,
    Rights,
    Spend,
    Spent,
    TransferRights,
)
from shoal.protocol.requests.documents import (
    ANY,
    Begin,
    Begun,
    Conflicts,
    DeleteDocument,
    DocumentJson,
    DocumentState,
    Moment,
    Overwritten,
    Patch,
    ReadConflicts,
    ReadDocument,
    ReadDocumentAt,
    ReadDocumentJson,
    ReadMoment,
    Replace,
    RootKind,
    Update,
    Updated,
    Updates,
)
from shoal.protocol.requests.indexes import (
    IndexItems,
    ItemIndex,
    ItemIndexes,
    ItemsIndexed,
    ListItemIndexes,
    UnindexItems,
)
from shoal.protocol.requests.items import (
    NO_ITEM,
    DeleteItem,
    GetItems,
    Item,
    ItemDeleted,
    ItemPut,
    ItemsFound,
    ItemSibling,
    ItemsPage,
    ItemsRefreshed,
    ItemsSwept,
    ListNamespaces,
    Match,
    Namespaces,
    PutItem,
    Ranked,
    RankedItems,
    RankItems,
    RefreshItems,
    SearchItems,
    SearchPlan,
    SweepItems,
)
from shoal.protocol.requests.journal import (
    Ack,
    Append,
    Appended,
    Consumers,
    ConsumerState,
    Event,
    Events,
    Place,
    PutSnapshot,
    ReachPlace,
    ReadConsumer,
    ReadConsumers,
    ReadJournal,
    ReadPlace,
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
from shoal.protocol.requests.listings import ListObjects, ListSpaces, ListThreads, Names, ObjectKind, ThreadNames
from shoal.protocol.requests.maps import (
    AddEntry,
    AlterEntry,
    EntryAdded,
    EntryPut,
    EntryRemoved,
    MapEntries,
    MapEntry,
    PutEntry,
    ReadMap,
    RemoveEntry,
)
from shoal.protocol.requests.multireads import MultiRead, MultiReply, Refused
from shoal.protocol.requests.presence import Announce, Announced, FollowPresence, Presence, Present, ReadPresence
from shoal.protocol.requests.queues import (
    NIL,
    Dequeue,
    Dequeued,
    Enqueue,
    Enqueued,
    Finish,
    ListWorklists,
    Purge,
    Purged,
    QueueEntries,
    QueueEntry,
    QueueItem,
    ReadQueue,
    ReadQueueEntry,
    Worklist,
    Worklists,
)
from shoal.protocol.requests.retention import (
    EventsTrimmed,
    ReadRetention,
    Retention,
    SetRetention,
    Trim,
    TrimEvents,
    TrimReport,
)
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
from shoal.protocol.requests.schemas import (
    PutSchema,
    ReadSchema,
    ReadViolations,
    SchemaVersion,
    SchemaVersions,
    Violation,
    Violations,
)
from shoal.protocol.requests.scrutiny import Damage, Explain, Explained, Verified, VerifyCheckpoints
from shoal.protocol.requests.sets import (
    AlterSet,
    ContainsMembers,
    MembersContained,
    ReadSet,
    SetAltered,
    SetMembers,
)
from shoal.protocol.requests.status import Cluster, ClusterView, Member, NodeStatus, Status
from shoal.protocol.requests.steps import (
    BeginStep,
    CatchUp,
    CaughtUp,
    EndStep,
    ListSteps,
    MoveThread,
    ProgressStep,
    ReadStanding,
    ReadStep,
    ResolveStep,
    Standing,
    Step,
    StepAttempt,
    StepResult,
    Steps,
    StepState,
    ThreadStatus,
)
from shoal.protocol.requests.subscriptions import Change, Edit, Follow, Push, Reset, Subscription, Watch, Watching
from shoal.protocol.requests.threads import (
    Ancestor,
    Branches,
    Checkpoint,
    Checkpoints,
    CommonAncestor,
    Deleted,
    DeleteThread,
    Discard,
    Discarded,
    Heads,
    History,
    Load,
    Move,
    Moved,
    Prune,
    PruneReport,
    Save,
    Saved,
)

SingleWrite = (
    BatchWrite
    | RefreshItems
    | SweepItems
    | IndexItems
    | UnindexItems
    | Patch
    | Begin
    | DeleteDocument
    | Replace
    | Updates
    | PutSnapshot
    | BeginStep
    | ProgressStep
    | EndStep
    | ResolveStep
    | MoveThread
    | DeleteThread
    | PutSchema
    | Discard
    | TrimEvents
    | SetRetention
    | DrawRights
    | ReleaseRights
    | TransferRights
)
WriteReply = (
    BatchAnswer
    | ItemsRefreshed
    | ItemsSwept
    | ItemsIndexed
    | DocumentJson
    | Begun
    | SnapshotKept
    | Step
    | Standing
    | Deleted
    | Discarded
    | EventsTrimmed
    | Retention
    | SchemaVersion
    | Rights
)
AnyWrite = SingleWrite | Batch
ObjectRead = (
    Load
    | History
    | Heads
    | ReadLabels
    | CommonAncestor
    | VerifyCheckpoints
    | Explain
    | ReadJournal
    | ReadConsumer
    | ReadConsumers
    | ReadSnapshot
    | ReadQueue
    | ReadQueueEntry
    | ListWorklists
    | ReadDocument
    | ReadDocumentJson
    | ReadConflicts
    | ReadMoment
    | ReadDocumentAt
    | ReadCounter
    | ReadRegister
    | ReadSet
    | ContainsMembers
    | ReadBudget
    | ReadMap
    | GetItems
    | SearchItems
    | RankItems
    | ListNamespaces
    | ListItemIndexes
    | ReadStep
    | ListSteps
    | ReadStanding
    | ReadSchema
    | ReadViolations
    | ReadPlace
    | ReadRetention
)
AnyRead = ListThreads | ObjectRead | MultiRead | ListObjects | ListSpaces | Status | Cluster | CatchUp | Announce | ReadPresence
AnyRequest = AnyWrite | AnyRead | Prune | Trim
AnyReply = (
    WriteReply
    | BatchReply
    | MultiReply
    | Announced
    | Presence
    | Checkpoint
    | Checkpoints
    | Branches
    | Labels
    | Ancestor
    | Verified
    | Explained
    | Events
    | Consumers
    | Snapshot
    | QueueEntries
    | Worklists
    | DocumentState
    | Conflicts
    | Moment
    | CounterValue
    | Siblings
    | SetMembers
    | MembersContained
    | BudgetState
    | MapEntries
    | Steps
    | SchemaVersions
    | Violations
    | CaughtUp
    | Names
    | ThreadNames
    | PruneReport
    | TrimReport
    | ItemsFound
    | ItemsPage
    | RankedItems
    | Namespaces
    | ItemIndexes
    | NodeStatus
    | ClusterView
)

__all__ = [
    "ANY",
    "NIL",
    "NO_HEAD",
    "NO_ITEM",
    "Ack",
    "Add",
    "AddEntry",
    "Added",
    "AlterEntry",
    "AlterSet",
    "Ancestor",
    "Annotate",
    "Annotated",
    "Announce",
    "Announced",
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
    "Begin",
    "BeginStep",
    "Begun",
    "Branches",
    "BudgetConflict",
    "BudgetState",
    "CatchUp",
    "CaughtUp",
    "Change",
    "Checkpoint",
    "Checkpoints",
    "Claim",
    "Claimed",
    "Cluster",
    "ClusterView",
    "CommonAncestor",
    "Conflicts",
    "ConsumerState",
    "Consumers",
    "ContainsMembers",
    "CounterValue",
    "Damage",
    "DeleteDocument",
    "DeleteItem",
    "DeleteThread",
    "Deleted",
    "Dequeue",
    "Dequeued",
    "Discard",
    "Discarded",
    "DocumentJson",
    "DocumentState",
    "DrawRights",
    "Durability",
    "Edit",
    "EndStep",
    "Enqueue",
    "Enqueued",
    "EntryAdded",
    "EntryPut",
    "EntryRemoved",
    "Event",
    "Events",
    "EventsTrimmed",
    "Explain",
    "Explained",
    "Finish",
    "Follow",
    "FollowPresence",
    "GetItems",
    "Grant",
    "Granted",
    "Heads",
    "History",
    "Holder",
    "IndexItems",
    "Item",
    "ItemDeleted",
    "ItemIndex",
    "ItemIndexes",
    "ItemPut",
    "ItemSibling",
    "ItemsFound",
    "ItemsIndexed",
    "ItemsPage",
    "ItemsRefreshed",
    "ItemsSwept",
    "Labelled",
    "Labels",
    "ListItemIndexes",
    "ListNamespaces",
    "ListObjects",
    "ListSpaces",
    "ListSteps",
    "ListThreads",
    "ListWorklists",
    "Load",
    "MapEntries",
    "MapEntry",
    "Match",
    "Member",
    "MembersContained",
    "Moment",
    "Move",
    "MoveThread",
    "Moved",
    "MultiRead",
    "MultiReply",
    "Names",
    "Namespaces",
    "NodeStatus",
    "Note",
    "ObjectKind",
    "ObjectRead",
    "Overwritten",
    "Patch",
    "Place",
    "Presence",
    "Present",
    "ProgressStep",
    "Prune",
    "PruneReport",
    "Purge",
    "Purged",
    "Push",
    "PutEntry",
    "PutItem",
    "PutSchema",
    "PutSnapshot",
    "QueueEntries",
    "QueueEntry",
    "QueueItem",
    "RankItems",
    "Ranked",
    "RankedItems",
    "ReachPlace",
    "Read",
    "ReadBudget",
    "ReadConflicts",
    "ReadConsumer",
    "ReadConsumers",
    "ReadCounter",
    "ReadDocument",
    "ReadDocumentAt",
    "ReadDocumentJson",
    "ReadJournal",
    "ReadLabels",
    "ReadMap",
    "ReadMoment",
    "ReadPlace",
    "ReadPresence",
    "ReadQueue",
    "ReadQueueEntry",
    "ReadRegister",
    "ReadRetention",
    "ReadSchema",
    "ReadSet",
    "ReadSnapshot",
    "ReadStanding",
    "ReadStep",
    "ReadViolations",
    "RefreshItems",
    "Refused",
    "ReleaseRights",
    "RemoveEntry",
    "Replace",
    "Reply",
    "Request",
    "Reset",
    "ResolveStep",
    "Retention",
    "Rights",
    "RootKind",
    "Save",
    "Saved",
    "SchemaVersion",
    "SchemaVersions",
    "SearchItems",
    "SearchPlan",
    "SetAltered",
    "SetMembers",
    "SetRetention",
    "Sibling",
    "Siblings",
    "SingleWrite",
    "Snapshot",
    "SnapshotKept",
    "Spend",
    "Spent",
    "Standing",
    "Status",
    "Step",
    "StepAttempt",
    "StepResult",
    "StepState",
    "Steps",
    "Subscription",
    "SweepItems",
    "ThreadNames",
    "ThreadStatus",
    "TransferRights",
    "Trim",
    "TrimEvents",
    "TrimReport",
    "UnindexItems",
    "Unlabel",
    "Unlabelled",
    "Update",
    "Updated",
    "Updates",
    "Verified",
    "VerifyCheckpoints",
    "Violation",
    "Violations",
    "Watch",
    "Watching",
    "Worklist",
    "Worklists",
    "Write",
    "WriteReply",
]
