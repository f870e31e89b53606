"""The names that users write, such as `shoal.open` and `shoal.Thread`: the one list of them.

`import shoal` does not import this module; the first use of a name does. It
imports the client, but neither a node nor the network.
"""

from __future__ import annotations

from shoal import __version__, errors, replies, sync
from shoal.client.batch import (
    Batch,
    BatchBudget,
    BatchCounter,
    BatchItems,
    BatchJournal,
    BatchList,
    BatchMap,
    BatchRegister,
    BatchSet,
    BatchThread,
    Pending,
)
from shoal.client.reading import (
    CounterReading,
    Found,
    ItemsReading,
    ListReading,
    MapReading,
    Reading,
    RegisterReading,
    SetReading,
    ThreadReading,
    WorklistReading,
)
from shoal.client.store import Backup, MetricSample, Space, Store
from shoal.client.watching import Change, Reset, Subjects
from shoal.config import Config
from shoal.crew.crew import AgentStatus, Crew, CrewStatus, MachineStatus
from shoal.crew.driving import CrewContext
from shoal.kinds.budget.handle import Budget, Rights
from shoal.kinds.counter.handle import Counter
from shoal.kinds.document.handle.changes import Compaction, DocumentChange, DocumentConflict
from shoal.kinds.document.handle.document import Document
from shoal.kinds.file.handle import FileListing, FileStream
from shoal.kinds.items.handle.item import Embedding, Explanation, Item, ItemChange
from shoal.kinds.items.handle.items import Items
from shoal.kinds.journal.flows import Event
from shoal.kinds.journal.handle import Appended, Consumer, ConsumerInfo, Journal, Loop, Retention
from shoal.kinds.lease.handle.leases import Lease, Leasing
from shoal.kinds.list.handle import ListItem, ListItems, SharedList
from shoal.kinds.map.handle import Entries, Entry, SharedMap
from shoal.kinds.presence.handle import Presence, PresenceChange, PresentMember
from shoal.kinds.redaction.flows import PatternToSet
from shoal.kinds.redaction.handle import SpaceRedaction
from shoal.kinds.register.handle import PastValue, Register, RegisterState
from shoal.kinds.retention.flows import Retained, RetainedThread
from shoal.kinds.retention.handle import SpaceRetention
from shoal.kinds.schema.handle import Schemas, SchemaVersion
from shoal.kinds.set.handle import Members, SharedSet
from shoal.kinds.step.flows import Attempt, StepRecord
from shoal.kinds.step.handle.resume import Reason, Resumption, Standing
from shoal.kinds.step.handle.steps import Beginning, Step
from shoal.kinds.thread.flows.audit import AuditEntry, Moment
from shoal.kinds.thread.flows.checkpoints import Checkpoint
from shoal.kinds.thread.flows.merging import Difference, Sides
from shoal.kinds.thread.flows.mutations import Mutation
from shoal.kinds.thread.handle.autosave import Autosave
from shoal.kinds.thread.handle.declared import Violation
from shoal.kinds.thread.handle.history import Branch, Verified, Why
from shoal.kinds.thread.handle.thread import Thread
from shoal.kinds.tiering.handle import SpaceTiering
from shoal.kinds.worklist.handle.queues import Finish, Job
from shoal.kinds.worklist.handle.worklist import Done, Inbox, Message, Sent, Worklist, WorklistItem, WorklistProgress
from shoal.opening import connect, open
from shoal.protocol.requests import (
    NO_HEAD,
    BackupView,
    BudgetConflict,
    BudgetPoint,
    ClusterView,
    ConditionsView,
    Damage,
    Durability,
    FileInfo,
    GivenUp,
    Hit,
    KindUse,
    LeaseState,
    LogHolder,
    LostDirectory,
    Member,
    MembersView,
    NodeStatus,
    Note,
    ObjectUse,
    OpenStep,
    PrefixUse,
    PruneReport,
    Question,
    QueueTry,
    Quota,
    QuotaView,
    RebuildView,
    RedactionPattern,
    RedactionRules,
    RedactionTried,
    RemovedNode,
    Replaced,
    RetentionRule,
    RetentionRules,
    Seat,
    SpaceUsageView,
    SpaceUse,
    StandingCondition,
    Survivor,
    ThreadSummary,
    TieringView,
    TrimReport,
    UsagePoint,
    UsageView,
    WorkQueue,
)
from shoal.protocol.requests import Holder as BudgetHolder
from shoal.protocol.session import noting as redactions
from shoal.schemas import Schema
from shoal.schemas.rule import Flaw
from shoal.values import register
from shoal.values.difference import Change as ValueChange
from shoal.values.registry import FileRef
from shoal.workflows.spaces import SpaceDeleted
from shoal.workflows.subjects import SubjectErased, SubjectReport, SubjectTag
from shoal.workflows.transfer.importing import ImportReport

