"""A thread's queues: its inbox, whose name is empty, and its worklists."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct, field

from shoal.errors import NotFound, Taken
from shoal.kinds.worklist.state import identify
from shoal.protocol.base import ObjectRead, ObjectWrite, Reply
from shoal.protocol.declared import Http, Part, Waits, operation
from shoal.protocol.fields import Elements, Named, Positive, Seconds, Time, Value

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

_INBOX = "/threads/{thread}/inbox"
_WORKLIST = "/threads/{thread}/worklists/{worklist}"
_TO_INBOX = {"queue": ""}
# An item of a worklist has a key, of which its id is made; a message has an id alone.
_BY_KEY = Part({"item": str}, ("id",), lambda key: (identify(key).hex(),))


class QueueItem(Struct, array_like=True, frozen=True):
    """An entry to put into a queue."""

    key: str | None  # Items with the same key are one entry, until it is forgotten.
    value: Value


class QueuePlan(Struct, array_like=True, frozen=True):
    """How entries are to be handed out to those who claim them."""

    priority: int = 0  # 0 to 9, the greatest first.
    delay_ms: Annotated[Seconds, Named("delay_s")] = 0  # How long nobody gets them.
    group: str = ""  # The group that they count in.
    group_max: int = 0  # How many entries of the group are handed out at once; 0: as many as there are.
    attempts_max: int = 0  # After so many attempts they are dead letters; 0: as the node is configured.


@operation(
    action="append",
    batch=True,
    http=(
        Http(
            "POST",
            _INBOX,
            "Send messages to the thread (200 if their keys were all sent before)",
            ops=("send",),
            created="added",
            example={"items": [{"key": "message-1", "value": {"text": "stop"}}], "by": "ada"},
            sets=_TO_INBOX,
        ),
        Http(
            "POST",
            _WORKLIST,
            "Add items, each key once (200 if they were all added before)",
            ops=("add-items",),
            created="added",
            example={"items": [{"key": "page-1", "value": {"url": "/1"}}], "by": "planner"},
        ),
    ),
)
class Enqueue(ObjectWrite["Enqueued"], array_like=True, frozen=True, tag="enqueue"):
    """Put items into a queue."""

    thread: str
    queue: Annotated[str, Named("worklist")]
    items: Elements[QueueItem]
    by: str = ""
    plan: QueuePlan | None = None  # Of all of them.


class Enqueued(Reply, array_like=True, frozen=True, tag="enqueued"):
    """The entries' ids, and which of them are new, in the order of the request."""

    ids: list[str]  # 64 hex digits each.
    added: list[bool]  # False if the key was there before.


@operation(
    discloses=True,
    frees=True,
    batch=True,
    http=(
        Http(
            "POST",
            _INBOX + "/{id}/take",
            "Take a message, so that nobody else gets it",
            ops=("take",),
            errors=(NotFound, Taken),
            example={"by": "worker-1"},
            sets={**_TO_INBOX, "once": True},
        ),
        Http(
            "POST",
            _WORKLIST + "/items/{item}/done",
            "Mark an item as done. If it was done before, the answer has the first result, which counts",
            ops=("done",),
            errors=(NotFound, Taken),
            example={"result": "read", "by": "worker-1"},
            parts=(_BY_KEY,),
        ),
    ),
)
class Dequeue(ObjectWrite["Dequeued"], array_like=True, frozen=True, tag="dequeue"):
    """Finish an entry, which is then no longer pending.

    With `once`, the request is rejected if the entry was finished before; without it, the answer has the first result.
    """

    thread: str
    queue: Annotated[str, Named("worklist")]
    id: str
    by: str = ""
    result: Value = NIL
    once: bool = False  # Reject it if the entry was finished before.


class Dequeued(Reply, array_like=True, frozen=True, tag="dequeued"):
    """The finish that counts."""

    first: bool  # False if it was finished before; then nothing was written.
    by: str  # The name of the first finisher.
    result: Value


