"""The members of the cluster, and changes of them.

A change is not a write of an object: it has no idempotency key. The same change that is asked for again is made once.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from shoal.protocol.requests.base import Read, Reply
from shoal.protocol.requests.declared import operation

__all__ = ["ChangeMembers", "LostDirectory", "MembersView", "ReadMembers", "RemovedNode", "Seat"]


@operation(family="cluster")
class ReadMembers(Read["MembersView"], array_like=True, frozen=True, tag="members"):
    """Read who the members are, as the serving node knows, and how far a change of them is."""


@operation(action="admin", family="cluster")
class ChangeMembers(Read["MembersView"], array_like=True, frozen=True, tag="change-members"):
    """Begin a change of the members, or take back the one that is under way. It goes on by itself."""

    change: Literal["add", "drain", "replace", "forget", "cancel"]
    joins: str = ""  # The address of the node that joins: for `add` and `replace`.
    leaves: str = ""  # That of the member that leaves: for `drain`, `replace` and `forget`; or the id of a lost directory.


class Seat(Struct, array_like=True, frozen=True):
    """A node that takes part, as the serving node sees it."""

    name: str  # "host:port"
    node: str  # The id of its directory, in hex; empty if it was never reached.
    part: Literal["member", "joining", "leaving"]
    state: Literal["self", "linked", "unreachable"]
    progress: str = ""  # How far it is with the change that is under way.


class RemovedNode(Struct, array_like=True, frozen=True):
    """A directory that is no member any more, and is refused."""

    name: str
    node: str  # In hex; empty if no node knew it.
    epoch: int  # The first without it.
    handed_over: bool  # Whether the others hold all that it held.


class LostDirectory(Struct, array_like=True, frozen=True):
    """A directory of a member, whose place another one took, as the serving node knows."""

    name: str  # The member's address.
    node: str  # The id of the directory, in hex.


class MembersView(Reply, array_like=True, frozen=True, tag="members-view"):
    """The members in one epoch. Epoch 0 is the configured list."""

    epoch: int
    change: str  # The command of the change that is under way, such as `replace n3:7400 n4:7400`; empty if there is none.
    step: Literal["", "prepared", "joint"]  # `joint`: a majority needs both lists.
    members: list[Seat]
    removed: list[RemovedNode] = field(default_factory=list)  # The last first.
    waiting: list[str] = field(default_factory=list)  # Nodes that asked to be linked and are not added.
    trouble: str = ""  # Why the change does not go on, if that is known.
    lost: list[LostDirectory] = field(default_factory=list)  # That no command has forgotten yet.
