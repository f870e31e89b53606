"""Who is present in a space or a document. Nothing of it is durable."""

from __future__ import annotations

from typing import Never

from msgspec import Struct, field

from shoal.protocol.requests.base import Read, Reply

__all__ = ["Announce", "Announced", "FollowPresence", "Presence", "Present", "ReadPresence"]


class Present(Struct, array_like=True, frozen=True):
    """What one client says of itself: an entry of Yjs' awareness."""

    client: int  # For a document: its Yjs client id.
    clock: int  # Grows with everything it says.
    state: bytes  # JSON; `null`: it left.


class Announce(Read["Announced"], array_like=True, frozen=True, tag="announce"):
    """Be present while this session lasts, and for as long as it is renewed in time.

    An entry that another session has announced is not changed.
    """

    space: str
    document: str  # Empty: in the space itself.
    entries: list[Present]


class Announced(Reply, array_like=True, frozen=True, tag="announced"):
    """Those of the caller's entries that are gone for the node: a newer clock brings them back."""

    gone: list[Present] = field(default_factory=list)


class ReadPresence(Read["Presence"], array_like=True, frozen=True, tag="read-presence"):
    """Read who is present."""

    space: str
    document: str = ""


class Presence(Reply, array_like=True, frozen=True, tag="presence"):
    entries: list[Present]


class FollowPresence(Read[Never], array_like=True, frozen=True, tag="follow-presence"):
    """Push a `Presence` of all who are there, then one of what has changed, the newest of each client."""

    space: str
    document: str = ""