@operation(
    frees=True,
    batch=True,
    http=(
        Http(
            "POST",
            _INBOX + ":forget",
            "Forget messages that were taken before a time, and their keys; a bounded number per request",
            example={"before": "2026-01-01T00:00:00Z"},
            sets=_TO_INBOX,
        ),
        Http(
            "POST",
            _WORKLIST + "/forget",
            "Forget items that were done before a time; they can be added again; a bounded number per request",
            example={"before": "2026-01-01T00:00:00Z"},
        ),
    ),
)
class Purge(ObjectWrite["Purged"], array_like=True, frozen=True, tag="purge"):
    """Forget entries that were finished before a time, the oldest first."""

    thread: str
    queue: Annotated[str, Named("worklist")]
    before_ms: Annotated[Time, Named("before")]  # With a time zone: forget entries that were taken or done before it.
    limit: Positive = 1000


class Purged(Reply, array_like=True, frozen=True, tag="purged"):
    """The number of entries that were forgotten, and whether there are more."""

    count: int
    more: bool  # Ask again to forget the rest.


@operation(
    multi_read=True,
    http=(
        Http(
            "GET",
            _INBOX,
            "Messages that wait, or those that were taken; with `wait`, once there are some",
            ops=("inbox",),
            sets=_TO_INBOX,
            waits=Waits("enqueue", "entries"),
        ),
        Http(
            "GET",
            _WORKLIST,
            "Items that are to be done, or those that are done; with `wait`, once there are some",
            ops=("worklist",),
            errors=(NotFound,),
            waits=Waits("enqueue", "entries"),
        ),
    ),
)
class ReadQueue(ObjectRead["QueueEntries"], array_like=True, frozen=True, tag="read-queue"):
    """Read pending entries in order, or finished ones with `finished`, or dead letters with `dead`."""

    thread: str
    queue: Annotated[str, Named("worklist")]
    after: str = ""  # An entry's `place`.
    limit: Positive = 1000
    finished: bool = False  # List entries that were taken or done, instead of those that wait.
    dead: bool = False  # List dead letters, instead of entries that wait.


@operation(
    multi_read=True,
    http=(
        Http("GET", _INBOX + "/{id}", "A message, and its takers", sets=_TO_INBOX, one="entries"),
        Http("GET", _WORKLIST + "/items/{item}", "An item by its key, and its result", one="entries", parts=(_BY_KEY,)),
    ),
)
class ReadQueueEntry(ObjectRead["QueueEntries"], array_like=True, frozen=True, tag="read-queue-entry"):
    """Read one entry, pending or finished; the reply is empty if there is none."""

    thread: str
    queue: Annotated[str, Named("worklist")]
    id: str


class Finish(Struct, array_like=True, frozen=True):
    """One finish of an entry."""

    by: str
    wall_ms: int
    result: Value


class QueueTry(Struct, array_like=True, frozen=True):
    """The last time that an entry was handed out, or given back."""

    attempt: int  # How often it was handed out by then.
    state: str  # "claimed", "waiting" or "dead". If a claim has ended by itself, it still says "claimed".
    by: str
    wall_ms: int
    fence: int  # The claim's fencing number.
    reason: str  # Why it was given back, or is a dead letter.
    not_before_ms: int  # Nobody gets it earlier.


class QueueEntry(Struct, array_like=True, frozen=True):
    """An entry of a queue."""

    id: str
    place: str  # Its place in the listing, for `after`; opaque.
    key: str | None
    by: str
    wall_ms: int
    value: Value
    finishes: list[Finish] = field(default_factory=list)  # The first counts; there are several if it was finished concurrently.
    others: list[Value] = field(default_factory=list)  # Other values that were put concurrently under its key.
    tried: QueueTry | None = None  # None if nobody has claimed it.


class QueueEntries(Reply, array_like=True, frozen=True, tag="queue-entries"):
    """A page of a queue."""

    entries: list[QueueEntry]
    more: bool  # Ask again with after=entries[-1].place.
    pending: int  # In the whole queue.
    finished: int
    dead: int = 0  # Dead letters, in the whole queue.


@operation(http=Http("GET", "/threads/{thread}/worklists", "The worklists"))
class ListWorklists(ObjectRead["Worklists"], array_like=True, frozen=True, tag="list-worklists"):
    """List a thread's worklists."""

    thread: str


class Worklist(Struct, array_like=True, frozen=True):
    """A worklist and the number of its entries."""

    name: str
    pending: int
    finished: int
    dead: int = 0  # Dead letters.


class Worklists(Reply, array_like=True, frozen=True, tag="worklists"):
    """All worklists of a thread."""

    items: Annotated[list[Worklist], Named("worklists")]
