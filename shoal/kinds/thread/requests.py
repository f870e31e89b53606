"""Checkpoints and branches.

Inspection of checkpoints: verification, changes and context.
"""

from __future__ import annotations

from typing import Annotated, final

from msgspec import Struct, field

from shoal.errors import BranchTaken, NotFound, Pruned
from shoal.kinds.journal.requests import Event
from shoal.protocol.base import (
    ChannelNames,
    Channels,
    Cli,
    Cursor,
    Deleted,
    Elements,
    Filtered,
    Http,
    Joined,
    Maintenance,
    Merged,
    Named,
    Natural,
    ObjectRead,
    ObjectWrite,
    Positive,
    Reply,
    Seconds,
    Secrets,
    Shape,
    Time,
    Value,
    Would,
    always,
    operation,
)

__all__ = [
    "Ancestor",
    "BranchDeleted",
    "Branches",
    "Checkpoint",
    "Checkpoints",
    "CommonAncestor",
    "Damage",
    "DeleteBranch",
    "DeleteThread",
    "Delta",
    "Discard",
    "Discarded",
    "Explain",
    "Explained",
    "Growth",
    "Heads",
    "History",
    "Load",
    "Move",
    "Moved",
    "Prune",
    "PruneReport",
    "ReadDelta",
    "Save",
    "Saved",
    "Verified",
    "VerifyCheckpoints",
]


# A client that repeats a save may have loaded the first one's checkpoint since, and would build on that.
@operation(
    batch=True,
    not_of_key=("parent", "fork", "setting", "seen"),
    drives=True,
    weighs=lambda request: len(request.metadata) + sum(map(len, request.channels.values())),
)
@final
class Save(ObjectWrite["Saved"], array_like=True, frozen=True, tag="save"):
    """Save a checkpoint.

    `parent` is the checkpoint that the caller last loaded or saved, or NO_HEAD for
    none; None means the branch's winner on the serving node, which may be another one
    if the request is sent again. If the branch exists and the parent is not one of
    its heads, the save is rejected unless `fork` is set. If it does not exist, it begins
    at the parent. `expect_head` (an id, or NO_HEAD) must be the only head. Saves with the
    same key are one if they differ only in `parent`, `fork`, `setting` and `seen`.

    Without `delta` the channels are the whole state. With it they are the channels that changed
    since the parent, `appended` has elements to add at the end of lists, and `removed` names
    channels to remove; all others keep the parent's values.

    With `headless` the checkpoint becomes no head, so that it takes no place among the thread's branches: it is found by its
    label, or by its id. While a node of an older version is among the peers, it becomes one.
    """

    thread: str
    channels: Channels[bytes]
    metadata: bytes = b"\x80"  # msgpack of an empty map
    branch: str = "main"
    parent: str | None = None
    expect_head: str | None = None
    schema: str = ""  # The name of the schema that the state satisfies; empty: none.
    schema_version: int = 0
    delta: bool = False
    appended: Channels[bytes] = field(default_factory=dict)  # Channel → a packed array of elements to append.
    removed: ChannelNames = field(default_factory=list)
    merged: Merged = field(default_factory=list)  # Heads that this checkpoint merges, in addition to its parent.
    fork: bool = False  # Save on `parent` even if the branch is known to have moved on from it.
    author: str = ""
    label: str = ""  # A name for this checkpoint, unique within its thread.
    setting: bytes = b""  # A packed map: the hash of the author's configuration, the versions of its dependencies.
    seen: bytes = b""  # A packed bookmark: what the author had read of other partitions since the parent.
    readable_from: int = 0  # The oldest schema version whose readers understand the state; 0: only this one.
    secret: Secrets = field(default_factory=list)  # JSON pointers to secret values, in addition to those of its parents.
    owner: str = ""  # The token of `Claimed`. The save is rejected once another owner has claimed the thread. Empty: unchecked.
    headless: bool = False  # Needs a label.


