"""Whether nodes agree on who the members are: on the configured lists, and on a record of a later epoch.

Laws:
- A disagreement of configured lists is reported to people; nothing is refused for it.
- A later record is believed once more than half of a list that decides in the present epoch hold it, or have voted for it,
  and one of them holds it. So one member's word changes nothing.
- If more than half cannot be had, it is believed once all members that have a link hold it, for a while, and it can follow
  from the present one. A node that is new needs as many of them as half of those that it was configured with, and one more.
- A member whose directory never had a part in any epoch has no word, as one that is away. A new node needs no more
  of them than there are once it is linked to all, and the rest say that they are such directories: nobody knows more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from shoal.cluster.membership import epochs
from shoal.cluster.membership.epochs import Record
from shoal.cluster.peering import Identity

_LISTED_MAX = 10
_NAME_CHARS_MAX = 100


def disagreement(own: Identity, peer: Identity, others: Iterable[Identity]) -> str:
    """How a peer's address or list of members contradicts this node's, and what to do; empty if they agree.

    `others` are further nodes that this one is linked to. A peer that does not tell its members is not compared.
    """
    for other in (own, *others):
        if other.name == peer.name and other.node != peer.node:  # The lists need not be compared: their names mislead.
            return (
                f"two nodes advertise {_short(peer.name)}: {peer.node.hex()[:8]} and {other.node.hex()[:8]}"
                f"{' (this one)' if other is own else ''}. Give each its own SHOAL_ADVERTISE, and restart it."
            )
    if own.epoch or peer.epoch:
        return ""  # The record decides, not the configured lists.
    here, there = set(own.members), set(peer.members)
    if not here or not there or here == there:
        return ""
    sides = ((own.name, here - there), (peer.name, there - here))
    only = "; ".join(f"only {_short(name)} has {_listed(rest)}" for name, rest in sides if rest)
    return (
        f"{_short(own.name)} (this node) and {_short(peer.name)} have different members: {only}. Nodes that have different "
        "members count different majorities. Give all nodes the same SHOAL_JOIN, and each the SHOAL_ADVERTISE under which "
        "the list has it, and restart them. If a name in SHOAL_JOIN leads to several nodes, set SHOAL_CLUSTER_SIZE to their "
        "number."
    )


class Voices:
    """Words of others on records that are later than this node's. `own` is its address, `directory` its directory's id."""

    def __init__(self, own: str, directory: bytes) -> None:
        self._own = own
        self._directory = directory
        self._held: dict[str, tuple[bytes, Record]] = {}  # By address: its directory, and the record that it is in.
        self._voted: dict[str, tuple[bytes, Record]] = {}
        self._left: set[str] = set()  # Addresses of nodes that say that they have no part any more.
        self._since: tuple[Record, float] | None = None  # The record that all who are linked hold, and since when.

    def holds(self, address: str, node: bytes, record: Record) -> None:
        """A node says that it is in this epoch."""
        self._held[address] = node, record

    def voted(self, address: str, node: bytes, record: Record) -> None:
        """A node says that it has voted for this record."""
        self._voted[address] = node, record

    def left(self, address: str) -> None:
        """A node says that it was removed: a node without a vote need not ask it."""
        self._left.add(address)

    def entered(self, record: Record) -> None:
        """This node is in this epoch: what was said of it, or of an earlier one, is over."""
        takes_part, self._since = set(record.everyone), None
        self._left.clear()
        for said in (self._held, self._voted):
            for address, (_, told) in list(said.items()):
                if told.epoch <= record.epoch or address not in takes_part:
                    del said[address]

    def believed(
        self,
        record: Record,
        own: Record | None,
        *,
        has_voice: bool,
        is_new: bool,
        linked: Mapping[str, bytes],
        unaware: Collection[str] = (),
        now: float,
        wait_s: float,
    ) -> Record | None:
        """The record to adopt in place of `record`; None if there is none yet.

        `own` is what this node has voted for itself, if it votes (`has_voice`). One that `is_new` holds nothing, and has had no
        part in any epoch. `linked` are the nodes that have a link, by address, and `unaware` those of them that say that they
        had no part in any; `wait_s` is how long all the others must say the same if they are not enough. What was said by one
        that has no link any more still holds: epochs only grow.
        """
        held = {at: told for at, (node, told) in self._held.items() if linked.get(at, node) == node}
        voted = {at: told for at, (node, told) in self._voted.items() if linked.get(at, node) == node}
        if own is not None:
            voted[self._own] = own
        for later in sorted((told for told in held.values() if told.epoch > record.epoch), key=lambda told: -told.epoch):
            voices = {at for told in (held, voted) for at, each in told.items() if each == later}
            if any(_is_most(voices, group) for group in self._asked(record, has_voice=has_voice)):
                return later
            # Two others are more than one liar, and what is more than half of the others is what snapshots are believed by.
            others = voices - {self._own}
            if len(others) > 1 and any(_is_most(others, group) for group in self._asked(record, has_voice=False)):
                return later
        fellows = (linked.keys() if is_new else linked.keys() & set(record.electorate.members)) - set(unaware)
        asked = self._asked(record, has_voice=False)[0]
        if is_new and len(fellows) <= len(asked) // 2 and not linked.keys() >= asked:
            fellows = set()  # It knows nothing by which it could judge: whoever comes first could make it his.
        return self._unanimous(
            [held.get(address) for address in fellows],
            lambda later: later.epoch > record.epoch and (is_new or epochs.follows(record, later)),
            now=now,
            wait_s=wait_s,
        )

    def _asked(self, record: Record, *, has_voice: bool) -> list[frozenset[str]]:
        """The lists of each of which more than half is enough."""
        groups = record.electorate.groups
        return list(groups) if has_voice else [group - self._left - {self._own} for group in groups]

    def _unanimous(
        self, said: Sequence[Record | None], can_be: Callable[[Record], bool], *, now: float, wait_s: float
    ) -> Record | None:
        """The record that all linked members hold, once they have for a while: those that left may be gone for good.

        No node leaves because of that: it is not told its own removal in this way.
        """
        later = said[0] if said else None
        is_in = later is not None and self._own in later.everyone and later.removal_of(self._directory) is None
        if later is None or not is_in or any(each != later for each in said) or not can_be(later):
            self._since = None
            return None
        if self._since is None or self._since[0] != later:
            self._since = later, now
        return later if now >= self._since[1] + wait_s else None


def _is_most(said: Collection[str], group: Collection[str]) -> bool:
    return len(set(group).intersection(said)) > len(group) // 2


def _listed(names: set[str]) -> str:
    shown = [_short(name) for name in sorted(names)[:_LISTED_MAX]]
    return ", ".join(shown) + f" and {len(names) - _LISTED_MAX} more" * (len(names) > _LISTED_MAX)


def _short(name: str) -> str:
    return name[:_NAME_CHARS_MAX] or "a node without an address"
