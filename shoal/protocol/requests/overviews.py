"""A space at a glance, for people: its work, what was done, what a text is found in; and what the disk of a node holds.

Each answer is a page of bounded size, made by looking at a bounded number of objects: it may be empty although there are more.

The disk of a node: what it holds by space, by kind, by prefix of names, what keeps the log, and how all of it grew.

Everything is of the serving node. Counts are of one look at all rows, which takes a while: `counted_ms` says when it began.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct, field

from shoal.kinds import ObjectKind
from shoal.kinds.lease.requests import LeaseState
from shoal.kinds.redaction.requests import Replaced
from shoal.protocol.base import Cli, Cursor, Http, Named, Natural, Positive, Read, Reply, Value, operation

__all__ = [
    "Hit",
    "HitPlace",
    "Hits",
    "KindUse",
    "ListWork",
    "LogHolder",
    "ObjectUse",
    "PastLease",
    "PrefixUse",
    "ReadSpaceAudit",
    "ReadSpaceUsage",
    "ReadTimeline",
    "ReadUsage",
    "Search",
    "SpaceUsageView",
    "SpaceUse",
    "Timeline",
    "TimelineEntry",
    "TimelineKind",
    "UsagePoint",
    "UsageView",
    "Work",
    "WorkQueue",
]


@operation(
    family="thread",
    http=Http("GET", "/work", "Worklists, inboxes and leases of a space, in one answer"),
    cli=Cli(
        "work",
        "shoal work --url http://n1:7400 --space crew",
        help="List the worklists and inboxes of a space's threads.",
        rows="items",
        columns=("thread", "worklist", "pending", "finished", "dead"),
    ),
)
class ListWork(Read["Work"], array_like=True, frozen=True, tag="list-work"):
    """List the queues of a space's threads that hold or held something, in byte order, and the leases that are held."""

    space: str
    prefix: str = ""  # Of the threads' names.
    after: str = ""  # The `cursor` of the previous page.
    limit: Positive = 500  # Queues.


class WorkQueue(Struct, array_like=True, frozen=True):
    """A worklist or an inbox, and the number of its entries."""

    thread: str
    worklist: str  # Empty: it is the inbox.
    pending: int
    finished: int
    dead: int  # Given up after the last attempt.


class Work(Reply, array_like=True, frozen=True, tag="work"):
    """A page of the work of a space."""

    items: Annotated[list[WorkQueue], Named("queues")]
    cursor: str  # Ask again with after=cursor; empty if there are no more.
    looked: int  # Threads that were looked at.
    leases: list[LeaseState] = field(default_factory=list)  # Of the first page: as this node was told last; at most 1,000.
    more_leases: bool = False  # Whether there are more than that.
    now_ms: int = 0  # The node's clock, by which leases end.

    @property
    def more(self) -> bool:
        """Whether there may be more queues: ask again with `after`."""
        return bool(self.cursor)


TimelineKind = Literal["checkpoint", "event", "step"]


@operation(
    family="thread",
    http=Http("GET", "/threads/{thread}/timeline", "What was done in a thread, the newest first"),
    cli=Cli(
        "audit timeline",
        "shoal audit timeline researcher-1 --url http://n1:7400 --space crew",
        help="Show what was done in a thread, the newest first.",
        rows="items",
        columns=("wall_ms", "kind", "text", "by", "id"),
        hides=("kind", "since_ms"),
        known=True,
    ),
)
class ReadTimeline(Read["Timeline"], array_like=True, frozen=True, tag="read-timeline"):
    """Read checkpoints, steps and events of a thread in one order of time, the newest first.

    Approvals, rollbacks, decisions on steps, and releases of its lease by others are events.
    """

    space: str
    thread: str
    kind: Literal["", "checkpoint", "event", "step"] = ""  # Empty for all.
    by: str = ""  # Only of this author.
    text: str = ""  # Only with this text, in any case of letters.
    since_ms: Natural = 0  # Nothing older.
    after: Cursor = b""  # The `cursor` of the previous page.
    limit: Positive = 100


@operation(
    family="thread",
    http=Http("GET", "/audit", "What was done in the threads of a space, the newest first"),
    cli=Cli(
        "audit space",
        "shoal audit space --text refund --url http://n1:7400 --space crew",
        help="Show what was done in the threads of a space, the newest first.",
        rows="items",
        columns=("wall_ms", "thread", "kind", "text", "by", "token"),
        hides=("kind", "since_ms"),
    ),
)
class ReadSpaceAudit(Read["Timeline"], array_like=True, frozen=True, tag="read-space-audit"):
    """Read what was done in the threads of a space, the newest first.

    Threads are taken in groups of some hundred, in byte order: entries are in the order of time within a group. For one order
    of all, hold a page of each group (`others` leads from one to the next), and take the newest of their first entries.
    """

    space: str
    prefix: str = ""  # Of the threads' names.
    kind: Literal["", "checkpoint", "event", "step"] = ""  # Empty for all.
    by: str = ""  # Only of this author.
    text: str = ""  # Only with this text, in any case of letters.
    since_ms: Natural = 0  # Nothing older.
    after: Cursor = b""  # The `cursor` of the previous page.
    limit: Positive = 100


