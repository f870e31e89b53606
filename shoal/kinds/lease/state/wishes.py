"""The claims of worklists' items that one node asks another to decide for it: its wishes.

    Wishes   →   decide   →   Granted

Nodes that change one key of the quorum register at the same time are in each other's way. So a node sends what it wants to the
node that changed the key last, which decides for both. This is for speed alone.

Laws:
- Every node may decide on every wish at any time: what it decides is stored by compare-and-set. So it does not matter
  whether the receiver is the right node, and if no answer comes, the sender decides itself.
- A claim is the same however often it is asked for, on whichever node: it gets one item.
- The sender counts on what it gets from the time at which it sent the wishes.
"""

from __future__ import annotations

from msgspec import Struct

from shoal.errors import InvalidValue
from shoal.kinds.lease.state.table import ITEM_BYTES, Claim, Decider, Group, Handed, HandedOut, HandOut, LeaseName, Table

ITEMS_MAX = 512  # In one `Wishes`.
CLAIMS_MAX = 256
ENDED_MAX = 1024
_TOKEN_BYTES = 16
_TEXT_CHARS_MAX = 1024


class Ended(Struct, array_like=True, frozen=True):
    """A claim whose item is finished."""

    space: str
    name: str
    fence: int
    token: bytes

    def drop(self, table: Table) -> None:
        """End it."""
        table.drop(LeaseName(self.space, self.name), self.fence, self.token)


class Choice(Struct, array_like=True, frozen=True):
    """An item that claims may get."""

    item: bytes  # The first `ITEM_BYTES` of its id.
    group: str = ""
    group_max: int = 0


class Wishes(Struct, array_like=True, frozen=True, tag=46):
    """Claims that have ended, and claims of items of one worklist; answered by `Granted` of this number."""

    number: int
    key: str  # Of the quorum register.
    ended: list[Ended]
    space: str
    mark: str
    items: list[Choice]
    claims: list[Claim]

    def decide(self, table: Table, turn: Decider) -> HandedOut:
        """Change the table as this node would that asked for it. `turn` names that node."""
        for ended in self.ended:
            ended.drop(table)
        groups = {choice.item: Group(choice.group, choice.group_max) for choice in self.items}
        wanted = HandOut(self.space, self.mark, groups, self.claims)
        return table.hand_out(wanted, groups.__getitem__, turn)


class Granted(Struct, array_like=True, frozen=True, tag=47):
    """The grants to the claims, in their order, or nothing. If it was not decided, the receiver decides itself."""

    number: int
    is_decided: bool
    found: list[Handed | None] = []
    is_full: bool = False  # There was no room for another claim.


def check(message: Wishes | Granted) -> None:
    """Check what the types leave open.

    Raises:
        InvalidValue: it is too long, or has an impossible field.
    """
    if isinstance(message, Wishes):
        is_sound = len(message.items) <= ITEMS_MAX and len(message.claims) <= CLAIMS_MAX and len(message.ended) <= ENDED_MAX
        is_sound = is_sound and len(message.space) + len(message.mark) <= _TEXT_CHARS_MAX
        is_sound = is_sound and all(_is_item(each.item) and len(each.group) <= _TEXT_CHARS_MAX for each in message.items)
        is_sound = is_sound and all(map(_is_claim, message.claims))
    else:
        is_sound = len(message.found) <= CLAIMS_MAX
        is_sound = is_sound and all(found is None or _is_item(found[0]) for found in message.found)
    if not is_sound:
        raise InvalidValue("a peer's message about claims is too long or has an impossible field. Nothing was written.")


def _is_item(item: bytes) -> bool:
    return 0 < len(item) <= ITEM_BYTES


def _is_claim(claim: Claim) -> bool:
    return len(claim.token) == _TOKEN_BYTES and len(claim.holder) <= _TEXT_CHARS_MAX and 0 < claim.ttl_ms < 1 << 53
