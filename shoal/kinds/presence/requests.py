"""Presence in a space or a document, which is not durable."""

from __future__ import annotations

from typing import Annotated, Never

from msgspec import Struct, field

from shoal.protocol.base import Elements, Http, Named, Read, Reply, Shape, operation

__all__ = ["Announce", "Announced", "FollowPresence", "Presence", "Present", "ReadPresence"]


class Present(Struct, array_like=True, frozen=True):
    """The announcement of one client: an entry of the Yjs awareness."""

    client: Annotated[int, Named("id")]  # In a document, its Yjs client id.
    clock: Annotated[int, Shape.INTERNAL]  # It grows with each announcement.
    state: Annotated[bytes, Shape.JSON]  # The state that the client announced; `null` if it left.


@operation(action="append", family="presence")
class Announce(Read["Announced"], array_like=True, frozen=True, tag="announce"):
    """Announce clients, which are present while this session lasts and the announcement is renewed in time.

    Entries that another session has announced are not changed.
    """

    space: str
    document: str  # Empty for the space itself.
    entries: Elements[Present]


class Announced(Reply, array_like=True, frozen=True, tag="announced"):
    """The caller's entries that the node counts as gone. Announce them with a newer clock to bring them back."""

    gone: list[Present] = field(default_factory=list)


@operation(
    family="presence",
    http=(
        Http("GET", "/presence", "The clients present in a space", sets={"document": ""}),
        Http("GET", "/documents/{document}/presence", "The clients present in a document, Yjs clients included"),
    ),
)
class ReadPresence(Read["Presence"], array_like=True, frozen=True, tag="read-presence"):
    """Read the clients that are present."""

    space: str
    document: str = ""


class Presence(Reply, array_like=True, frozen=True, tag="presence"):
    """Entries of a space or a document."""

    entries: Annotated[list[Present], Named("members")]


@operation(family="presence")
class FollowPresence(Read[Never], array_like=True, frozen=True, tag="follow-presence"):
    """Push a `Presence` of all clients that are present, then one for each change, with the newest entry of each client."""

    space: str
    document: str = ""