@operation(
    frees=True,
    removes=always,
    drives=True,
    http=Http("DELETE", "/threads/{thread}", "Delete a thread on every node (no error if there is none)"),
    cli=Cli(
        "delete",
        "shoal delete researcher-1 --yes --data ./state --space crew",
        shows="existed",
        help="Delete a thread on every node: its checkpoints, branches and journal. This cannot be undone.",
        destroys="Delete thread {thread}",
    ),
)
class DeleteThread(ObjectWrite[Deleted], array_like=True, frozen=True, tag="delete-thread"):
    """Delete a thread on every node. It is no error if there is none."""

    thread: str


@operation(
    http=Http(
        "POST",
        "/threads/{thread}/prune",
        "Prune old checkpoints, or show which would be pruned",
        errors=(NotFound,),
        example={"keep_last": 100, "dry_run": True},
    ),
    cli=Cli(
        "prune",
        "shoal prune researcher-1 --keep-last 20 --older-than 30d --dry-run --data ./state --space crew",
        help="Prune a thread's old checkpoints. Heads, labelled ones, and those where branches part stay.",
        options=("keep_last",),
        defaults={"keep_last": 10},
        destroys="Prune these checkpoints of thread {thread}",
    ),
)
class Prune(Maintenance["PruneReport"], array_like=True, frozen=True, tag="prune"):
    """Prune old checkpoints.

    A checkpoint is pruned if it is neither one of the last `keep_last` of a branch nor younger than
    `older_than_ms`, unless something else keeps it. With `branch`, only checkpoints saved on that branch are pruned.
    """

    thread: str
    keep_last: int | None = None
    older_than_ms: Annotated[Seconds | None, Named("older_than_s")] = None
    branch: str | None = None
    dry_run: bool = False


class PruneReport(Reply, array_like=True, frozen=True, tag="prune-report"):
    """The checkpoints that were pruned, or would be."""

    gone: list[str]  # The ids, oldest first; at most 10,000.
    count: int  # The number of all pruned checkpoints.
    stays: dict[str, int]  # Reason → how many stay for it.
    bytes: int  # Stored bytes that are freed on each node once the prune is stable.
    dry_run: bool


@operation(frees=True)
class Discard(ObjectWrite["Discarded"], array_like=True, frozen=True, tag="discard"):
    """Prune these checkpoints. Labelled ones stay, and so do heads, unless `heads` is set: then a branch loses those that were
    saved on it, and only heads of other branches stay.
    """

    thread: str
    checkpoints: Elements[str]
    heads: bool = False  # While a node of an older version is among the peers, they stay.


class Discarded(Reply, array_like=True, frozen=True, tag="discarded"):
    """The checkpoints that were discarded."""

    gone: list[str]


class Saved(Reply, array_like=True, frozen=True, tag="saved"):
    """The checkpoint that a save made."""

    id: str
    parents: list[str]
    branch: str
    heads: list[str]  # The branch's heads, winner first; more than one is a fork.
    wall_ms: int
    partition: Annotated[int, Shape.INTERNAL] = -1  # The thread's partition.
    # Its JSON pointers to secret values: its own, and those that it keeps.
    secret: Annotated[list[str], Shape.INTERNAL] = field(default_factory=list)


@operation(
    batch=True,
    drives=True,
    http=(
        Http(
            "POST",
            "/threads/{thread}/branches",
            "Create a branch at a checkpoint",
            created="to",
            errors=(NotFound, Pruned, BranchTaken),
            example={"branch": "what-if", "to": "latest"},
            sets={"new": True},
        ),
        Http(
            "PUT",
            "/threads/{thread}/branches/{branch}",
            "Put a branch on a checkpoint; nothing is deleted",
            errors=(NotFound, Pruned),
            example={"to": "latest", "by": "ada", "reason": "the last step was wrong"},
            sets={"new": False},
        ),
    ),
)
class Move(ObjectWrite["Moved"], array_like=True, frozen=True, tag="move"):
    """Move a branch to a checkpoint of its thread.

    `new`: the branch must not exist yet, or already be there. Otherwise it must exist,
    and its journal gets an event of kind "rollback". Nothing is deleted.
    """

    thread: str
    branch: str
    to: str
    new: bool = False
    reason: str = ""
    by: str = ""


class Moved(Reply, array_like=True, frozen=True, tag="moved"):
    """Where a branch was, and is."""

    branch: str
    to: str
    before: list[str]  # The heads that it had before.
    heads: list[str]


