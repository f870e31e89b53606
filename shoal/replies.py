"""A node's replies as they are: those to single writes, as a batch shows them (`batch.counter("n").add(1)` is a
`Pending[Added]`), and signed statements.
"""

from __future__ import annotations

from shoal.protocol.requests import (
    Added,
    Appended,
    Assigned,
    BranchDeleted,
    ConsumerState,
    Dequeued,
    Enqueued,
    EntryAdded,
    EntryPut,
    EntryRemoved,
    EventErased,
    Granted,
    ItemCompleted,
    ItemDeleted,
    ItemPut,
    LogHead,
    Saved,
    SetAltered,
    Spent,
    Statement,
    StateRoot,
    Step,
    StepAttempt,
    StepResult,
)

__all__ = [
    "Added",
    "Appended",
    "Assigned",
    "BranchDeleted",
    "ConsumerState",
    "Dequeued",
    "Enqueued",
    "EntryAdded",
    "EntryPut",
    "EntryRemoved",
    "EventErased",
    "Granted",
    "ItemCompleted",
    "ItemDeleted",
    "ItemPut",
    "LogHead",
    "Saved",
    "SetAltered",
    "Spent",
    "StateRoot",
    "Statement",
    "Step",
    "StepAttempt",
    "StepResult",
]
