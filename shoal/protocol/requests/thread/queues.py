"""A thread's queues: its inbox, whose name is empty, and its worklists."""

from __future__ import annotations

from msgspec import Struct, field

from shoal.protocol.fields import Elements
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
    "QueuePlan",
    "QueueTry",
    "ReadQueue",
    "ReadQueueEntry",
    "Worklist",
    "Worklists",
]

NIL = b"\xc0"  # msgpack of None.


class QueueItem(Struct, array_like=True, frozen=True):
    """An entry to put into a queue."""

    key: str | None  # Items with the same key are one entry, until it is forgotten.
    value: bytes


class QueuePlan(Struct, array_like=True, frozen=True):
    """How entries are to be handed out to those who claim them."""

    priority: int = 0  # 0 to 9, the greatest first.
    delay_ms: int = 0  # How long nobody gets them.
    group: str = ""
    group_max: int = 0  # How many entries of the group are handed out at once; 0: as many as there are.
    attempts_max: int = 0  # After so many attempts they are dead letters; 0: as the node is configured.


@operation(action="append", batch=True)
class Enqueue(ObjectWrite["Enqueued"], array_like=True, frozen=True, tag="enqueue"):
    """Put items into a queue."""

    thread: str
    queue: str
    items: Elements[QueueItem]
    by: str = ""
    plan: QueuePlan | None = None  # Of all of them.


class Enqueued(Reply, array_like=True, frozen=True, tag="enqueued"):
    """The entries' ids, and which of them are new, in the order of the request."""

    ids: list[str]  # 64 hex digits each.
    added: list[bool]  # False if the key was there before.


@operation(discloses=True, frees=True, batch=True)
class Dequeue(ObjectWrite["Dequeued"], array_like=True, frozen=True, tag="dequeue"):
    """Finish an entry, which is then no longer pending.

    With `once`, the request is rejected if the entry was finished before; without it, the answer has the first result.
    """

    thread: str
    queue: str
    id: str
    by: str = ""
    result: bytes = NIL
    once: bool = False


class Dequeued(Reply, array_like=True, frozen=True, tag="dequeued"):
    """The finish that counts."""

    first: bool  # False if it was finished before; then nothing was written.
    by: str  # The name of the first finisher.
    result: bytes


@operation(frees=True, batch=True)
class Purge(ObjectWrite["Purged"], array_like=True, frozen=True, tag="purge"):
    """Forget entries that were finished before a time, the oldest first."""

    thread: str
    queue: str
    before_ms: int
    limit: int = 1000


class Purged(Reply, array_like=True, frozen=True, tag="purged"):
    """The number of entries that were forgotten, and whether there are more."""

    count: int
    more: bool


@operation(multi_read=True)
class ReadQueue(ObjectRead["QueueEntries"], array_like=True, frozen=True, tag="read-queue"):
    """Read pending entries in order, or finished ones with `finished`, or dead letters with `dead`."""

    thread: str
    queue: str
    after: str = ""  # An entry's `place`.
    limit: int = 1000
    finished: bool = False
    dead: bool = False


@operation(multi_read=True)
class ReadQueueEntry(ObjectRead["QueueEntries"], array_like=True, frozen=True, tag="read-queue-entry"):
    """Read one entry, pending or finished; the reply is empty if there is none."""

    thread: str
    queue: str
    id: str


class Finish(Struct, array_like=True, frozen=True):
    """One finish of an entry."""

    by: str
    wall_ms: int
    result: bytes


class QueueTry(Struct, array_like=True, frozen=True):
    """The last time that an entry was handed out, or given back."""

    attempt: int
    state: str  # "claimed", "waiting" or "dead". If a claim has ended by itself, it still says "claimed".
    by: str
    wall_ms: int
    fence: int
    reason: str
    not_before_ms: int  # Nobody gets it earlier.


class QueueEntry(Struct, array_like=True, frozen=True):
    """An entry of a queue."""

    id: str
    place: str  # Its place in the listing, for `after`; opaque.
    key: str | None
    by: str
    wall_ms: int
    value: bytes
    finishes: list[Finish] = field(default_factory=list)  # The first counts; there are several if it was finished concurrently.
    others: list[bytes] = field(default_factory=list)  # Other values that were put concurrently under its key.
    tried: QueueTry | None = None


class QueueEntries(Reply, array_like=True, frozen=True, tag="queue-entries"):
    """A page of a queue."""

    entries: list[QueueEntry]
    more: bool  # Ask again with after=entries[-1].place.
    pending: int  # In the whole queue.
    finished: int
    dead: int = 0


class ListWorklists(ObjectRead["Worklists"], array_like=True, frozen=True, tag="list-worklists"):
    """List a thread's worklists."""

    thread: str


class Worklist(Struct, array_like=True, frozen=True):
    """A worklist and the number of its entries."""

    name: str
    pending: int
    finished: int
    dead: int = 0


class Worklists(Reply, array_like=True, frozen=True, tag="worklists"):
    """All worklists of a thread."""

    items: list[Worklist]