@operation(
    frees=True,
    removes=always,
    batch=True,
    drives=True,
    http=Http(
        "DELETE",
        "/threads/{thread}/branches/{branch}",
        "Delete a branch; its checkpoints stay until they are pruned (no error if there is none)",
        ops=("delete-branch",),
    ),
    would=Would(
        lambda request: (Heads(request.space, request.thread),),
        lambda request, _, found: BranchDeleted(request.branch, found.branches.get(request.branch, [])),
    ),
)
class DeleteBranch(ObjectWrite["BranchDeleted"], array_like=True, frozen=True, tag="delete-branch"):
    """Delete a branch of a thread, as the serving node knows it. Its checkpoints stay until they are pruned.

    A save that was made at a node without knowledge of the deletion stays, as the branch's head. The journal gets an
    event of kind "delete-branch" with the heads. It is no error if there is no such branch; "main" is rejected.
    """

    thread: str
    branch: str


class BranchDeleted(Reply, array_like=True, frozen=True, tag="branch-deleted"):
    """The branch that was deleted."""

    branch: str
    before: list[str]  # The heads that it had, winner first; empty if there was no such branch.


@operation(
    multi_read=True,
    http=(
        Http(
            "GET",
            "/threads/{thread}/checkpoints/latest",
            "The newest checkpoint of a branch, or the one that it had at a time, or that has a label",
            errors=(NotFound, Pruned),
            sets={"checkpoint": None},
            version="id",
        ),
        Http(
            "GET",
            "/threads/{thread}/checkpoints/{checkpoint}",
            "A checkpoint by its id",
            ops=("load",),
            errors=(NotFound, Pruned),
            version="id",
        ),
    ),
)
class Load(ObjectRead["Checkpoint"], array_like=True, frozen=True, tag="load"):
    """Load a checkpoint by id or label, or a branch's winner."""

    thread: str
    checkpoint: str | None = None
    branch: str = "main"
    channels: ChannelNames | None = None  # Only these; if left out, all.
    as_of_ms: Annotated[Time | None, Named("as_of")] = None  # The head that the branch had then, by its nodes' clocks.
    label: str | None = None  # The checkpoint that has this label.


class Checkpoint(Reply, array_like=True, frozen=True, tag="checkpoint"):
    """A checkpoint, with the channels that were asked for."""

    id: str
    parents: list[str]
    branch: str  # The branch on which it was saved.
    heads: list[str]  # The heads of the requested branch or, if loaded by id, of its own; winner first.
    wall_ms: int
    schema: str
    schema_version: int
    metadata: Value
    channels: Annotated[
        dict[str, bytes], Shape.STATE, Named("state")
    ]  # As far as requested; empty in a history without states.
    hashes: dict[str, str]  # Channel → SHA-256 of its content in hex (docs/STORAGE.md), or content of up to 64 bytes itself.
    author: str = ""
    label: str = ""
    setting: Annotated[bytes, Shape.INTERNAL] = b""
    seen: Annotated[bytes, Shape.INTERNAL] = b""  # A packed bookmark: what its author had read.
    readable_from: int = 0
    secret: list[str] = field(default_factory=list)
    nonce: Annotated[bytes, Shape.INTERNAL] = b""  # That of its id, for `Imported.nonce`.


@operation(
    multi_read=True,
    http=Http(
        "GET",
        "/threads/{thread}/checkpoints",
        "Checkpoints, newest first; with `states`, their states too",
        errors=(NotFound, Pruned),
    ),
)
class History(ObjectRead["Checkpoints"], array_like=True, frozen=True, tag="history"):
    """Read checkpoints backwards from the branch's winner, or from the parent of `before`.

    They come without channels unless `channels` is set. With a `filter` (metadata field →
    packed condition, as in a search of items) or an `author` only matching ones are returned. A page looks at a bounded
    number of checkpoints, so it may be empty; continue at `next`.
    """

    thread: str
    branch: str = "main"
    before: str | None = None
    limit: Positive = 100
    channels: Annotated[bool, Named("states")] = False  # Include the states; a page then holds fewer checkpoints.
    filter: Filtered = field(default_factory=dict)
    author: str | None = None


