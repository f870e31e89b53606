"""Inspection of checkpoints: verification, changes and context."""

from __future__ import annotations

from msgspec import Struct

from shoal.errors import NotFound, Pruned
from shoal.kinds.journal.requests import Event
from shoal.kinds.thread.requests import Checkpoint
from shoal.protocol.base import ObjectRead, Reply
from shoal.protocol.declared import Http, operation
from shoal.protocol.fields import Cursor, Positive, Value

__all__ = ["Damage", "Delta", "Explain", "Explained", "Growth", "ReadDelta", "Verified", "VerifyCheckpoints"]


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
