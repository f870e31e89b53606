"""The messages about members, byte for byte. `shoal.cluster.messages` decodes them with all others.

Laws:
- A record in a message is one member's word: its receiver adopts it once most members say the same (`agreement.Voices`).
- Fields are only ever added at the end, with a default.
"""

from __future__ import annotations

from msgspec import Struct

from shoal.cluster.consensus.motions import SLOTS_MAX
from shoal.cluster.membership import epochs
from shoal.cluster.membership.epochs import Record
from shoal.errors import InvalidValue

_PROBLEM_CHARS_MAX = 500


class Membership(Struct, array_like=True, frozen=True, tag=50):
    """The newest record that the sender knows."""

    record: Record


class Standing(Struct, array_like=True, frozen=True, tag=51):
    """How far the sender is with the change that is under way in its epoch."""

    epoch: int
    is_caught_up: bool  # See `epochs.is_ready`.
    is_voting: bool  # Whether its directory votes in the register.
    keys: list[str] = []  # The keys of the register that it knows, if it votes.
    problem: str = ""  # Why it cannot take part, for people.
    voted: Record | None = None  # The record of a later epoch that it has voted for, and was not told of yet.
    is_unaware: bool = False  # Whether its directory never had a part in any epoch: it cannot know of a later record.


Notice = Membership | Standing


def check(notice: Notice) -> None:
    """Check what the types leave open.

    Raises:
        InvalidValue: a count, an address or an id is impossible.
    """
    match notice:
        case Membership(record):
            epochs.check(record)
        case Standing(epoch, _, _, keys, problem, voted, _):
            if voted is not None:
                epochs.check(voted)
            if not 0 <= epoch < 1 << 62 or len(keys) > SLOTS_MAX or len(problem) > _PROBLEM_CHARS_MAX:
                raise InvalidValue("a peer's message about members has an impossible field. Nothing was written.")
