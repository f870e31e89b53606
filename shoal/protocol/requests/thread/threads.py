"""Checkpoints and branches."""

from __future__ import annotations

from typing import final

from msgspec import field

from shoal.protocol.requests.base import Maintenance, ObjectRead, ObjectWrite, Reply
from shoal.protocol.requests.declared import operation

__all__ = [
    "Ancestor",
    "Branches",
    "Checkpoint",
    "Checkpoints",
    "CommonAncestor",
    "DeleteThread",
    "Deleted",
    "Discard",
    "Discarded",
    "Heads",
    "History",
    "Load",
    "Move",
    "Moved",
    "Prune",
    "PruneReport",
    "Save",
    "Saved",
]


# A client that repeats a save may meanwhile have found the first one's checkpoint, and would build on that.
@operation(batch=True, not_of_key=("parent", "fork", "setting", "seen"))
@final
class Save(ObjectWrite["Saved"], array_like=True, frozen=True, tag="save"):
    """Save a checkpoint.

    `parent` is the checkpoint that the caller last loaded or saved, or NO_HEAD for
    none; None takes the branch's winner on the node that is asked, which may differ
    where the request is sent again. Where the branch exists and the parent is none of
    its heads the save is refused, unless it is to `fork`; where it does not, it begins
    on the parent. `expect_head` (an id, or NO_HEAD) must be the only head. Of one key,
    saves that differ in nothing but `parent`, `fork`, `setting` and `seen` are one.

    Without `delta` the channels are the whole state. With it they are what changed
    since the parent, `appended` what is new at the end of lists, `removed` the
    channels that are gone; all others are as the parent has them.
    """

    thread: str
    channels: dict[str, bytes]
    metadata: bytes = b"\x80"  # msgpack of an empty map
    branch: str = "main"
    parent: str | None = None
    expect_head: str | None = None
    schema: str = ""  # Name of the schema that the state was checked by; empty: none.
    schema_version: int = 0
    delta: bool = False
    appended: dict[str, bytes] = field(default_factory=dict)  # Channel → a packed array of what is appended.
    removed: list[str] = field(default_factory=list)
    merged: list[str] = field(default_factory=list)  # Heads that this checkpoint joins, besides its parent.
    fork: bool = False  # Save on `parent` also where the branch is known to have moved on from it.
    author: str = ""
    label: str = ""  # A name for this checkpoint within its thread, to find it by.
    setting: bytes = b""  # Packed map: what the author ran with (hash of its configuration, versions of its dependencies).
    seen: bytes = b""  # Packed bookmark: what the author had read of other partitions, where that is news since the parent.
    readable_from: int = 0  # Readers of this version of the schema and above understand the state; 0: of this one.
    secret: list[str] = field(default_factory=list)  # JSON pointers to what must not be shown.
    owner: str = ""  # Of the thread, as `Claimed` told: refused once another has claimed it. Empty: of no matter.


class DeleteThread(ObjectWrite["Deleted"], array_like=True, frozen=True, tag="delete-thread"):
    """Delete a thread, everywhere. What is not there is deleted already."""

    thread: str


class Prune(Maintenance["PruneReport"], array_like=True, frozen=True, tag="prune"):
    """Give up old checkpoints.

    What is neither one of the last `keep_last` of a branch nor younger than `older_than_ms` goes, unless
    something else keeps it. With `branch` only what was saved on that one goes.
    """

    thread: str
    keep_last: int | None = None
    older_than_ms: int | None = None
    branch: str | None = None
    dry_run: bool = False


class PruneReport(Reply, array_like=True, frozen=True, tag="prune-report"):
    gone: list[str]  # Ids, the oldest first; not more than 10,000.
    count: int  # All that go.
    stays: dict[str, int]  # Reason → how many.
    bytes: int  # Stored, that are freed on each node once the prune is stable.
    dry_run: bool