__all__ = [
    "NO_HEAD",
    "AgentStatus",
    "Appended",
    "Attempt",
    "AuditEntry",
    "Autosave",
    "Backup",
    "BackupView",
    "Batch",
    "BatchBudget",
    "BatchCounter",
    "BatchItems",
    "BatchJournal",
    "BatchList",
    "BatchMap",
    "BatchRegister",
    "BatchSet",
    "BatchThread",
    "Beginning",
    "Branch",
    "Budget",
    "BudgetConflict",
    "BudgetHolder",
    "BudgetPoint",
    "Change",
    "Checkpoint",
    "ClusterView",
    "Compaction",
    "ConditionsView",
    "Config",
    "Consumer",
    "ConsumerInfo",
    "Counter",
    "CounterReading",
    "Crew",
    "CrewContext",
    "CrewStatus",
    "Damage",
    "Difference",
    "Document",
    "DocumentChange",
    "DocumentConflict",
    "Done",
    "Durability",
    "Embedding",
    "Entries",
    "Entry",
    "Event",
    "Explanation",
    "FileInfo",
    "FileListing",
    "FileRef",
    "FileStream",
    "Finish",
    "Flaw",
    "Found",
    "GivenUp",
    "Hit",
    "ImportReport",
    "Inbox",
    "Item",
    "ItemChange",
    "Items",
    "ItemsReading",
    "Job",
    "Journal",
    "KindUse",
    "Lease",
    "LeaseState",
    "Leasing",
    "ListItem",
    "ListItems",
    "ListReading",
    "LogHolder",
    "Loop",
    "LostDirectory",
    "MachineStatus",
    "MapReading",
    "Member",
    "Members",
    "MembersView",
    "Message",
    "MetricSample",
    "Moment",
    "Mutation",
    "NodeStatus",
    "Note",
    "ObjectUse",
    "OpenStep",
    "PastValue",
    "PatternToSet",
    "Pending",
    "PrefixUse",
    "Presence",
    "PresenceChange",
    "PresentMember",
    "PruneReport",
    "Question",
    "QueueTry",
    "Quota",
    "QuotaView",
    "Reading",
    "Reason",
    "RebuildView",
    "RedactionPattern",
    "RedactionRules",
    "RedactionTried",
    "Register",
    "RegisterReading",
    "RegisterState",
    "RemovedNode",
    "Replaced",
    "Reset",
    "Resumption",
    "Retained",
    "RetainedThread",
    "Retention",
    "RetentionRule",
    "RetentionRules",
    "Rights",
    "Schema",
    "SchemaVersion",
    "Schemas",
    "Seat",
    "Sent",
    "SetReading",
    "SharedList",
    "SharedMap",
    "SharedSet",
    "Sides",
    "Space",
    "SpaceDeleted",
    "SpaceRedaction",
    "SpaceRetention",
    "SpaceTiering",
    "SpaceUsageView",
    "SpaceUse",
    "Standing",
    "StandingCondition",
    "Step",
    "StepRecord",
    "Store",
    "SubjectErased",
    "SubjectReport",
    "SubjectTag",
    "Subjects",
    "Survivor",
    "Thread",
    "ThreadReading",
    "ThreadSummary",
    "TieringView",
    "TrimReport",
    "UsagePoint",
    "UsageView",
    "ValueChange",
    "Verified",
    "Violation",
    "Why",
    "WorkQueue",
    "Worklist",
    "WorklistItem",
    "WorklistProgress",
    "WorklistReading",
    "__version__",
    "connect",
    "errors",
    "open",
    "redactions",
    "register",
    "replies",
    "sync",
]
