"""Leases: the right to drive a thread, or to do a named job, alone.

A token is 32 hex digits. It names one claim, so that a request that is sent again is the same claim.
"""

from __future__ import annotations

from msgspec import Struct, field

from shoal.errors import LeaseHeld, LeaseLost, NotFound, Overloaded
from shoal.protocol.base import Cli, Elements, Http, Moment, Natural, ObjectWrite, Positive, Read, Reply, Seconds, operation

__all__ = [
    "AcquireLease",
    "EndLease",
    "LeaseGranted",
    "LeaseList",
    "LeaseReleased",
    "LeaseState",
    "LeasesRenewed",
    "ListLeases",
    "MarkLease",
    "MarkedLease",
    "ReadLease",
    "ReleaseLease",
    "RenewLease",
    "RenewLeases",
    "Term",
]


class Term(Struct, array_like=True, frozen=True):
    """A lease as its holder knows it."""

    space: str
    lease: str  # Its name, or the name of its thread.
    thread: bool  # Whether it is the lease of a thread.
    fence: int  # Its fencing number.
    token: str
    worklist: str = ""  # Of a claim: `lease` is the thread.
    item: str = ""  # Of a claim: the item's id. Empty: it is a lease.


@operation(
    action="write",
    http=Http(
        "POST",
        "/leases/{lease}",
        "Acquire a lease, or wait for it",
        errors=(LeaseHeld, Overloaded),
        example={"ttl": 30, "holder": "worker-7", "thread": True},
    ),
)
class AcquireLease(Read["LeaseGranted"], array_like=True, frozen=True, tag="acquire-lease"):
    """Acquire a lease.

    With a `wait` the claim stands in a queue, in the order of arrival, and keeps its place if the request is sent again with
    its token. The answer may come earlier, and then says that the claim still waits.
    """

    space: str
    lease: str
    ttl: Seconds  # How long it lasts after its last renewal.
    holder: str = ""  # For people, and to hand over.
    token: str = ""  # Empty: the node makes one.
    wait: Seconds = 0  # How long to wait for an answer.
    thread: bool = False  # Whether it is the lease of the thread of this name.


class LeaseGranted(Reply, array_like=True, frozen=True, tag="lease-granted"):
    """The lease, or the place in its queue."""

    granted: bool
    fence: int  # Its fencing number, which writes carry. If it is not granted, that of the present holder.
    token: str  # A secret: whoever has it may renew and release the lease.
    holder: str  # If it is not granted, the present one.


@operation(
    action="write",
    http=Http("PUT", "/leases/{lease}", "Renew a lease", errors=(LeaseLost,), example={"fence": 7, "token": "0" * 32}),
)
class RenewLease(Read["LeaseGranted"], array_like=True, frozen=True, tag="renew-lease"):
    """Renew a lease, for its ttl."""

    space: str
    lease: str
    fence: Natural  # The lease's fencing number, as it was granted.
    token: str  # The secret that came with it.
    thread: bool = False  # Whether it is the lease of the thread of this name.


@operation(action="write", family="lease")
class RenewLeases(Read["LeasesRenewed"], array_like=True, frozen=True, tag="renew-leases"):
    """Renew several leases of one client."""

    terms: Elements[Term]


class LeasesRenewed(Reply, array_like=True, frozen=True, tag="leases-renewed"):
    """The outcome for each of them."""

    lost: list[int]  # Which of them are lost, by their place in the request.
    unknown: list[int] = field(default_factory=list)  # Which of them may not be renewed, because no quorum answered.


@operation(
    action="write",
    http=Http(
        "POST",
        "/leases/{lease}/release",
        "Release a lease, or hand it over",
        errors=(LeaseLost, NotFound),
        example={"fence": 7, "token": "0" * 32},
    ),
)
class ReleaseLease(Read["LeaseReleased"], array_like=True, frozen=True, tag="release-lease"):
    """Release a lease. The first claim that waits gets it, or that of the holder called `to`."""

    space: str
    lease: str
    fence: Natural  # The lease's fencing number, as it was granted.
    token: str  # The secret that came with it.
    thread: bool = False  # Whether it is the lease of the thread of this name.
    to: str = ""  # Hand it over to this holder, which waits. Empty: to the first that waits.