class TimelineEntry(Struct, array_like=True, frozen=True):
    """Something that was done in a thread."""

    thread: str
    kind: TimelineKind
    wall_ms: int  # When, by the clock of the node that wrote it.
    id: str  # Of the checkpoint or the event; the key of the step.
    text: str  # The branch that a checkpoint was saved on, the kind of an event, or the name of a step.
    by: str = ""  # Its author; of a step, the holder of its last attempt. Empty: nobody was named.
    token: str = ""  # The id of the token under which it was written; empty: there was none, or its operation has left the log.
    state: Literal["", "open", "done", "failed", "ready", "abandoned"] = ""  # Of a step.
    ended_ms: int = 0  # When the step ended; 0: it has not.
    label: str = ""  # Of the checkpoint.
    parents: list[str] = field(default_factory=list)  # Of the checkpoint.
    changed: list[str] = field(default_factory=list)  # Channels that differ from the first parent's; at most 64.
    data: Value = b"\xc0"  # A checkpoint's metadata, an event's value, a step's result or error; nil if it is large, or erased.
    whole: bool = True  # False: the data is too large to be shown here.
    erased: bool = False  # Whether the value of the event was erased.
    redacted: list[Replaced] = field(default_factory=list)  # What was replaced before it was stored, by rules of its space.


class PastLease(Struct, array_like=True, frozen=True):
    """A term in which somebody drove a thread under its lease."""

    fence: int  # Its fencing number.
    holder: str  # Empty: a holder without a name.
    from_ms: int  # When it was taken, by the clock of the node that granted it.
    until_ms: int  # When it was given back, handed over or ended; 0: it goes on, or was not renewed.


class Timeline(Reply, array_like=True, frozen=True, tag="timeline"):
    """A page of what was done."""

    items: Annotated[list[TimelineEntry], Named("entries")]
    cursor: Cursor  # Ask again with after=cursor; empty if there are no more.
    threads: int  # Threads that were looked at.
    beyond: bool = False  # Whether there are threads that come after these: the next pages show what was done in them.
    holder: str = ""  # Of one thread: the holder that it was last under the lease of, as the thread says; empty: none now.
    fence: int = 0  # The fencing number of that lease.
    reached_ms: int = 0  # Of these threads nothing is left out that is younger; 0: nothing at all is.
    others: Cursor = b""  # Where the next group of threads begins: ask with after=others; empty: this group is the last.
    terms: list[PastLease] = field(default_factory=list)  # Of one thread, on the first page: the last 64, the newest first.

    @property
    def more(self) -> bool:
        """Whether there may be more: ask again with `after`."""
        return bool(self.cursor)


HitPlace = Literal["name", "label", "tag", "metadata", "state"]


@operation(
    family="thread",
    http=Http("GET", "/search", "Threads in whose names, labels, tags, metadata or states a text is found"),
    cli=Cli(
        "search",
        "shoal search refund --url http://n1:7400 --space crew",
        help="Find a text in the names, labels, tags, metadata and states of threads.",
        rows="items",
        columns=("thread", "place", "path", "excerpt"),
        arguments=("text",),
    ),
)
class Search(Read["Hits"], array_like=True, frozen=True, tag="search"):
    """Find a text in any case of letters: in the names of threads, their labels, and the newest checkpoints of their branches.

    Secret fields are left out, whoever asks. Threads come in byte order, with one hit for each place that has the text.
    """

    space: str
    text: str = ""  # At least one character.
    prefix: str = ""  # Of the threads' names.
    place: Literal["", "name", "label", "tag", "metadata", "state"] = ""  # Only there; empty for all.
    after: str = ""  # The `cursor` of the previous page.
    limit: Positive = 50


class Hit(Struct, array_like=True, frozen=True):
    """A place that has the text."""

    thread: str
    place: HitPlace
    path: str  # In the state or the metadata, a JSON pointer; else empty.
    excerpt: str  # The text with what is around it.
    checkpoint: str = ""  # The checkpoint in which it was found, or which has the label.
    branch: str = ""  # Of that checkpoint.


class Hits(Reply, array_like=True, frozen=True, tag="hits"):
    """A page of hits."""

    items: Annotated[list[Hit], Named("hits")]
    cursor: str  # Ask again with after=cursor; empty if there are no more.
    looked: int  # Threads that were looked at for this page.
    skipped: int = 0  # Channels that were left out, because they are larger than 256 KiB.

    @property
    def more(self) -> bool:
        """Whether there may be more hits: ask again with `after`."""
        return bool(self.cursor)


