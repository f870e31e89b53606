"""A thread's queues: its inbox, whose name is empty, and its worklists."""

from __future__ import annotations

from msgspec import Struct, field

from shoal.protocol.requests.base import ObjectRead, ObjectWrite, Reply
from shoal.protocol.requests.declared import operation

__all__ = [
    "NIL",
    "Dequeue",
    "Dequeued",
    "Enqueue",
    "Enqueued",
    "Finish",
    "ListWorklists",
    "Purge",
    "Purged",
    "QueueEntries",
    "QueueEntry",
    "QueueItem",
    "ReadQueue",
    "ReadQueueEntry",
    "Worklist",
    "Worklists",
]

NIL = b"\xc0"  # msgpack of None.


class QueueItem(Struct, array_like=True, frozen=True):
    key: str | None  # The same key again is the same entry, until it is forgotten.
    value: bytes


@operation(batch=True)
class Enqueue(ObjectWrite["Enqueued"], array_like=True, frozen=True, tag="enqueue"):
    """Put items into a queue."""

    thread: str
    queue: str
    items: list[QueueItem]
    by: str = ""


class Enqueued(Reply, array_like=True, frozen=True, tag="enqueued"):
    ids: list[str]  # 64 hex digits each.
    added: list[bool]  # False: its key was there already.


@operation(batch=True)
class Dequeue(ObjectWrite["Dequeued"], array_like=True, frozen=True, tag="dequeue"):
    """Finish an entry: it is pending no more.

    With `once` it is refused if somebody has finished it; without, the first one's result is the answer.
    """

    thread: str
    queue: str
    id: str
    by: str = ""
    result: bytes = NIL
    once: bool = False


class Dequeued(Reply, array_like=True, frozen=True, tag="dequeued"):
    first: bool  # False: it was finished already, and nothing was written.
    by: str  # Who finished it first.
    result: bytes


@operation(batch=True)
class Purge(ObjectWrite["Purged"], array_like=True, frozen=True, tag="purge"):
    """Forget entries that were finished before a time, the oldest first."""

    thread: str
    queue: str
    before_ms: int
    limit: int = 1000


class Purged(Reply, array_like=True, frozen=True, tag="purged"):
    count: int
    more: bool


@operation(multi_read=True)
class ReadQueue(ObjectRead["QueueEntries"], array_like=True, frozen=True, tag="read-queue"):
    """What is pending, or with `finished` what is not, in order."""

    thread: str
    queue: str
    after: str = ""  # An entry's `place`.
    limit: int = 1000
    finished: bool = False


@operation(multi_read=True)
class ReadQueueEntry(ObjectRead["QueueEntries"], array_like=True, frozen=True, tag="read-queue-entry"):
    """One entry, which holds it or nothing."""

    thread: str
    queue: str
    id: str


class Finish(Struct, array_like=True, frozen=True):
    by: str
    wall_ms: int
    result: bytes


class QueueEntry(Struct, array_like=True, frozen=True):
    id: str
    place: str  # In the listing; opaque.
    key: str | None
    by: str
    wall_ms: int
    value: bytes
    finishes: list[Finish] = field(default_factory=list)  # The first counts; more than one: they did not know of each other.
    others: list[bytes] = field(default_factory=list)  # Other values that were put under its key.


class QueueEntries(Reply, array_like=True, frozen=True, tag="queue-entries"):
    entries: list[QueueEntry]
    more: bool  # Ask again with after=entries[-1].place.
    pending: int  # In the whole queue.
    finished: int


class ListWorklists(ObjectRead["Worklists"], array_like=True, frozen=True, tag="list-worklists"):
    """A thread's worklists."""

    thread: str


class Worklist(Struct, array_like=True, frozen=True):
    name: str
    pending: int
    finished: int


class Worklists(Reply, array_like=True, frozen=True, tag="worklists"):
    items: list[Worklist]