class Discard(ObjectWrite["Discarded"], array_like=True, frozen=True, tag="discard"):
    """Give up these checkpoints. Heads and what has a label stay."""

    thread: str
    checkpoints: list[str]


class Discarded(Reply, array_like=True, frozen=True, tag="discarded"):
    gone: list[str]


class Deleted(Reply, array_like=True, frozen=True, tag="deleted"):
    existed: bool  # On the node that was asked.


class Saved(Reply, array_like=True, frozen=True, tag="saved"):
    id: str
    parents: list[str]
    branch: str
    heads: list[str]  # Of the branch, winner first; more than one is a fork.
    wall_ms: int
    partition: int = -1  # Of the thread.


@operation(batch=True)
class Move(ObjectWrite["Moved"], array_like=True, frozen=True, tag="move"):
    """Put a branch on a checkpoint of its thread.

    `new`: the branch must not exist yet, or be just there. Otherwise it must exist,
    and its journal gets an event of kind "rollback". Nothing is deleted.
    """

    thread: str
    branch: str
    to: str
    new: bool = False
    reason: str = ""
    by: str = ""


class Moved(Reply, array_like=True, frozen=True, tag="moved"):
    branch: str
    to: str
    before: list[str]  # The heads that it had.
    heads: list[str]


@operation(multi_read=True)
class Load(ObjectRead["Checkpoint"], array_like=True, frozen=True, tag="load"):
    """Load a checkpoint by id or label, or a branch's winner."""

    thread: str
    checkpoint: str | None = None
    branch: str = "main"
    channels: list[str] | None = None  # Only these; None: all.
    as_of_ms: int | None = None  # Where the branch was then, by the clocks of those who put it there.
    label: str | None = None  # The checkpoint that has this label.


class Checkpoint(Reply, array_like=True, frozen=True, tag="checkpoint"):
    id: str
    parents: list[str]
    branch: str  # On which it was saved.
    heads: list[str]  # Winner first: of the branch that was asked for, or, by id, of that one.
    wall_ms: int
    schema: str
    schema_version: int
    metadata: bytes
    channels: dict[str, bytes]  # Empty in a history; else those that were asked for.
    hashes: dict[str, str]  # Channel → hex: SHA-256 over its contents (docs/STORAGE.md), or, of up to 64 bytes, themselves.
    author: str = ""
    label: str = ""
    setting: bytes = b""
    seen: bytes = b""  # Packed bookmark: what its author had read.
    readable_from: int = 0
    secret: list[str] = field(default_factory=list)


@operation(multi_read=True)
class History(ObjectRead["Checkpoints"], array_like=True, frozen=True, tag="history"):
    """Checkpoints from the branch's winner (or strictly before `before`) back.

    They come without channels unless `channels` is set. With a `filter` (metadata key →
    packed value) or an `author` only those that match; a page then looks at so many
    that it may be empty, and `next` says where to go on.
    """

    thread: str
    branch: str = "main"
    before: str | None = None
    limit: int = 100
    channels: bool = False
    filter: dict[str, bytes] = field(default_factory=dict)
    author: str | None = None


class Checkpoints(Reply, array_like=True, frozen=True, tag="checkpoints"):
    items: list[Checkpoint]
    more: bool  # True if older ones exist; ask again with before=next.
    next: str = ""  # The last that was looked at.


@operation(multi_read=True)
class Heads(ObjectRead["Branches"], array_like=True, frozen=True, tag="heads"):
    """All branches and their heads."""

    thread: str


class CommonAncestor(ObjectRead["Ancestor"], array_like=True, frozen=True, tag="common-ancestor"):
    """The newest checkpoint that all of these are or descend from."""

    thread: str
    checkpoints: list[str]


class Ancestor(Reply, array_like=True, frozen=True, tag="ancestor"):
    id: str | None
    ordered: list[str]  # What was asked about, each once, the oldest first: an order that every node gives.


class Branches(Reply, array_like=True, frozen=True, tag="branches"):
    branches: dict[str, list[str]]  # Name → heads, winner first.
