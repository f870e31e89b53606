"""The members of the cluster, and changes of them.

A change is not a write of an object: it has no idempotency key. The same change that is asked for again is made once.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from shoal.errors import ChangeUnderWay, NoQuorum, NotAMember, OutcomeUnknown
from shoal.protocol.base import Read, Reply
from shoal.protocol.declared import Http, operation

__all__ = [
    "ChangeMembers",
    "GivenUp",
    "LostDirectory",
    "MembersView",
    "ReadMembers",
    "Rebuild",
    "RebuildView",
    "RemovedNode",
    "Seat",
    "Survivor",
]


@operation(family="cluster", http=Http("GET", "/cluster/members", "Who the members are"))
class ReadMembers(Read["MembersView"], array_like=True, frozen=True, tag="members"):
    """Read who the members are, as the serving node knows, and how far a change of them is."""


@operation(
    action="admin",
    family="cluster",
    http=Http(
        "POST",
        "/cluster/members",
        "Add, drain, replace or forget a node",
        errors=(ChangeUnderWay, NoQuorum, NotAMember, OutcomeUnknown),
        example={"change": "add", "joins": "n4:7400"},
    ),
)
class ChangeMembers(Read["MembersView"], array_like=True, frozen=True, tag="change-members"):
    """Begin a change of the members, or take back the one that is under way. It goes on by itself."""

    change: Literal["add", "drain", "replace", "forget", "cancel"]  # `cancel` takes back the one that is under way.
    joins: str = ""  # The address of the node that joins: for `add` and `replace`.
    leaves: str = ""  # That of the member that leaves: for `drain`, `replace` and `forget`; or the id of a lost directory.


@operation(action="admin", family="cluster")
class Rebuild(Read["RebuildView"], array_like=True, frozen=True, tag="rebuild"):
    """Look at what is left of a cluster that lost its majority; with the `plan` that this names, go on with what is left."""

    plan: str = ""  # Empty: only look.
    leases_after_ms: int = (
        -1
    )  # How long leases of lost members may last still; below 0: as long as any may, as far as is known.


class Seat(Struct, array_like=True, frozen=True):
    """A node that takes part, as the serving node sees it."""

    name: str  # "host:port"
    node: str  # The id of its directory, in hex; empty if it was never reached.
    part: Literal["member", "joining", "leaving"]  # Its part in this epoch.
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

    epoch: int  # It grows by one with each step of a change; 0: the configured list.
    change: str  # The command of the change that is under way, such as `replace n3:7400 n4:7400`; empty if there is none.
    step: Literal["", "prepared", "joint"]  # `joint`: a majority needs both lists.
    members: list[Seat]
    removed: list[RemovedNode] = field(default_factory=list)  # The last first.
    waiting: list[str] = field(default_factory=list)  # Nodes that asked to be linked and are not added.
    trouble: str = ""  # Why the change does not go on, if that is known.
    lost: list[LostDirectory] = field(default_factory=list)  # That no command has forgotten yet.


class Survivor(Struct, array_like=True, frozen=True):
    """A member that answers, and would be kept."""

    name: str
    node: str  # The id of its directory, in hex.
    register: Literal["voting", "empty", "forgotten"]  # What it is in the quorum register.
    copy_of: str  # The directory whose votes it has, if it is a copy; else empty.
    epoch: int  # The newest of which it has the record.
    term: int  # In which its votes were given; 0: it has none, or some are missing.
    votes: int  # In that term.
    keys: int  # Of the register that it has voted on.
    learner: bool  # Whether it may lack operations that others relied on it to hold.
    operations: int  # How many it holds.
    lacks: dict[str, int] = field(default_factory=dict)  # By address: operations that a member held, and this one does not.


class GivenUp(Struct, array_like=True, frozen=True):
    """A member, or an older directory of one, that would be refused from then on."""

    name: str
    node: str  # In hex; empty if no survivor knows it.
    away_ms: int  # How long no survivor has had a link to it, as far as they saw; 0: another directory is there.


class RebuildView(Reply, array_like=True, frozen=True, tag="rebuild-view"):
    """The parts that a rebuild keeps and gives up; or, once it is made, the epoch that it began."""

    plan: str  # Names what is left; empty: it is made, or there is nothing to rebuild.
    epoch: int  # The newest that is known.
    reason: str  # Why there is nothing to rebuild, or why copies do not go on by themselves; else empty.
    survivors: list[Survivor] = field(default_factory=list)
    given_up: list[GivenUp] = field(default_factory=list)
    may_be_lost: list[str] = field(default_factory=list)  # For people.
    leases_after_ms: int = 0  # How long clients of lost members may hold leases still.
