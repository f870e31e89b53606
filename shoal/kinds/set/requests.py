"""Sets: an element is a packed value, and values that are equal and of equal types are one element."""

from __future__ import annotations

from msgspec import field

from shoal.protocol.base import (
    Cli,
    Cursor,
    Deleted,
    Elements,
    Http,
    ObjectRead,
    ObjectWrite,
    Positive,
    Reply,
    Value,
    Would,
    always,
    deletion,
    operation,
)

__all__ = [
    "AlterSet",
    "ClearSet",
    "ContainsMembers",
    "DeleteSet",
    "MembersContained",
    "PopSet",
    "ReadSet",
    "SetAltered",
    "SetCleared",
    "SetMembers",
    "SetPopped",
]


@operation(
    weighs=lambda request: 1024 * (len(request.add) + len(request.remove)),  # What an element takes, whatever its size.
    removes=lambda request: bool(request.remove),
    discloses=True,
    batch=True,
    http=Http(
        "POST",
        "/sets/{set}",
        "Remove elements of a set, and add others",
        ops=("alter-set",),
        example={"add": ["page-1"], "remove": ["page-0"]},
    ),
    # A face that may add too has no dry run: only the command shows this, and of it `removed`.
    would=Would(
        lambda request: (ContainsMembers(request.space, request.set, request.remove),),
        lambda _, __, found: SetAltered(added=0, removed=sum(found.contained), size=0),
    ),
    cli=(
        Cli(
            "set add",
            """shoal set add urls '"https://example.org"' --data ./state""",
            shows="added",
            help="Add elements to a set, and print how many were not members.",
            arguments=("add",),
            hides=("remove",),
        ),
        Cli(
            "set remove",
            """shoal set remove urls '"https://example.org"' --yes --data ./state""",
            shows="removed",
            help="Remove elements from a set, and print how many were members.",
            arguments=("remove",),
            hides=("add",),
            destroys="Remove these elements of set {set}",
        ),
    ),
)
class AlterSet(ObjectWrite["SetAltered"], array_like=True, frozen=True, tag="alter-set"):
    """Remove elements, and add others. A removal only affects elements that the serving node shows."""

    set: str
    add: Elements[Value] = field(default_factory=list)
    remove: Elements[Value] = field(default_factory=list)


class SetAltered(Reply, array_like=True, frozen=True, tag="set-altered"):
    """The changes of a write to a set."""

    added: int  # How many elements were not members before.
    removed: int  # How many elements were members and were removed.
    size: int  # The number of members now.


@operation(
    frees=True,
    removes=always,
    batch=True,
    would=Would(
        lambda request: (ReadSet(request.space, request.set, limit=1),),
        lambda _, __, found: SetCleared(removed=found.size, more=False),
    ),
    http=Http("DELETE", "/sets/{set}/members", "Remove members of a set, a bounded number per request", ops=("clear-set",)),
    cli=Cli(
        "set clear",
        "shoal set clear urls --yes --data ./state",
        shows="removed",
        help="Remove all members of a set, and print their number.",
        destroys="Remove all members of set {set}",
    ),
)
class ClearSet(ObjectWrite["SetCleared"], array_like=True, frozen=True, tag="clear-set"):
    """Remove the members that the serving node shows, a bounded number per operation."""

    set: str


class SetCleared(Reply, array_like=True, frozen=True, tag="set-cleared"):
    """How many members a clear removed."""

    removed: int  # How many members were removed.
    more: bool  # Whether members are left; ask again.


@operation(
    frees=True,
    removes=always,
    discloses=True,
    batch=True,
    http=Http("POST", "/sets/{set}/pop", "Remove members of a set, and return them", ops=("pop-set",), example={"count": 1}),
    cli=Cli(
        "set pop",
        "shoal set pop urls 2 --data ./state",
        shows="members",
        help="Remove members of a set, the first in the order of their bytes, and print them.",
        defaults={"count": 1},
    ),
)
class PopSet(ObjectWrite["SetPopped"], array_like=True, frozen=True, tag="pop-set"):
    """Remove the first `count` members that the serving node shows, in the order of their bytes, and return them.

    It returns fewer if the set has fewer, or if they would not fit in one answer. On one node no two of these requests return
    the same member, and none returns one whose removal the node knows. Two nodes that have not heard of each other's may.
    """

    set: str
    count: Positive = 1


class SetPopped(Reply, array_like=True, frozen=True, tag="set-popped"):
    """The members that were removed."""

    members: list[Value]  # Empty if the set is.
    size: int  # The number of members that are left.


@operation(
    multi_read=True,
    http=Http("GET", "/sets/{set}", "A page of a set's members", ops=("set",)),
    cli=Cli("set get", "shoal set get urls --data ./state", rows="members", help="List a set's members."),
)
class ReadSet(ObjectRead["SetMembers"], array_like=True, frozen=True, tag="read-set"):
    """Read a page of members, in the order of their bytes. A set that does not exist is empty."""

    set: str
    after: Cursor = b""  # The last member of the previous page.
    limit: Positive = 1000


class SetMembers(Reply, array_like=True, frozen=True, tag="set-members"):
    """A page of a set."""

    members: list[Value]
    size: int  # The number of members of the whole set.
    more: bool  # Ask again with after=members[-1].

    @property
    def cursor(self) -> Cursor:
        """Where the next page begins, as `after`; empty if this page is."""
        return self.members[-1] if self.members else b""


@operation(
    http=Http(
        "POST",
        "/sets/{set}/contains",
        "Check whether elements are members of a set",
        example={"elements": ["page-1"]},
    ),
    cli=Cli("set contains", """shoal set contains urls '"https://example.org"' --data ./state""", shows="contained"),
)
class ContainsMembers(ObjectRead["MembersContained"], array_like=True, frozen=True, tag="contains-members"):
    """Check whether elements are members of a set."""

    set: str
    elements: Elements[Value]


class MembersContained(Reply, array_like=True, frozen=True, tag="members-contained"):
    """Whether each element is a member, in the order of the request."""

    contained: list[bool]  # One per element of the request.


@deletion("set", "urls")
class DeleteSet(ObjectWrite[Deleted], array_like=True, frozen=True, tag="delete-set"):
    """Delete a set with all its members."""

    set: str
