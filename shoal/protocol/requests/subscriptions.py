"""What is pushed to who watches."""

from __future__ import annotations

from msgspec import field

from shoal.protocol.requests.base import Read, Reply
from shoal.protocol.requests.documents import ANY, DocumentState, RootKind
from shoal.protocol.requests.listings import ObjectKind
from shoal.protocol.requests.presence import FollowPresence, Presence


class Watch(Read, array_like=True, frozen=True, tag="watch"):
    """Push a `Change` for every durable change in a space from now on."""

    space: str
    kind: ObjectKind | None = None
    prefix: str = ""


class Change(Reply, array_like=True, frozen=True, tag="change"):
    """One mutation that became durable. `what` is the request's tag: "save", "append", "update", …"""

    space: str
    kind: ObjectKind
    name: str
    what: str
    id: str  # Of the checkpoint or event; else empty.
    hlc: int
    wall_ms: int


class Follow(Read, array_like=True, frozen=True, tag="follow"):
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


Subscription = Watch | Follow | FollowPresence
Push = Change | DocumentState | Edit | Presence
