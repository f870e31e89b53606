"""Several reads as one."""

from __future__ import annotations

from typing import final

from shoal.protocol.requests.base import Read, Reply
from shoal.protocol.requests.budgets import BudgetState, ReadBudget
from shoal.protocol.requests.documents import DocumentJson, ReadDocumentJson
from shoal.protocol.requests.items import GetItems, ItemsFound, ItemsPage, SearchItems
from shoal.protocol.requests.journal import ConsumerState, Events, Place, ReadConsumer, ReadJournal, ReadPlace
from shoal.protocol.requests.labels import Labels, ReadLabels
from shoal.protocol.requests.maps import MapEntries, ReadMap
from shoal.protocol.requests.queues import QueueEntries, ReadQueue, ReadQueueEntry
from shoal.protocol.requests.scalars import CounterValue, ReadCounter, ReadRegister, Siblings
from shoal.protocol.requests.sets import ReadSet, SetMembers
from shoal.protocol.requests.steps import ListSteps, ReadStanding, ReadStep, Standing, Step, Steps
from shoal.protocol.requests.threads import Branches, Checkpoint, Checkpoints, Heads, History, Load

__all__ = ["MultiRead", "MultiReply", "Refused"]

PartRead = (
    Load
    | History
    | Heads
    | ReadLabels
    | ReadJournal
    | ReadConsumer
    | ReadPlace
    | ReadQueue
    | ReadQueueEntry
    | ReadStep
    | ListSteps
    | ReadStanding
    | ReadDocumentJson
    | ReadCounter
    | ReadRegister
    | ReadSet
    | ReadMap
    | ReadBudget
    | GetItems
    | SearchItems
)


class Refused(Reply, array_like=True, frozen=True, tag="refused"):
    """The error that one read alone would have had."""

    code: str
    message: str
    detail: dict[str, str | int | float | list[str] | None]


PartAnswer = (
    Checkpoint
    | Checkpoints
    | Branches
    | Labels
    | Events
    | ConsumerState
    | Place
    | QueueEntries
    | Step
    | Steps
    | Standing
    | DocumentJson
    | CounterValue
    | Siblings
    | SetMembers
    | MapEntries
    | BudgetState
    | ItemsFound
    | ItemsPage
    | Refused
)


@final
class MultiRead(Read, array_like=True, frozen=True, tag="multi-read"):
    """Read objects of one partition at one vector; answered by `MultiReply`. No write comes between."""

    reads: list[PartRead]


class MultiReply(Reply, array_like=True, frozen=True, tag="multi-reply"):
    replies: list[PartAnswer]  # In the order of the reads.
