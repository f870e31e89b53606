"""A thread's queues: its inbox, whose name is empty, and its worklists.

Exclusive claims: entries of a worklist, or of the inbox, whose worklist has no name, that are handed out to one worker at
a time. A claim is a lease of an entry; its token is a secret of 32 hex digits, and its fencing number grows.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Struct, field

from shoal.errors import InvalidInput, LeaseLost, NoQuorum, NotFound, Overloaded, Taken
from shoal.kinds.worklist.state import identify
from shoal.protocol.base import (
    Cli,
    Elements,
    Http,
    Moment,
    Named,
    Natural,
    ObjectRead,
    ObjectWrite,
    Part,
    Positive,
    Read,
    Reply,
    Seconds,
    Time,
    Value,
    Waits,
    Would,
    operation,
)

__all__ = [
    "NIL",
    "AttemptBegun",
    "BeginAttempt",
    "ClaimExtended",
    "ClaimItem",
    "CompleteItem",
    "Dequeue",
    "Dequeued",
    "Enqueue",
    "Enqueued",
    "ExtendClaim",
    "FailItem",
    "Finish",
    "ItemClaimed",
    "ItemCompleted",
    "ItemFailed",
    "ItemRevived",
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
    "RecallTry",
    "ReviveItem",
    "TryRecalled",
    "Worklist",
    "Worklists",
]

NIL = b"\xc0"  # msgpack of None.

_INBOX = "/threads/{thread}/inbox"
_WORKLIST = "/threads/{thread}/worklists/{worklist}"
_TO_INBOX = {"queue": ""}
# An item of a worklist has a key, of which its id is made; a message has an id alone.
_BY_KEY = Part({"item": str}, ("id",), lambda key: (identify(key).hex(),))
_KEYS = Part({"keys": list[str]}, ("items",), lambda keys: ([QueueItem(key, NIL) for key in keys],))
_PLAN = Part(
    {"priority": int, "attempts": int},
    ("plan",),
    lambda priority, attempts: (QueuePlan(priority, attempts_max=attempts) if priority or attempts else None,),
)
_MESSAGE = Part({"message": Value, "key": str | None}, ("items",), lambda message, key: ([QueueItem(key, message)],))
_ITEM = Part({"key": str}, ("id",), _BY_KEY.made)
_KEY_OR_ID = {"key": None, "id": None}


def _named(key: str | None, id: str | None) -> tuple[str]:
    """The id of an item that is named by one of both: items that were added without a key have an id alone.

    Raises:
        InvalidInput: both are given, or neither.
    """
    if (key is None) == (id is None):
        raise InvalidInput("give either the item's KEY or its --id. Nothing was written.", field="id")
    return (identify(key).hex() if key is not None else id or "",)


def _claim(ticket: str) -> tuple[int, str]:
    """The fencing number and the token of a claim's ticket.

    Raises:
        InvalidInput: it is none.
    """
    fence, _, token = ticket.partition(".")
    if not (fence.isdecimal() and len(fence) < 19 and token):
        raise InvalidInput(f"a ticket is what claim printed, such as 3.0123…; got {ticket[:80]!r}. Nothing was written.")
    return int(fence), token


def _taken(request: Purge, reply: QueueEntries) -> int:
    """How many entries of a page were finished before the time of a purge."""
    return sum(bool(each.finishes) and each.finishes[0].wall_ms < request.before_ms for each in reply.entries)


def _next_page(read: ReadQueue, reply: QueueEntries) -> ReadQueue | None:
    return msgspec.structs.replace(read, after=reply.entries[-1].place) if reply.more else None


_TICKET_OF = Part({"ticket": str}, ("fence", "token"), _claim)


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
    cli=(
        Cli(
            "inbox send",
            """shoal inbox send writer '{"review": 17}' --key review-17 --url http://127.0.0.1:7400 --space crew""",
            shows="ids",
            help="Send a message to a thread.",
            sets=_TO_INBOX,
            parts=(_MESSAGE,),
            defaults={"key": None},
            options=("key",),
            hides=("plan",),
        ),
        Cli(
            "worklist add",
            "shoal worklist add researcher-1 files a.txt b.txt --data ./state --space crew",
            shows="added",
            help="Add keys to a worklist, and print which of them are new.",
            parts=(_KEYS, _PLAN),
            defaults={"priority": 0, "attempts": 0},
            options=("priority", "attempts"),
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
        Http(
            "POST",
            _WORKLIST + "/entries/{id}/done",
            "Mark an item as done by its id, which one that was added without a key has alone",
            ops=("done-entry",),
            errors=(NotFound, Taken),
            example={"result": "read", "by": "worker-1"},
        ),
    ),
    cli=(
        Cli(
            "inbox take",
            "shoal inbox take writer 5f2a… --by editor --url http://127.0.0.1:7400 --space crew",
            shows="first",
            help="Take a message by its id, so that nobody else gets it.",
            sets={**_TO_INBOX, "once": True},
            hides=("result",),
        ),
        Cli(
            "worklist done",
            "shoal worklist done researcher-1 files a.txt --result 5 --data ./state --space crew",
            help="Mark an item as done. If it was done before, the first result counts, and is printed.",
            parts=(Part({"key": str | None, "id": str | None}, ("id",), _named),),
            defaults=_KEY_OR_ID,
            options=("id",),
            hides=("once",),
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
    would=Would(
        lambda request: (ReadQueue(request.space, request.thread, request.queue, finished=True),),
        lambda request, before, found: Purged((before.count if before else 0) + _taken(request, found), more=False),
        lambda read, reply: _next_page(read, reply),
    ),
    cli=(
        Cli(
            "inbox forget",
            "shoal inbox forget writer 2026-01-01T00:00:00Z --yes --data ./state --space crew",
            shows="count",
            help="Forget messages that were taken before a time, and their keys, and print how many.",
            sets=_TO_INBOX,
            hides=("limit",),
            destroys="Forget the taken messages of thread {thread}",
        ),
        Cli(
            "worklist forget",
            "shoal worklist forget researcher-1 files 2026-01-01T00:00:00Z --yes --data ./state --space crew",
            shows="count",
            help="Forget items that were done before a time, and print how many. They can be added again.",
            hides=("limit",),
            destroys="Forget the done items of worklist {queue} of thread {thread}",
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
    cli=(
        Cli(
            "inbox list",
            "shoal inbox list writer --data ./state --space crew",
            help="List the messages that wait, or with --finished those that were taken, oldest first.",
            sets=_TO_INBOX,
            rows="entries",
            place="place",
            columns=("wall_ms", "id", "key", "by", "finishes.by", "value"),
            hides=("dead",),
        ),
        Cli(
            "worklist list",
            "shoal worklist list researcher-1 files --data ./state --space crew",
            help="List the items that are to be done, or with --finished those that are done, or dead letters with --dead.",
            rows="entries",
            place="place",
            columns=("wall_ms", "key", "value", "finishes.by", "finishes.result", "tried.attempt", "tried.by", "tried.reason"),
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
        Http("GET", _WORKLIST + "/entries/{id}", "An item by its id, and its result", one="entries"),
    ),
    cli=Cli(
        "worklist show",
        "shoal worklist show researcher-1 files a.txt --data ./state --space crew",
        help="Show an item of a worklist, with its attempts and its result.",
        parts=(Part({"key": str | None, "id": str | None}, ("id",), _named),),
        defaults=_KEY_OR_ID,
        options=("id",),
        one="entries",
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
    plan: QueuePlan | None = None  # How it is handed out, if something was said of that. Its delay counts from `wall_ms` on.


class QueueEntries(Reply, array_like=True, frozen=True, tag="queue-entries"):
    """A page of a queue."""

    entries: list[QueueEntry]
    more: bool  # Ask again with after=entries[-1].place.
    pending: int  # In the whole queue.
    finished: int
    dead: int = 0  # Dead letters, in the whole queue.


@operation(
    http=Http("GET", "/threads/{thread}/worklists", "The worklists"),
    cli=Cli(
        "worklist names",
        "shoal worklist names researcher-1 --data ./state --space crew",
        rows="items",
    ),
)
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


_LIST = "/threads/{thread}/worklists/{worklist}"
_TICKET = {"fence": 7, "token": "0" * 32}


@operation(
    discloses=True,
    action="write",
    http=Http(
        "POST",
        f"{_LIST}/claim",
        "Claim an item of a worklist, or wait for one",
        errors=(Overloaded, NoQuorum),
        example={"ttl": 60, "holder": "worker-7", "wait": 10},
    ),
)
class ClaimItem(Read["ItemClaimed"], array_like=True, frozen=True, tag="claim-item"):
    """Claim the next item of a worklist, for one worker.

    A request that is sent again with its token is the same claim. With a `wait` the answer comes once there is an item, or
    after that time; it may come earlier.
    """

    space: str
    thread: str
    worklist: str  # Empty: the inbox.
    ttl: Seconds  # How long the claim lasts after its last renewal.
    holder: str = ""  # The worker's name, for people.
    token: str = ""  # Empty: the node makes one.
    wait: Seconds = 0  # How long to wait for an answer.


class ItemClaimed(Reply, array_like=True, frozen=True, tag="item-claimed"):
    """The item that was claimed, if there was one."""

    claimed: bool  # False if there is nothing to claim now; the other fields are empty then.
    id: str = ""  # The item's id.
    key: str | None = None  # The item's key. Messages may have none.
    by: str = ""  # The name of the one that added it.
    wall_ms: Moment = 0  # When it was added.
    value: Value = NIL  # The item's value.
    attempt: int = 0  # From 1: how often the item was claimed.
    fence: int = 0  # The claim's fencing number.
    token: str = ""  # A secret: whoever has it may complete the item.


@operation(
    action="write",
    http=Http("PUT", f"{_LIST}/claims/{{id}}", "Renew a claim of an item", errors=(LeaseLost, NoQuorum), example=_TICKET),
)
class ExtendClaim(Read["ClaimExtended"], array_like=True, frozen=True, tag="extend-claim"):
    """Renew a claim, for its ttl or a longer one, which it keeps."""

    space: str
    thread: str
    worklist: str
    id: str  # The item's id.
    fence: Natural  # The claim's fencing number.
    token: str  # The secret that came with it.
    ttl: Seconds = 0  # 0: as before. A claim never gets a shorter one.


class ClaimExtended(Reply, array_like=True, frozen=True, tag="claim-extended"):
    """A claim was renewed."""

    ttl: Seconds  # How long the claim lasts after its last renewal.


@operation(
    frees=True,
    batch=True,
    hearsay=("by",),  # The holder of the claim, a text for people.
    http=Http(
        "POST",
        f"{_LIST}/claims/{{id}}/complete",
        "Complete an item that is claimed",
        ops=("complete-item",),
        errors=(LeaseLost, NoQuorum, NotFound, Taken),
        example={**_TICKET, "result": {"pages": 3}},
    ),
    cli=Cli(
        "worklist complete",
        "shoal worklist complete researcher-1 files a.txt --ticket 3.0123456789abcdef0123456789abcdef --space crew",
        help="Complete an item that you have claimed. If the claim has ended, nothing is written.",
        shows="id",
        parts=(_ITEM, _TICKET_OF),
        options=("ticket",),
    ),
)
class CompleteItem(ObjectWrite["ItemCompleted"], array_like=True, frozen=True, tag="complete-item"):
    """Complete an item under a claim, with its result. It has at least durability `quorum`."""

    thread: str
    worklist: str
    id: str  # The item's id.
    fence: Natural  # The claim's fencing number.
    token: str  # The secret that came with it.
    result: Value = NIL  # The item's result.
    by: str = ""  # The worker's name.


class ItemCompleted(Reply, array_like=True, frozen=True, tag="item-completed"):
    """An item was completed."""

    id: str  # The item's id.


@operation(
    batch=True,
    hearsay=("by",),  # The holder of the claim, a text for people.
    http=Http(
        "POST",
        f"{_LIST}/claims/{{id}}/fail",
        "Give back an item that is claimed",
        ops=("fail-item",),
        errors=(LeaseLost, NoQuorum, NotFound, Taken),
        example={**_TICKET, "reason": "the page does not answer", "retry_in": 60},
    ),
    cli=Cli(
        "worklist fail",
        """shoal worklist fail researcher-1 files a.txt --ticket 3.0123456789abcdef0123456789abcdef --reason "no answer\"""",
        help="Give back an item that you have claimed. After its last attempt it is a dead letter.",
        parts=(_ITEM, _TICKET_OF),
        options=("ticket",),
    ),
)
class FailItem(ObjectWrite["ItemFailed"], array_like=True, frozen=True, tag="fail-item"):
    """Give back an item under a claim, with the reason. After its last attempt it becomes a dead letter."""

    thread: str
    worklist: str
    id: str  # The item's id.
    fence: Natural  # The claim's fencing number.
    token: str  # The secret that came with it.
    reason: str = ""  # Why the item is given back; the last one is kept.
    retry_in: Seconds = 0  # How long nobody gets it.
    by: str = ""  # The worker's name.


class ItemFailed(Reply, array_like=True, frozen=True, tag="item-failed"):
    """An item was given back."""

    dead: bool  # Whether it is a dead letter now.
    attempt: int  # How often it was claimed.


@operation(
    batch=True,
    http=Http(
        "POST",
        f"{_LIST}/revive",
        "Put a dead letter back into its worklist",
        errors=(NotFound,),
        example={"id": "0" * 64},
    ),
    cli=Cli(
        "worklist revive",
        "shoal worklist revive researcher-1 files a.txt --data ./state --space crew",
        shows="id",
        parts=(_ITEM,),
    ),
)
class ReviveItem(ObjectWrite["ItemRevived"], array_like=True, frozen=True, tag="revive-item"):
    """Put a dead letter back. Its attempts are counted anew."""

    thread: str
    worklist: str
    id: str  # The item's id.
    by: str = ""  # The name of the one that puts it back.


class ItemRevived(Reply, array_like=True, frozen=True, tag="item-revived"):
    """A dead letter was put back."""

    id: str  # The item's id.


@operation(discloses=True)
class BeginAttempt(ObjectWrite["AttemptBegun"], array_like=True, frozen=True, tag="begin-attempt"):
    """Note that an item is handed out: nodes do this when one is claimed."""

    thread: str
    worklist: str
    id: str
    fence: Natural
    token: str
    by: str = ""


class AttemptBegun(Reply, array_like=True, frozen=True, tag="attempt-begun"):
    """The attempt, or that the item cannot be handed out."""

    attempt: int  # 0: it is done, waits for its time, or is a dead letter.
    key: str | None = None
    by: str = ""
    wall_ms: int = 0
    value: bytes = NIL


@operation()
class RecallTry(ObjectWrite["TryRecalled"], array_like=True, frozen=True, tag="recall-try"):
    """Note how often an entry was handed out elsewhere, in an import; an entry that was handed out here stays as it is."""

    thread: str
    worklist: str
    id: str
    attempt: Natural  # How often it was handed out.
    state: Literal["claimed", "waiting", "dead"]  # Whether a worker had it, gave it back, or nobody gets it any more.
    by: str = ""
    reason: str = ""  # Why it was given back.
    not_before_ms: Natural = 0  # Nobody gets it earlier.


class TryRecalled(Reply, array_like=True, frozen=True, tag="try-recalled"):
    """The outcome."""

    first: bool  # False: it was handed out here, or is finished; then nothing was written.
