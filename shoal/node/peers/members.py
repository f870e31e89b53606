"""The owners in the present epoch, and the state of this node's link to each.

Laws:
- The epoch's lists alone decide over which numbers a majority is counted (`shoal.cluster.membership.epochs`); it
  does not matter how many can be reached, or which node an address leads to. A node that knows of a newer
  epoch than its own counts nothing.
- An owner is the node that was reached at a listed address. A node that only
  dialled this one, and an id that was at the address before, do not count.
- An address may lead to another member for a while. That one lives elsewhere, so it takes nobody's place, and whoever
  forgets the address does not mean it.
- What a node at no listed address says of the members is told as long as it asks for links; what a member said, until it says
  otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from shoal.cluster.consensus.ballots import Value
from shoal.cluster.handshake import NAME_CHARS_MAX
from shoal.cluster.membership import epochs
from shoal.cluster.membership.notices import disagreement, placeholders
from shoal.cluster.messages import Trouble
from shoal.cluster.peering import Identity, Outlet
from shoal.config import Config
from shoal.errors import InvalidConfig, PeerRefused
from shoal.logs import events
from shoal.logs.lines import log
from shoal.node.membership.roster import Roster
from shoal.records import NamedTuple

_DISAGREEMENTS_MAX = 64


@dataclass(slots=True)
class MemberState:
    """One of the other owners, and the link to it."""

    address: str
    node: bytes = b""  # The id that was last reached at the address; empty: none yet.
    resident: bytes = b""  # The id of the node that was last reached there and has this address; empty: none yet.
    identity: Identity | None = None  # Its description at the last link.
    outlet: Outlet | None = None  # None: not linked.
    linked_ms: int = 0  # When the last link began.
    dropped: int = 0  # Messages that its queue did not take.
    trouble: str = ""  # The last operation of this node that it did not apply, for people.


def addresses_of(config: Config) -> list[str]:
    """The peers' addresses in `config.join`, without this node's own; placeholders, if these are seeds.

    Raises:
        InvalidConfig: one of them is not HOST:PORT.
    """
    found: list[str] = []
    for part in config.join.split(","):
        address = part.strip().removeprefix("http://").rstrip("/")
        if not address or address == config.advertise or address in found:
            continue
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65535:
            raise InvalidConfig(
                f"join must name peers as HOST:PORT, such as n2:7400,n3:7400; {address[:100]!r} is not an address. "
                "Nothing was started.",
                field="join",
            )
        found.append(address)
    return placeholders(config.cluster_size) if config.cluster_size else found


def seeds_of(config: Config) -> list[str]:
    """The addresses in `config.join`, if they are seeds; else none."""
    return [part.strip().removeprefix("http://").rstrip("/") for part in config.join.split(",")] if config.cluster_size else []


class _Group(NamedTuple):
    """The others of a list of which a majority is needed, and how many of them that takes."""

    others: frozenset[str]
    quorum: int
    all: int


class Members:
    """The other nodes that take part in the present epoch, by their addresses."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.reasons: Mapping[str, str] = {}  # The dialler's reason why an address is not linked.
        self._members: dict[str, MemberState] = {}
        self._met: dict[str, MemberState] = {}  # Members of a cluster that this node waits to be added to.
        self._strays: dict[str, MemberState] = {}  # Nodes that have a link, and may be added while it lasts.
        self._groups: list[_Group] = []
        self.owners: list[MemberState] = []
        """The other owners: the members of both lists."""
        self._disagreements: dict[bytes, str] = {}  # By node; the latest `_DISAGREEMENTS_MAX`.
        self._compared: dict[bytes, float] = {}  # When each of these was compared last.
        self.reform()

    def reform(self) -> list[MemberState]:
        """Take the addresses and lists of the present epoch. Returns the state of those that do not take part any more.

        A directory that has a link and was not removed, such as a new one at an address that was, stays known while the link
        lasts: it may be added.
        """
        record, own = self.roster.record, self.roster.own
        before = self._members
        linked = self._strays | {address: state for address, state in before.items() if state.outlet is not None}
        strays = {address: state for address, state in linked.items() if self.roster.removal_of(state.node) is None}
        known = strays | self._met | before
        self._members = {address: known.get(address) or MemberState(address) for address in record.everyone if address != own}
        self._met = {}
        self._strays = {address: state for address, state in strays.items() if address not in self._members}
        groups = record.electorate.groups
        self._groups = [
            _Group(group - {own}, len(group) // 2 + 1 - (own in group), len(group) - (own in group)) for group in groups
        ]
        owners = frozenset().union(*(group.others for group in self._groups))
        self.owners = [self._members[address] for address in sorted(owners)]
        self.size = len(frozenset().union(*groups))
        """The number of owners, this node included if it is one; the union of both lists while a change is joint."""
        return [state for address, state in before.items() if address not in self._members and address not in self._strays]

    @property
    def all(self) -> list[MemberState]:
        """The other nodes that take part, one that joins among them."""
        return list(self._members.values())

    def meet(self, addresses: Iterable[str]) -> bool:
        """Take note of members of a cluster that this node waits to be added to. Returns whether one of them is new."""
        new = {address for address in addresses if epochs.is_address(address)} - {self.roster.own, *self._members, *self._met}
        added = sorted(new)[: epochs.MEMBERS_MAX - len(self._met)]
        self._met.update({address: MemberState(address) for address in added})
        return bool(added)

    @property
    def dialled(self) -> list[str]:
        """The addresses of all that take part, and of those that this node asks to be added."""
        return [*self._members, *self._met]

    @property
    def addresses(self) -> set[str]:
        """Their addresses."""
        return set(self._members)

    def needed(self, durability: str) -> int:
        """For people: the number of copies that `quorum` or `all` needs, this node's included."""
        return self.size if durability == "all" else max(len(group) // 2 + 1 for group in self.roster.record.electorate.groups)

    def decides(self, others: Collection[str], durability: str) -> bool:
        """Whether these other nodes, by address, and this one are enough for `quorum` or `all`, in every list."""
        if not self.roster.is_settled:
            return False
        for group in self._groups:
            found = len(group.others.intersection(others) - self.roster.ahead)
            if found < (group.all if durability == "all" else group.quorum):
                return False
        return True

    @property
    def teachers(self) -> tuple[set[bytes], int, int]:
        """The other members of the old list that were ever reached, a majority's number without this node, and all of them.

        While a change is joint, whatever was acknowledged is on a majority of the old list.
        """
        old = self._groups[0]
        nodes = {self._members[address].node for address in old.others if self._members[address].node}
        return nodes, len(old.others) // 2 + 1 if old.others else 0, len(old.others)

    def is_majority(self, nodes: Collection[bytes]) -> bool:
        """Whether these nodes are more than half of the other members of the old list: so many are believed."""
        teachers, needed, _ = self.teachers
        return len(teachers.intersection(nodes)) >= needed

    def name_of(self, node: bytes) -> str:
        """For people: the address at which a node was reached, or the beginning of its id."""
        return next((member.address for member in self._members.values() if member.node == node), f"node {node.hex()[:8]}")

    @property
    def nodes(self) -> set[bytes]:
        """The ids of the owners that were ever reached."""
        return {member.node for member in self._members.values() if member.node}

    @property
    def linked_nodes(self) -> set[bytes]:
        """The ids of the owners that have a link now."""
        return {member.node for member in self._members.values() if member.outlet is not None}

    @property
    def reached(self) -> dict[str, bytes]:
        """The owners that have a link now, by their addresses; a node that was reached under another one's is left out."""
        return {
            member.address: member.node
            for member in self._members.values()
            if member.outlet is not None and member.identity is not None and member.identity.name == member.address
        }

    @property
    def asked(self) -> dict[str, bytes]:
        """`reached`, and the members of a cluster that this node waits to be added to, if they have a link."""
        met = self._met.items()
        named = {at: each.node for at, each in met if each.outlet is not None and each.identity and each.identity.name == at}
        return named | self.reached

    def objects(self, key: str, value: Value) -> bool:
        """Whether this node sees that a member which a step removes is up. It votes for such a step once it is not."""
        if key != epochs.KEY or not value.version:
            return False
        record, told = self.roster.record, epochs.decode(value.content)
        why = epochs.objection(record, told, self.reached | {self.roster.own: self.roster.directory}) if told != record else ""
        if why:
            log(events.VOTE_REFUSED, epoch=told.epoch, reason=why)
        return bool(why)

    def node_at(self, address: str) -> bytes:
        """The id of the node that was last reached at an address, and has it; empty if there is none."""
        return self._members[address].resident if address in self._members else b""

    def address_of(self, node: bytes) -> str:
        """For people: the address of a node, or its whole id if it is no longer a member."""
        return next((member.address for member in self.all if member.node == node), node.hex())

    def check(self, peer: Identity, *, own: str) -> None:
        """Check whether a peer may send. One that advertises this node's `own` address may, so that both sides report that.

        Raises:
            PeerRefused: it is not a member or was removed, another node is linked at its address, or one with its id is
                linked under another address or in another process.
        """
        removal = self.roster.removal_of(peer.node, peer.originals)
        if removal is not None:
            name, how = peer.name[:NAME_CHARS_MAX], "drained" if removal.handed_over else "forgotten"
            is_copy = removal.directory != peer.node
            told = f"{name!r} is a copy of that of {removal.address}, which was" if is_copy else f"{name!r} was"
            raise PeerRefused(
                f"the directory of {told} {how} in epoch {removal.epoch} of {own}'s list of members. Nothing was written. To "
                f"use the node again, give it an empty directory, and add it with `shoal cluster add {name}`, unless "
                "it is a member.",
                reason="removed",
            )
        if peer.name not in self._members and peer.name not in self._met and peer.name != own:
            raise PeerRefused(
                f"{peer.name[:NAME_CHARS_MAX]!r} is not in this node's list of members. Nothing was written. "
                f"`shoal cluster add {peer.name[:NAME_CHARS_MAX]}`, asked of a member, admits it. If the list has it under "
                "another name, start it with that name as SHOAL_ADVERTISE.",
                reason="member",
            )
        there = self._members.get(peer.name)
        if there is not None and there.outlet is not None and there.node != peer.node:
            raise PeerRefused(
                f"node {peer.node.hex()[:8]} advertises {peer.name}, where node {there.node.hex()[:8]} is linked: it is a "
                "clone of that node, or uses its address. Nothing was written. Stop it, or give it its own address and an "
                "empty directory. If it replaces that node, stop the old one: the new one is admitted once the old "
                "link has ended.",
                reason="clone",
            )
        for member in self._members.values():
            if member.outlet is None or member.node != peer.node or member.identity is None:
                continue
            if peer.name != member.address or peer.opening != member.identity.opening:
                raise PeerRefused(
                    f"the node at {peer.name} has the same id as the node linked at {member.address}: its data directory is "
                    "a copy. Nothing was written. Give it an empty directory; it will fetch everything.",
                    reason="clone",
                )

    @property
    def disagreements(self) -> list[str]:
        """For people: how other nodes disagree with this one about the members."""
        return list(dict.fromkeys(self._disagreements.values()))

    @property
    def disagreements_among(self) -> list[str]:
        """Those with members, and not with nodes that wait to be added."""
        return [told for node, told in self._disagreements.items() if node in self.nodes]

    def compare(self, peer: Identity, *, own: Identity, now: float) -> str | None:
        """Compare a peer's list of members with this node's.

        Returns None if nothing has changed since the last time; else the new disagreement, or "" if there is none any more.
        """
        others = [member.identity for member in self._members.values() if member.outlet is not None and member.identity]
        # A node that waits to be added counts no majority yet, whatever its list; it is told of as such.
        waits = peer.name != own.name and peer.name not in self._members and peer.name not in self._met
        found = "" if waits else disagreement(own, peer, others)
        before = self._disagreements.pop(peer.node, "")
        if found:
            self._disagreements[peer.node], self._compared[peer.node] = found, now
        if len(self._disagreements) > _DISAGREEMENTS_MAX:
            del self._disagreements[next(iter(self._disagreements))]
        self._compared = {node: self._compared[node] for node in self._disagreements}
        return found if found != before else None

    def forget_strangers(self, before: float) -> None:
        """Forget how nodes at no listed address disagree that were compared last before this moment: they are gone."""
        for node in self._disagreements.keys() - self.nodes if self._disagreements else ():
            if self._compared[node] < before:
                del self._disagreements[node], self._compared[node]

    def linked(self, peer: Identity, outlet: Outlet, *, now_ms: int) -> bytes:
        """Record a link. Returns the node that was at this address before and is at none now; empty if there is none."""
        member = self._members.get(outlet.address) or self._met.get(outlet.address)
        is_stray = member is None
        if member is None:
            member = self._strays[outlet.address] = MemberState(outlet.address)
        before = member.resident
        member.node, member.outlet, member.linked_ms = peer.node, outlet, now_ms
        member.identity = peer
        if peer.name != outlet.address:
            return b""
        member.resident = peer.node
        return b"" if is_stray or before in self.nodes else before

    def unlinked(self, outlet: Outlet) -> None:
        """Record that a link has ended."""
        for member in (*self._members.values(), *self._met.values()):
            if member.outlet is outlet:
                member.outlet = None
        self._strays = {address: state for address, state in self._strays.items() if state.outlet is not outlet}

    def note_dropped(self, node: bytes) -> None:
        """Count a message that the queue of a node's link did not take."""
        for member in self._members.values():
            if member.node == node:
                member.dropped += 1

    def note_trouble(self, node: bytes, trouble: Trouble) -> None:
        """Record that a node did not apply an operation of this one."""
        for member in self._members.values():
            if member.node == node:
                member.trouble = (
                    f"did not apply operation {trouble.sequence} of {trouble.origin.hex()[:16]} in partition "
                    f"{trouble.partition} ({trouble.reason[:100]}): {trouble.message[:300]}"
                )
