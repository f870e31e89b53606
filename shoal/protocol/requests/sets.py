"""Sets. An element is a packed value; two that are equal, type by type, are one element."""

from __future__ import annotations

from msgspec import field

from shoal.protocol.requests.base import ObjectRead, ObjectWrite, Reply
from shoal.protocol.requests.declared import operation

__all__ = ["AlterSet", "ContainsMembers", "MembersContained", "ReadSet", "SetAltered", "SetMembers"]


@operation(batch=True)
class AlterSet(ObjectWrite["SetAltered"], array_like=True, frozen=True, tag="alter-set"):
    """Remove elements, and add some. A removal removes what the serving node shows."""

    set: str
    add: list[bytes] = field(default_factory=list)
    remove: list[bytes] = field(default_factory=list)


class SetAltered(Reply, array_like=True, frozen=True, tag="set-altered"):
    added: int  # Elements that were no members before.
    removed: int  # Elements that were.
    size: int  # Members there are now.


@operation(multi_read=True)
class ReadSet(ObjectRead["SetMembers"], array_like=True, frozen=True, tag="read-set"):
    """A page of members, in the order of their bytes. A set that does not exist is empty."""

    set: str
    after: bytes = b""  # The last member of the page before.
    limit: int = 1000


class SetMembers(Reply, array_like=True, frozen=True, tag="set-members"):
    members: list[bytes]
    size: int  # Of the whole set.
    more: bool  # Ask again with after=members[-1].


class ContainsMembers(ObjectRead["MembersContained"], array_like=True, frozen=True, tag="contains-members"):
    """Which of some elements are members."""

    set: str
    elements: list[bytes]


class MembersContained(Reply, array_like=True, frozen=True, tag="members-contained"):
    contained: list[bool]  # As many as were asked for.
