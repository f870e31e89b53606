"""The first list of members, if the configuration has seeds and a number instead: found by asking, and agreed on by all.

A service's name leads to different nodes while they start and does not say how many there are to be. A node that took what
it sees for the members might count a majority that does not meet another one.

    heard   →   propose · agreed

Laws:
- A node confirms one list, once: it tells it to others only when its disk has it, and never confirms another.
- A list is agreed on once each of its members has confirmed it. So two lists that share a member are never both
  agreed on, whatever names lead to whichever nodes.
- A node proposes a list only if it has found exactly as many nodes as there are to be: with one too many, nobody can know
  which ones are meant. A list that another node proposes, with this node in it, is confirmed as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from shoal.cluster.peering import Identity
from shoal.errors import InvalidValue

FOUND_MAX = 64
"""Nodes that are remembered; further ones are left out."""

PLACEHOLDER = "not-found-yet-"
"""How the addresses begin that stand for members which nobody has found yet; such a name cannot be resolved."""


class Founding(Struct, array_like=True, frozen=True):
    """The list that a node has confirmed, as its disk holds it."""

    members: tuple[str, ...]  # Sorted.
    is_agreed: bool = False


class Founder:
    """Of the node `own`, for a cluster of `size` members. `confirmed` is what its disk holds."""

    def __init__(self, own: str, size: int, confirmed: Founding | None = None) -> None:
        self._own = own
        self._size = size
        self.confirmed = confirmed
        self._lists: dict[str, tuple[str, ...]] = {}  # By node: the list that it has confirmed, or none.

    def heard(self, peers: Iterable[Identity]) -> None:
        """These nodes were found now, and told what they have confirmed, which holds for ever."""
        self._lists = {name: members for name, members in self._lists.items() if members}
        for peer in peers:
            if len(self._lists) < FOUND_MAX and peer.name != self._own:
                self._lists[peer.name] = tuple(sorted(peer.members))

    @property
    def proposal(self) -> tuple[str, ...] | None:
        """The list to confirm now; None if there is none, or one was confirmed before."""
        if self.confirmed is not None:
            return None
        lists = {members for members in self._lists.values() if self._own in members and len(members) == self._size}
        if lists:
            return min(lists)
        found = {self._own, *self._lists}
        is_free = not any(self._lists.values())
        return tuple(sorted(found)) if is_free and len(found) == self._size else None

    @property
    def is_agreed(self) -> bool:
        """Whether all members have confirmed the list that this node has."""
        if self.confirmed is None:
            return False
        if self.confirmed.is_agreed:
            return True
        members = self.confirmed.members
        return all(self._lists.get(name) == members for name in members if name != self._own)

    @property
    def joins(self) -> tuple[str, ...] | None:
        """The members of a cluster that is founded, of which this node is none; None if there is no such cluster."""
        if self.confirmed is not None:
            return None
        lists = {members for members in self._lists.values() if members and self._own not in members}
        return next((members for members in sorted(lists) if all(self._lists.get(name) == members for name in members)), None)

    @property
    def told(self) -> str:
        """For people: what is missing."""
        if self.confirmed is None:
            found = sorted({self._own, *self._lists})
            few = f"the seeds lead to {len(found)} of {self._size} nodes ({_listed(found)})"
            many = "; take the surplus away from the seeds, or set cluster_size to their number" * (len(found) > self._size)
            return few + many
        missing = [name for name in self.confirmed.members if self._lists.get(name) != self.confirmed.members]
        waiting = [name for name in missing if name != self._own]
        return (
            f"{_listed(waiting)} has not confirmed the members {_listed(self.confirmed.members)} yet. If one of these is gone "
            "for good, start the others with the list of members as SHOAL_JOIN, without SHOAL_CLUSTER_SIZE"
        )


def encode(founding: Founding) -> bytes:
    """As it is stored."""
    return msgspec.msgpack.encode(founding)


def decode(packed: bytes) -> Founding:
    """
    Raises:
        InvalidValue: it is damaged.
    """
    try:
        return msgspec.msgpack.decode(packed, type=Founding)
    except msgspec.DecodeError as error:
        raise InvalidValue(f"the stored list of members is damaged ({error}).") from None


def placeholders(size: int) -> list[str]:
    """Addresses for the other members as long as they are not known."""
    return [f"{PLACEHOLDER}{number}:1" for number in range(1, size)]


def is_placeholder(address: str) -> bool:
    """Whether an address stands for a member that nobody has found yet."""
    return address.startswith(PLACEHOLDER)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
