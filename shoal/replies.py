"""A node's replies to single writes, as a batch shows them: `batch.counter("n").add(1)` is a `Pending[Added]`."""

from __future__ import annotations

from shoal.protocol.requests import (
    Added,
    Appended,
    Assigned,
    ConsumerState,
    Dequeued,
    Enqueued,
    EntryAdded,
    EntryPut,
    EntryRemoved,
    Granted,
    ItemCompleted,
    ItemDeleted,
    ItemPut,
    Saved,
    SetAltered,
    Spent,
    Step,
    StepAttempt,
    StepResult,
)

__all__ = [
    "Added",
    "Appended",
    "Assigned",
    "ConsumerState",
    "Dequeued",
    "Enqueued",
    "EntryAdded",
    "EntryPut",
    "EntryRemoved",
    "Granted",
    "ItemCompleted",
    "ItemDeleted",
    "ItemPut",
    "Saved",
    "SetAltered",
    "Spent",
    "Step",
    "StepAttempt",
    "StepResult",
]
