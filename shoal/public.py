"""The names that users write, such as `shoal.open` and `shoal.Thread`: the one list of them.

`import shoal` does not import this module; the first use of a name does. It
imports the client, but neither a node nor the network.
"""

from __future__ import annotations

from shoal import errors, replies, sync
from shoal.client.batch import (
    Batch,
    BatchBudget,
    BatchCounter,
    BatchItems,
    BatchJournal,
    BatchMap,
    BatchRegister,
    BatchSet,
    BatchThread,
    Pending,
)
from shoal.client.document.changes import DocumentChange, DocumentConflict
from shoal.client.document.compaction import Compaction
from shoal.client.document.document import Document
from shoal.client.items.embedding import Embedding
from shoal.client.items.item import Explanation, Item, ItemChange
from shoal.client.items.items import Items
from shoal.client.jobs import Job
from shoal.client.leases import Lease, Leasing
from shoal.client.presence import Presence, PresenceChange, PresentMember
from shoal.client.reading import (
    CounterReading,
    Found,
    ItemsReading,
    MapReading,
    Reading,
    RegisterReading,
    SetReading,
    ThreadReading,
    WorklistReading,
)
from shoal.client.schemas import Schemas, SchemaVersion
from shoal.client.store import Space, Store
from shoal.client.subjects import Subjects
from shoal.client.thread.autosave import Autosave
from shoal.client.thread.branches import Branch
from shoal.client.thread.consumers import Consumer, ConsumerInfo
from shoal.client.thread.declared import Violation
from shoal.client.thread.inbox import Inbox, Message, Sent
from shoal.client.thread.inspect import Verified, Why
from shoal.client.thread.journal import Appended, Journal, Retention
from shoal.client.thread.loop import Loop
from shoal.client.thread.queues import Finish
from shoal.client.thread.resume import Reason, Resumption
from shoal.client.thread.status import Standing
from shoal.client.thread.step_log import Beginning, Step
from shoal.client.thread.thread import Thread
from shoal.client.thread.worklist import Done, Worklist, WorklistItem, WorklistProgress
from shoal.client.values.budgets import Budget, Rights
from shoal.client.values.maps import Entries, Entry, SharedMap
from shoal.client.values.scalars import Counter, Register, RegisterState
from shoal.client.values.sets import Members, SharedSet
from shoal.client.watching import Change, Reset
from shoal.config import Config
from shoal.crew.context import CrewContext
from shoal.crew.crew import AgentStatus, Crew, CrewStatus, MachineStatus
from shoal.opening import connect, open
from shoal.protocol.requests import (
    NO_HEAD,
    BudgetConflict,
    ClusterView,
    Damage,
    Durability,
    GivenUp,
    LeaseState,
    LostDirectory,
    Member,
    MembersView,
    NodeStatus,
    Note,
    PruneReport,
    QueueTry,
    Quota,
    QuotaView,
    RebuildView,
    RemovedNode,
    Seat,
    Survivor,
    TrimReport,
)
from shoal.protocol.requests import Holder as BudgetHolder
from shoal.schemas import Schema
from shoal.schemas.rule import Flaw
from shoal.values import register
from shoal.values.difference import Change as ValueChange
from shoal.version import __version__
from shoal.workflows.audit import AuditEntry
from shoal.workflows.checkpoint import Checkpoint
from shoal.workflows.differences import Difference
from shoal.workflows.events import Event
from shoal.workflows.merges import Sides
from shoal.workflows.mutations import Mutation
from shoal.workflows.spaces import SpaceDeleted
from shoal.workflows.steps import Attempt, StepRecord
from shoal.workflows.subjects.erasure import SubjectErased, SubjectReport
from shoal.workflows.subjects.tags import SubjectTag

__all__ = [
    "NO_HEAD",
    "AgentStatus",
    "Appended",
    "Attempt",
    "AuditEntry",
    "Autosave",
    "Batch",
    "BatchBudget",
    "BatchCounter",
    "BatchItems",
    "BatchJournal",
    "BatchMap",
    "BatchRegister",
    "BatchSet",
    "BatchThread",
    "Beginning",
    "Branch",
    "Budget",
    "BudgetConflict",
    "BudgetHolder",
    "Change",
    "Checkpoint",
    "ClusterView",
    "Compaction",
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
    "Finish",
    "Flaw",
    "Found",
    "GivenUp",
    "Inbox",
    "Item",
    "ItemChange",
    "Items",
    "ItemsReading",
    "Job",
    "Journal",
    "Lease",
    "LeaseState",
    "Leasing",
    "Loop",
    "LostDirectory",
    "MachineStatus",
    "MapReading",
    "Member",
    "Members",
    "MembersView",
    "Message",
    "Mutation",
    "NodeStatus",
    "Note",
    "Pending",
    "Presence",
    "PresenceChange",
    "PresentMember",
    "PruneReport",
    "QueueTry",
    "Quota",
    "QuotaView",
    "Reading",
    "Reason",
    "RebuildView",
    "Register",
    "RegisterReading",
    "RegisterState",
    "RemovedNode",
    "Reset",
    "Resumption",
    "Retention",
    "Rights",
    "Schema",
    "SchemaVersion",
    "Schemas",
    "Seat",
    "Sent",
    "SetReading",
    "SharedMap",
    "SharedSet",
    "Sides",
    "Space",
    "SpaceDeleted",
    "Standing",
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
    "TrimReport",
    "ValueChange",
    "Verified",
    "Violation",
    "Why",
    "Worklist",
    "WorklistItem",
    "WorklistProgress",
    "WorklistReading",
    "__version__",
    "connect",
    "errors",
    "open",
    "register",
    "replies",
    "sync",
]
