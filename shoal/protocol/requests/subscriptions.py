"""Subscriptions and their pushes."""

from __future__ import annotations

from typing import Never

from msgspec import field

from shoal.kinds.document.requests import ANY, Beginning, DocumentState, RootKind
from shoal.kinds.presence.requests import FollowPresence, Presence
from shoal.protocol.base import Read, Reply
from shoal.protocol.declared import Few
from shoal.protocol.requests.status import ObjectKind

__all__ = ["Change", "Edit", "Follow", "Push", "Reset", "Subscription", "Watch", "Watching"]


class Watch(Read[Never], array_like=True, frozen=True, tag="watch"):
    """Push a `Change` for every durable change in a space.

    Without `after` it begins now, and changes are hints to read again: a watcher that falls behind gets SlowConsumer.
    With `after` (a packed position; empty: from now on) each change comes once, also across
    nodes: first those that the position does not cover, in causal order. If it is empty, `Watching` comes
    first. `Reset` takes the place of changes that are left out.
    """

    space: str
    kind: ObjectKind | None = None
    prefix: str = ""
    kinds: Few[ObjectKind] = field(default_factory=list)  # Empty: all.
    after: bytes | None = None


class Change(Reply, array_like=True, frozen=True, tag="change"):
    """One mutation that became durable. `what` is the request's tag: "save", "append", "update", …"""

    space: str
    kind: ObjectKind
    name: str
    what: str
    id: str  # The id of the checkpoint, event, queue entry, key or item; empty if the object as a whole changed.
    hlc: int
    wall_ms: int
    partition: int = -1  # With `after`, the partition of the watcher's position that this change moves.
    seen: bytes = b""  # Packed entries of the partition's vector that changed since the last push.
    part: bytes = b""  # The operation's dot and the mutation's `nth`, if more of the operation may follow.


class Watching(Reply, array_like=True, frozen=True, tag="watching"):
    """The watch has begun."""

    position: bytes  # The position where the watch begins.


class Reset(Reply, array_like=True, frozen=True, tag="reset"):
    """Changes were left out: read the state again, and continue from this position."""

    position: bytes
    reason: str


class Follow(Read[Never], array_like=True, frozen=True, tag="follow"):
    """Push a document's `DocumentState`, then an `Edit` for every durable update.

    `stale`: begin with this node's state, even if it is older than the bookmark; a
    caller that sends its `state` keeps its content.
    """

    space: str
    document: str
    state: bytes = b"\x00"
    stale: bool = False
    generation: int = ANY


class Edit(Reply, array_like=True, frozen=True, tag="edit"):
    """A durable update of a followed document."""

    update: bytes
    roots: dict[str, RootKind]
    authors: dict[int, str] = field(default_factory=dict)  # As the update named them.
    beginnings: list[Beginning] = field(default_factory=list)  # All beginnings that the node knows, if this update brings one.


Subscription = Watch | Follow | FollowPresence
Push = Change | Watching | Reset | DocumentState | Edit | Presence
