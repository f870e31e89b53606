"""A cluster: its members and changes of them, its backup, and signed statements of what its nodes hold.

A change of the members is not a write of an object: it has no idempotency key. The same change that is asked for again is
made once.

A declaration of a backup, which says where the nodes ship to, is none either. The same one that is made again changes nothing.

Signed statements of what a node holds, and its log, from which they can be checked.

`SignHeads` changes no object, and so has no idempotency key.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from shoal.errors import (
    BackupConflict,
    BackupUnreachable,
    ChangeUnderWay,
    NoQuorum,
    NotAMember,
    OutcomeUnknown,
    RegisterChanged,
)
from shoal.protocol.base import Elements, Http, Natural, Parts, Read, Reply, operation

__all__ = [
    "BackupView",
    "ChangeMembers",
    "DeclareBackup",
    "GivenUp",
    "LeftOut",
    "LogHead",
    "LogPage",
    "LoggedOperation",
    "LostDirectory",
    "MembersView",
    "ReadBackup",
    "ReadLog",
    "ReadMembers",
    "Rebuild",
    "RebuildView",
    "RemovedNode",
    "Seat",
    "SignHeads",
    "StateRoot",
    "Statement",
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


@operation(family="cluster", http=Http("GET", "/cluster/backup", "Where the cluster is backed up, and how far"))
class ReadBackup(Read["BackupView"], array_like=True, frozen=True, tag="read-backup"):
    """Read where the nodes of this cluster ship to, and how far the serving node knows that to be."""


@operation(
    action="admin",
    family="cluster",
    http=Http(
        "POST",
        "/cluster/backup",
        "Declare where the cluster is backed up",
        errors=(BackupConflict, BackupUnreachable, NoQuorum, OutcomeUnknown, RegisterChanged),
        example={"url": "file:///mnt/backup/prod"},
    ),
)
class DeclareBackup(Read["BackupView"], array_like=True, frozen=True, tag="declare-backup"):
    """Have all nodes of this cluster ship to a bucket from now on. The place is empty, or holds the backup of this cluster."""

    url: str  # s3://BUCKET/PREFIX, gs://…, az://… or file:///DIR; empty: ship nowhere any more. What is there stays.
    keep_ms: Natural | None = None  # For how long each moment can be restored, at least a day; 0: for ever. Null: as before.


class BackupView(Reply, array_like=True, frozen=True, tag="backup-view"):
    """The backup of a cluster, as the serving node knows it."""

    url: str  # Empty: there is none.
    cluster: str  # The identity of the cluster in its backups, in hex; empty: there was never one.
    state: Literal["none", "current", "behind", "failing"]  # `behind`: something waits to be shipped. `failing`: see `trouble`.
    trouble: str = ""  # Why the serving node does not ship, and what to do; else empty.
    covered_ms: int = 0  # Everything that the serving node held at this moment is in the bucket; 0: that is not known yet.
    lag_ms: int = 0  # The recovery point: how long ago that was, or since when nothing is known; 0 only if all is there now.
    manifest: int = 0  # The number of the last manifest that it has read,
    manifest_ms: int = 0  # and when that was written.
    bytes: int = 0  # Of all objects that count.
    objects: int = 0  # Of these.
    earliest_ms: int = 0  # The first moment to which the backup can be restored; 0: there is none.
    shipped: int = 0  # Operations that the serving node shipped, in this opening,
    shipped_bytes: int = 0  # and bytes that it put.
    verified_ms: int = 0  # When `shoal backup verify` last restored it and found it sound; 0: never.
    skipped: list[str] = field(default_factory=list)  # Partitions that could not be shipped at the last attempt, and why.
    keep_ms: int = 0  # For how long each moment can be restored; 0: for ever.
    begun_ms: int = 0  # When it was first declared at this place, by the bucket's clock; 0: that is not known yet.


class LogHead(Struct, array_like=True, frozen=True, gc=False):
    """The last operation of one origin's log in one partition."""

    partition: int
    origin: bytes
    sequence: int
    hlc: int
    chain: bytes  # Its chain hash, which covers all operations of this log up to it.


class StateRoot(Struct, array_like=True, frozen=True, gc=False):
    """A hash of the rows that a partition's operations make: of exactly those that its heads in the same statement cover."""

    partition: int
    vector: bytes  # A hash of the last operation of each origin that is not retired, with its chain hash.
    listed: bytes  # SHA-256 of the list of its objects,
    objects: bytes  # and of the rows of these,
    left: list[bytes]  # without these objects (a hash of each one's name): they wait to be swept, or lack data.


class LeftOut(Struct, array_like=True, frozen=True, gc=False):
    """A partition whose rows are to be read anew, without objects that another root of it leaves out."""

    partition: int
    objects: Elements[bytes]  # As `StateRoot.left`.


@operation(action="admin", family="cluster")
class SignHeads(Read["Statement"], array_like=True, frozen=True, tag="sign-heads"):
    """Sign what the serving node holds durably. Each call makes another statement, which the node does not keep.

    With `without`, it has roots of these partitions alone, which are computed from the rows as they are now.
    """

    without: Parts[LeftOut] = field(default_factory=list)


class Statement(Reply, array_like=True, frozen=True, tag="statement"):
    """The heads that a node held at one moment, signed with Ed25519 (RFC 8032) over all other fields but the key."""

    node: bytes
    number: int  # The node numbers the statements that it keeps, from 1; 0: it does not keep this one.
    time_ms: int
    previous: bytes  # SHA-256 of the last statement before that the node keeps, with its signature; empty if it keeps none.
    own: list[bytes]  # The origins under which the node writes: one, or none before its first write.
    heads: list[LogHead]  # In this order. Numbers above 1: of partitions in which something moved since the one before.
    key: bytes  # The node's public key, 32 bytes.
    signature: bytes
    roots: list[StateRoot] | None = None  # Of partitions with heads here, as many as could be made; None: an older version's.


@operation(discloses=True, action="admin", family="cluster", reveals=True)
class ReadLog(Read["LogPage"], array_like=True, frozen=True, tag="read-log"):
    """Read operations of one log, in order."""

    partition: int
    origin: bytes
    after: int = 0  # A sequence.
    limit: int = 1000


class LoggedOperation(Struct, array_like=True, frozen=True, gc=False):
    """An operation as the log holds it."""

    sequence: int
    chain: bytes  # Its chain hash.
    packed: bytes  # The operation: docs/STORAGE.md.


class LogPage(Reply, array_like=True, frozen=True, tag="log-page"):
    """A part of one log. It ends before the answer grows too large."""

    base: int  # The last operation that has left the log; 0: none has.
    base_chain: bytes
    tip: int  # The last operation; 0: the node holds none.
    tip_chain: bytes
    forgotten_hlc: int = 0  # Of a log that is not there: its operations up to this time may be of an origin that was retired.
    operations: list[LoggedOperation] = field(default_factory=list)
