"""What is pushed to who watches."""

from __future__ import annotations

from typing import Never

from msgspec import field

from shoal.protocol.requests.base import Read, Reply
from shoal.protocol.requests.document.documents import ANY, Beginning, DocumentState, RootKind
from shoal.protocol.requests.listings import ObjectKind
from shoal.protocol.requests.presence import FollowPresence, Presence

__all__ = ["Change", "Edit", "Follow", "Push", "Reset", "Subscription", "Watch", "Watching"]


class Watch(Read[Never], array_like=True, frozen=True, tag="watch"):
    """Push a `Change` for every durable change in a space.

    Without `after` from now on, as a hint to read again: whoever falls behind gets SlowConsumer.
    With it (a packed position; empty: from now on) each change comes once, also over
    nodes: first those that the position does not cover, in causal order. `Watching` comes
    first where it is empty, and `Reset` in the place of what could not be told.
    """

    space: str
    kind: ObjectKind | None = None
    prefix: str = ""
    kinds: list[ObjectKind] = field(default_factory=list)  # None: all.
    after: bytes | None = None


class Change(Reply, array_like=True, frozen=True, tag="change"):
    """One mutation that became durable. `what` is the request's tag: "save", "append", "update", …"""

    space: str
    kind: ObjectKind
    name: str
    what: str
    id: str  # Of the checkpoint, event, queue entry, key or item; empty: the object as a whole.
    hlc: int
    wall_ms: int
    partition: int = -1  # With `after`: where the watcher is once it has this one.
    seen: bytes = b""  # Packed entries of the partition's vector that changed since the last push.
    part: bytes = b""  # The operation's dot and the mutation's `nth`, where the operation may show more: not in `seen` yet.


class Watching(Reply, array_like=True, frozen=True, tag="watching"):
    position: bytes  # From where on the watcher is told.


class Reset(Reply, array_like=True, frozen=True, tag="reset"):
    """Some changes are not told: read the state again, and go on from here."""

    position: bytes
    reason: str


class Follow(Read[Never], array_like=True, frozen=True, tag="follow"):
    """Push a document's `DocumentState`, then an `Edit` for every durable update.

    `stale`: begin with what is here, even if it is older than what the bookmark
    names; a caller that gives its `state` keeps what it has.
    """

    space: str
    document: str
    state: bytes = b"\x00"
    stale: bool = False
    generation: int = ANY


class Edit(Reply, array_like=True, frozen=True, tag="edit"):
    update: bytes
    roots: dict[str, RootKind]
    authors: dict[int, str] = field(default_factory=dict)  # As the update named them.
    beginnings: list[Beginning] = field(default_factory=list)  # All that the node knows, if this brings one.


Subscription = Watch | Follow | FollowPresence
Push = Change | Watching | Reset | DocumentState | Edit | Presence