class LeaseReleased(Reply, array_like=True, frozen=True, tag="lease-released"):
    """A lease was released, or a claim withdrawn."""

    released: bool  # False if it was not the caller's any more.


@operation(
    action="admin",
    http=Http(
        "POST",
        "/leases/{lease}/end",
        "End a lease that somebody else holds, as an operator",
        errors=(NotFound,),
        example={"fence": 7, "thread": True, "by": "ana", "reason": "its machine hangs"},
    ),
    cli=Cli(
        "lease end",
        "shoal lease end deploy 7 --by ana --reason 'its machine hangs' --url http://127.0.0.1:7400 --space crew",
        shows="released",
        help="End a lease that somebody else holds, by the fencing number that `lease list` shows. Prints whether it was held.",
    ),
)
class EndLease(Read["LeaseReleased"], array_like=True, frozen=True, tag="end-lease"):
    """End a lease that somebody else holds, as an operator. The first claim that waits gets it, or that of the holder `to`.

    The holder's term is over at once: it can neither renew nor write under it. The next holder gets the lease once no node can
    accept a write of the former term any more. An event `lease-ended` says who did it and why: in the journal of the thread,
    and for other leases in that of the thread `leases` of the space `.shoal`.
    """

    space: str
    lease: str
    fence: Positive  # The fencing number that the lease is seen to have. If it has another one by now, it is kept.
    thread: bool = False  # Whether it is the lease of the thread of this name.
    to: str = ""  # Hand it over to this holder, which waits. Empty: to the first that waits.
    by: str = ""
    reason: str = ""


@operation(http=Http("GET", "/leases/{lease}", "Read who holds a lease"))
class ReadLease(Read["LeaseState"], array_like=True, frozen=True, tag="read-lease"):
    """Read who holds a lease. With a `wait`, answer once it is not as `known` says any more, or after that time."""

    space: str
    lease: str
    thread: bool = False  # Whether it is the lease of the thread of this name.
    wait: Seconds = 0  # How long to wait for an answer.
    known: str = ""  # The `mark` of an earlier answer.


class LeaseState(Reply, array_like=True, frozen=True, tag="lease-state"):
    """The holder of a lease."""

    lease: str
    thread: bool  # Whether it is the lease of the thread of this name.
    held: bool  # Whether somebody has it, or it is offered to one that waited.
    holder: str
    fence: int  # 0 if nobody has it.
    ttl: Seconds  # How long it lasts after its last renewal.
    until_ms: Moment  # When others may take it if it is not renewed, by the serving node's clocks; 0 if nobody has it.
    waiting: list[str]  # The holders that wait, in their order.
    mark: str  # Changes when the holder or the queue changes.


@operation(
    family="lease",
    http=Http("GET", "/leases", "List the leases of a space that are held"),
    cli=Cli(
        "lease list",
        "shoal lease list --url http://127.0.0.1:7400 --space crew",
        rows="items",
        columns=("lease", "thread", "holder", "fence", "until_ms", "waiting"),
    ),
)
class ListLeases(Read["LeaseList"], array_like=True, frozen=True, tag="list-leases"):
    """List the leases of a space that are held, by name."""

    space: str


class LeaseList(Reply, array_like=True, frozen=True, tag="lease-list"):
    """The leases of a space."""

    items: list[LeaseState]


@operation(family="lease")
class MarkLease(ObjectWrite["MarkedLease"], array_like=True, frozen=True, tag="mark-lease"):
    """Note in a thread that it is under a lease, or not any more: nodes do this when one is acquired or released."""

    thread: str
    fence: Natural
    holder: str
    over: bool = False


class MarkedLease(Reply, array_like=True, frozen=True, tag="marked-lease"):
    """The lease that the thread is under, and whether that is the one that was to be noted."""

    fence: int
    counts: bool = True
