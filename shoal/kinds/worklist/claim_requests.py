"""Exclusive claims: entries of a worklist, or of the inbox, whose worklist has no name, that are handed out to one worker at
a time. A claim is a lease of an entry; its token is a secret of 32 hex digits, and its fencing number grows.
"""

from __future__ import annotations

from shoal.errors import LeaseLost, NoQuorum, NotFound, Overloaded, Taken
from shoal.kinds.worklist.requests import NIL
from shoal.protocol.base import ObjectWrite, Read, Reply
from shoal.protocol.declared import Http, operation
from shoal.protocol.fields import Moment, Natural, Seconds, Value

__all__ = [
    "AttemptBegun",
    "BeginAttempt",
    "ClaimExtended",
    "ClaimItem",
    "CompleteItem",
    "ExtendClaim",
    "FailItem",
    "ItemClaimed",
    "ItemCompleted",
    "ItemFailed",
    "ItemRevived",
    "ReviveItem",
]

_LIST = "/threads/{thread}/worklists/{worklist}"
_TICKET = {"fence": 7, "token": "0" * 32}


@operation(
    discloses=True,
    action="write",
    http=Http(
        "POST",
        f"{_LIST}/claim",
        "Claim an item of a worklist, or wait for one",
        errors=(Overloaded, NoQuorum),
        example={"ttl": 60, "holder": "worker-7", "wait": 10},
    ),
)
class ClaimItem(Read["ItemClaimed"], array_like=True, frozen=True, tag="claim-item"):
    """Claim the next item of a worklist, for one worker.

    A request that is sent again with its token is the same claim. With a `wait` the answer comes once there is an item, or
    after that time; it may come earlier.
    """

    space: str
    thread: str
    worklist: str  # Empty: the inbox.
    ttl: Seconds  # How long the claim lasts after its last renewal.
    holder: str = ""  # The worker's name, for people.
    token: str = ""  # Empty: the node makes one.
    wait: Seconds = 0  # How long to wait for an answer.


class ItemClaimed(Reply, array_like=True, frozen=True, tag="item-claimed"):
    """The item that was claimed, if there was one."""

    claimed: bool  # False if there is nothing to claim now; the other fields are empty then.
    id: str = ""  # The item's id.
    key: str | None = None  # The item's key. Messages may have none.
    by: str = ""  # The name of the one that added it.
    wall_ms: Moment = 0  # When it was added.
    value: Value = NIL  # The item's value.
    attempt: int = 0  # From 1: how often the item was claimed.
    fence: int = 0  # The claim's fencing number.
    token: str = ""  # A secret: whoever has it may complete the item.


@operation(
    action="write",
    http=Http("PUT", f"{_LIST}/claims/{{id}}", "Renew a claim of an item", errors=(LeaseLost, NoQuorum), example=_TICKET),
)
class ExtendClaim(Read["ClaimExtended"], array_like=True, frozen=True, tag="extend-claim"):
    """Renew a claim, for its ttl or a longer one, which it keeps."""

    space: str
    thread: str
    worklist: str
    id: str  # The item's id.
    fence: Natural  # The claim's fencing number.
    token: str  # The secret that came with it.
    ttl: Seconds = 0  # 0: as before. A claim never gets a shorter one.


class ClaimExtended(Reply, array_like=True, frozen=True, tag="claim-extended"):
    """A claim was renewed."""

    ttl: Seconds  # How long the claim lasts after its last renewal.


@operation(
    frees=True,
    batch=True,
    hearsay=("by",),  # The holder of the claim, a text for people.
    http=Http(
        "POST",
        f"{_LIST}/claims/{{id}}/complete",
        "Complete an item that is claimed",
        ops=("complete-item",),
        errors=(LeaseLost, NoQuorum, NotFound, Taken),
        example={**_TICKET, "result": {"pages": 3}},
    ),
)
class CompleteItem(ObjectWrite["ItemCompleted"], array_like=True, frozen=True, tag="complete-item"):
    """Complete an item under a claim, with its result. It has at least durability `quorum`."""

    thread: str
    worklist: str
    id: str  # The item's id.
    fence: Natural  # The claim's fencing number.
    token: str  # The secret that came with it.
    result: Value = NIL  # The item's result.
    by: str = ""  # The worker's name.


class ItemCompleted(Reply, array_like=True, frozen=True, tag="item-completed"):
    """An item was completed."""

    id: str  # The item's id.


@operation(
    batch=True,
    hearsay=("by",),  # The holder of the claim, a text for people.
    http=Http(
        "POST",
        f"{_LIST}/claims/{{id}}/fail",
        "Give back an item that is claimed",
        ops=("fail-item",),
        errors=(LeaseLost, NoQuorum, NotFound, Taken),
        example={**_TICKET, "reason": "the page does not answer", "retry_in": 60},
    ),
)
class FailItem(ObjectWrite["ItemFailed"], array_like=True, frozen=True, tag="fail-item"):
    """Give back an item under a claim, with the reason. After its last attempt it becomes a dead letter."""

    thread: str
    worklist: str
    id: str  # The item's id.
    fence: Natural  # The claim's fencing number.
    token: str  # The secret that came with it.
    reason: str = ""  # Why the item is given back; the last one is kept.
    retry_in: Seconds = 0  # How long nobody gets it.
    by: str = ""  # The worker's name.


class ItemFailed(Reply, array_like=True, frozen=True, tag="item-failed"):
    """An item was given back."""

    dead: bool  # Whether it is a dead letter now.
    attempt: int  # How often it was claimed.


@operation(
    batch=True,
    http=Http(
        "POST",
        f"{_LIST}/revive",
        "Put a dead letter back into its worklist",
        errors=(NotFound,),
        example={"id": "0" * 64},
    ),
)
class ReviveItem(ObjectWrite["ItemRevived"], array_like=True, frozen=True, tag="revive-item"):
    """Put a dead letter back. Its attempts are counted anew."""

    thread: str
    worklist: str
    id: str  # The item's id.
    by: str = ""  # The name of the one that puts it back.


class ItemRevived(Reply, array_like=True, frozen=True, tag="item-revived"):
    """A dead letter was put back."""

    id: str  # The item's id.


@operation(discloses=True)
class BeginAttempt(ObjectWrite["AttemptBegun"], array_like=True, frozen=True, tag="begin-attempt"):
    """Note that an item is handed out: nodes do this when one is claimed."""

    thread: str
    worklist: str
    id: str
    fence: Natural
    token: str
    by: str = ""


class AttemptBegun(Reply, array_like=True, frozen=True, tag="attempt-begun"):
    """The attempt, or that the item cannot be handed out."""

    attempt: int  # 0: it is done, waits for its time, or is a dead letter.
    key: str | None = None
    by: str = ""
    wall_ms: int = 0
    value: bytes = NIL
