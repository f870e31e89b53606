"""The disk of a node: what it holds by space, by kind, by prefix of names, what keeps the log, and how all of it grew.

Everything is of the serving node. Counts are of one look at all rows, which takes a while: `counted_ms` says when it began.
"""

from __future__ import annotations

from msgspec import Struct, field

from shoal.kinds import ObjectKind
from shoal.protocol.base import Read, Reply
from shoal.protocol.declared import Http, Natural, Positive, operation

__all__ = [
    "KindUse",
    "LogHolder",
    "ObjectUse",
    "PrefixUse",
    "ReadSpaceUsage",
    "ReadUsage",
    "SpaceUsageView",
    "SpaceUse",
    "UsagePoint",
    "UsageView",
]


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
