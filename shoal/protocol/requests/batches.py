"""Several writes as one."""

from __future__ import annotations

from typing import final

from shoal.protocol.requests.base import Reply, Write
from shoal.protocol.requests.budgets import Grant, Granted, Spend, Spent
from shoal.protocol.requests.documents import Update, Updated
from shoal.protocol.requests.items import DeleteItem, ItemDeleted, ItemPut, PutItem
from shoal.protocol.requests.journal import Ack, Append, Appended, ConsumerState, Place, ReachPlace
from shoal.protocol.requests.labels import Annotate, Annotated, Claim, Claimed, Unlabel, Unlabelled
from shoal.protocol.requests.maps import AddEntry, AlterEntry, EntryAdded, EntryPut, EntryRemoved, PutEntry, RemoveEntry
from shoal.protocol.requests.queues import Dequeue, Dequeued, Enqueue, Enqueued, Purge, Purged
from shoal.protocol.requests.scalars import Add, Added, Assign, Assigned
from shoal.protocol.requests.sets import AlterSet, SetAltered
from shoal.protocol.requests.steps import EndStep, Step
from shoal.protocol.requests.threads import Move, Moved, Save, Saved

__all__ = ["Batch", "BatchAnswer", "BatchReply", "BatchWrite"]

BatchWrite = (
    Save
    | Append
    | Update
    | Add
    | Assign
    | AlterSet
    | Grant
    | Spend
    | PutEntry
    | AddEntry
    | AlterEntry
    | RemoveEntry
    | PutItem
    | DeleteItem
    | Ack
    | Move
    | Annotate
    | Unlabel
    | Claim
    | Enqueue
    | Dequeue
    | Purge
    | ReachPlace
    | EndStep
)
BatchAnswer = (
    Saved
    | Appended
    | Updated
    | Added
    | Assigned
    | SetAltered
    | Granted
    | Spent
    | EntryPut
    | EntryAdded
    | EntryRemoved
    | ItemPut
    | ItemDeleted
    | ConsumerState
    | Moved
    | Annotated
    | Unlabelled
    | Claimed
    | Enqueued
    | Dequeued
    | Purged
    | Place
    | Step
)


@final
class Batch(Write, array_like=True, frozen=True, tag="batch"):
    """Apply writes as one operation, all or none; answered by `BatchReply`. They must share a partition."""

    writes: list[BatchWrite]


class BatchReply(Reply, array_like=True, frozen=True, tag="batch-reply"):
    replies: list[BatchAnswer]