@operation(family="cluster", http=Http("GET", "/usage", "What the disk of this node holds, by space, and how it grew"))
class ReadUsage(Read["UsageView"], array_like=True, frozen=True, tag="read-usage"):
    """Read what the disk of the serving node holds: the largest spaces, what keeps the log, and how both grew."""

    since_ms: Natural = 0  # The history from then on.
    limit: Positive = 20  # Spaces, the largest first; at most 100.


class SpaceUse(Struct, array_like=True, frozen=True):
    """A space, and its size at the node."""

    name: str  # As it was given.
    bytes: int  # Of the rows of its objects, before compression; deleted ones included until they are swept.
    objects: int  # Their number.
    history: list[int] = field(default_factory=list)  # Its bytes at each of the points; -1: not known. Of the first 8 spaces.


class UsagePoint(Struct, array_like=True, frozen=True):
    """The disk at one time."""

    at_ms: int  # By the clock of the node.
    disk_bytes: int  # Of the files of the directory.
    free_bytes: int  # As the others: of that time.
    log_bytes: int  # Of operations in the log.
    stored_bytes: int  # The rows of all objects, before compression; -1: they were not counted.


class LogHolder(Struct, array_like=True, frozen=True):
    """A member for which operations stay in the log, because it is not known to hold them."""

    name: str  # "host:port"
    bytes: int  # Of the logs of the partitions of which it lacks something: at most so much waits for it.
    linked: bool  # Whether it is reached now.


class UsageView(Reply, array_like=True, frozen=True, tag="usage-view"):
    """The disk of a node, and all that it holds."""

    now_ms: int  # The node's clock.
    counted_ms: int  # When the rows were counted last; 0: not in this opening yet. Ask again after some seconds.
    is_counting: bool  # Whether they are being counted now.
    trouble: str  # Why they could not be counted; else empty.
    disk_bytes: int  # Of the files of its directory.
    free_bytes: int  # That are free on their disk; -1: not known.
    stored_bytes: int  # Of the rows of all objects, before compression.
    objects: int  # Their number.
    index_bytes: int  # Of indexes and snapshots of documents, which are made again when they are lost.
    key_bytes: int  # Of idempotency keys of requests.
    log_bytes: int  # Of operations in the log.
    log_keep_ms: int  # For so long each operation stays in it.
    log_bytes_max: int  # Above this, operations leave it although a member that is away lacks them.
    log_holders: list[LogHolder]  # Those that hold most first. Empty: all that is in it is younger than that.
    spaces: list[SpaceUse]  # The largest first.
    spaces_in_all: int  # How many there are, shown or not.
    points: list[UsagePoint]  # The history of the disk, the oldest first: every ten minutes to every day.


@operation(family="quota", http=Http("GET", "/usage", "What a space holds on the disk of this node, and how it grew"))
class ReadSpaceUsage(Read["SpaceUsageView"], array_like=True, frozen=True, tag="read-space-usage"):
    """Read what a space holds at the serving node: by kind, by the beginnings of names, its largest objects, its growth."""

    space: str
    since_ms: Natural = 0  # The history from then on.
    limit: Positive = 20  # Prefixes, and objects, the largest first; at most 50.


class KindUse(Struct, array_like=True, frozen=True):
    """The objects of one kind."""

    kind: ObjectKind  # As the routes of it are named.
    bytes: int  # Of their rows, before compression.
    objects: int  # Their number.


class PrefixUse(Struct, array_like=True, frozen=True):
    """The objects whose names begin alike: up to the first "/", ":", ".", "-" or "_"."""

    prefix: str  # Empty: names without one of these, and those of further prefixes.
    bytes: int  # Of their rows, before compression.
    objects: int  # Their number.
    history: list[int] = field(default_factory=list)  # Its bytes at each of the times; -1: not known.


class ObjectUse(Struct, array_like=True, frozen=True):
    """One object."""

    kind: ObjectKind  # As the routes of it are named.
    name: str  # As it was given.
    bytes: int  # Of their rows, before compression.


class SpaceUsageView(Reply, array_like=True, frozen=True, tag="space-usage-view"):
    """A space at one node, and all that it holds."""

    space: str
    now_ms: int  # The node's clock.
    counted_ms: int  # When the rows were counted last; 0: not in this opening yet. Ask again after some seconds.
    is_counting: bool  # Whether they are being counted now.
    trouble: str  # Why they could not be counted; else empty.
    bytes: int  # Of the rows of its objects, before compression; deleted ones included until they are swept.
    objects: int  # Their number.
    kinds: list[KindUse]  # The largest first.
    prefixes: list[PrefixUse]  # Likewise.
    prefixes_in_all: int  # At most 1,024 are told apart.
    largest: list[ObjectUse]  # Likewise.
    times_ms: list[int]  # The times of the history, the oldest first.
    history: list[int]  # Its bytes at each of these; -1: not known.
    is_empty: bool = False  # Whether nothing is in it: check its name.
