"""Sets. An element is a packed value; two that are equal, type by type, are one element."""

from __future__ import annotations

from msgspec import field

from shoal.protocol.fields import Value
from shoal.protocol.requests.base import ObjectRead, ObjectWrite, Reply
from shoal.protocol.requests.declared import Cli, Http, operation

__all__ = ["AlterSet", "ClearSet", "ContainsMembers", "MembersContained", "ReadSet", "SetAltered", "SetCleared", "SetMembers"]


@operation(
    batch=True,
    http=Http(
        "POST",
        "/sets/{set}",
        "Remove elements of a set, and add some",
        ops=("alter-set",),
        example={"add": ["page-1"], "remove": ["page-0"]},
    ),
    cli=[
        Cli(
            "set add",
            "Add elements to a set, and print how many were no members.",
            """shoal set add urls '"https://example.org"' --data ./state""",
            shows="added",
            arguments=("add",),
        ),
        Cli(
            "set remove",
            "Remove elements from a set, and print how many were members.",
            """shoal set remove urls '"https://example.org"' --data ./state""",
            shows="removed",
            arguments=("remove",),
        ),
    ],
)
class AlterSet(ObjectWrite["SetAltered"], array_like=True, frozen=True, tag="alter-set"):
    """Remove elements, and add some. A removal removes what the serving node shows."""

    set: str
    add: list[Value] = field(default_factory=list)
    remove: list[Value] = field(default_factory=list)


class SetAltered(Reply, array_like=True, frozen=True, tag="set-altered"):
    added: int  # Elements that were no members before.
    removed: int  # Elements that were.
    size: int  # Members there are now.


@operation(
    batch=True,
    http=Http("DELETE", "/sets/{set}/members", "Remove members of a set: as many as one operation takes", ops=("clear-set",)),
)
class ClearSet(ObjectWrite["SetCleared"], array_like=True, frozen=True, tag="clear-set"):
    """Remove the members that the serving node shows, or as many of them as one operation takes."""

    set: str


class SetCleared(Reply, array_like=True, frozen=True, tag="set-cleared"):
    removed: int  # Elements that were members.
    more: bool  # Some are left: ask again.


@operation(multi_read=True)
class ReadSet(ObjectRead["SetMembers"], array_like=True, frozen=True, tag="read-set"):
    """A page of members, in the order of their bytes. A set that does not exist is empty."""

    set: str
    after: bytes = b""  # The last member of the page before.
    limit: int = 1000


class SetMembers(Reply, array_like=True, frozen=True, tag="set-members"):
    members: list[Value]
    size: int  # Of the whole set.
    more: bool  # Ask again with after=members[-1].


@operation(
    http=Http(
        "POST",
        "/sets/{set}/contains",
        "Which of some elements are members of a set",
        example={"elements": ["page-1"]},
    )
)
class ContainsMembers(ObjectRead["MembersContained"], array_like=True, frozen=True, tag="contains-members"):
    """Which of some elements are members."""

    set: str
    elements: list[Value]


class MembersContained(Reply, array_like=True, frozen=True, tag="members-contained"):
    contained: list[bool]  # As many as were asked for.