class Checkpoints(Reply, array_like=True, frozen=True, tag="checkpoints"):
    """A page of a history."""

    items: Annotated[list[Checkpoint], Named("checkpoints")]
    more: bool  # Whether there are older ones; ask again with before=next.
    next: str = ""  # The last checkpoint that was looked at.


@operation(
    multi_read=True,
    http=Http("GET", "/threads/{thread}/branches", "The branches, each with its heads", ops=("heads",), errors=(NotFound,)),
)
class Heads(ObjectRead["Branches"], array_like=True, frozen=True, tag="heads"):
    """Read the branches and their heads, in byte order: all of them, or a page, or those that are named."""

    thread: str
    names: Joined = field(default_factory=list)  # Only these, as far as they are there; empty: any.
    after: str = ""  # Only branches above this name.
    limit: Natural = 0  # At most so many; 0: all.


class CommonAncestor(ObjectRead["Ancestor"], array_like=True, frozen=True, tag="common-ancestor"):
    """Find the newest checkpoint that each of these is or descends from."""

    thread: str
    checkpoints: Joined


class Ancestor(Reply, array_like=True, frozen=True, tag="ancestor"):
    """The common ancestor; None if there is none."""

    id: str | None
    ordered: list[str]  # The given checkpoints, each once, oldest first; the same order on every node.


class Branches(Reply, array_like=True, frozen=True, tag="branches"):
    """The branches of a thread, or a page of them."""

    branches: dict[str, list[str]]  # Name → heads, winner first.
    more: bool = False  # Whether there are more: ask again with the last name as `after`.


@operation(http=Http("GET", "/threads/{thread}/verify", "Verify the hashes of stored checkpoints", errors=(NotFound,)))
class VerifyCheckpoints(ObjectRead["Verified"], array_like=True, frozen=True, tag="verify-checkpoints"):
    """Verify the stored parts of a checkpoint, or of a branch's checkpoints along first parents, by their hashes."""

    thread: str
    checkpoint: str | None = None
    branch: str = "main"
    start: str = ""  # The id of the checkpoint to continue with; empty for the branch's winner.
    limit: Positive = 100


class Damage(Struct, array_like=True, frozen=True):
    """A stored part of a checkpoint that is damaged."""

    checkpoint: str
    channel: str  # Empty if the checkpoint's record is damaged.
    what: str


class Verified(Reply, array_like=True, frozen=True, tag="verified"):
    """The result of a verification."""

    checked: int
    damage: list[Damage]
    next: str  # Ask again with start=next; empty at the end.


class ReadDelta(ObjectRead["Delta"], array_like=True, frozen=True, tag="read-delta"):
    """Read the difference between a checkpoint's state and its first parent's."""

    thread: str
    checkpoint: str


class Growth(Struct, array_like=True, frozen=True):
    """The elements of a list after those of the parent's list."""

    at: int  # How many elements the parent's list has.
    elements: bytes  # The elements that follow, as a packed array.


class Delta(Reply, array_like=True, frozen=True, tag="delta"):
    """A checkpoint as a change of its first parent."""

    checkpoint: Checkpoint  # With the channels that are new or differ, except those in `appended`.
    appended: dict[str, Growth]  # By channel: the lists that begin with the parent's.


@operation(
    http=Http(
        "GET",
        "/threads/{thread}/checkpoints/{checkpoint}/why",
        "The context in which a checkpoint was saved: the state, events and settings of its author",
        errors=(NotFound, Pruned),
    )
)
class Explain(ObjectRead["Explained"], array_like=True, frozen=True, tag="explain"):
    """Read the context in which a checkpoint was saved: its ancestors, events, setting and bookmark."""

    thread: str
    checkpoint: str
    limit: Positive = 20  # Of earlier checkpoints, and of events.


class Explained(Reply, array_like=True, frozen=True, tag="explained"):
    """A checkpoint, and the context in which it was saved."""

    checkpoint: Checkpoint
    setting: Value  # A packed map, its own or an ancestor's; empty if none was given.
    seen: Cursor  # A packed bookmark, joined from its own and its ancestors'.
    earlier: list[Checkpoint]  # Its chain of first parents, newest first.
    events: list[Event]  # The events before it in the journal, newest first.
