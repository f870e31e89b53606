"""The configured owners, and the state of this node's link to each.

Laws:
- The configuration alone decides their number, over which a majority is counted; it
  does not matter how many can be reached, or which node an address leads to.
- An owner is the node that was reached at a configured address. A node that only
  dialled this one, and an id that was at the address before, do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.cluster import membership
from shoal.cluster.handshake import NAME_CHARS_MAX
from shoal.cluster.messages import Trouble
from shoal.cluster.peering import Identity, Outlet
from shoal.config import Config
from shoal.errors import InvalidConfig, PeerRefused

_DISAGREEMENTS_MAX = 64


@dataclass(slots=True)
class MemberState:
    """One of the other owners, and the link to it."""

    address: str
    node: bytes = b""  # The id that was last reached at the address; empty: none yet.
    identity: Identity | None = None  # Its description at the last link.
    outlet: Outlet | None = None  # None: not linked.
    linked_ms: int = 0  # When the last link began.
    dropped: int = 0  # Messages that its queue did not take.
    trouble: str = ""  # The last operation of this node that it did not apply, for people.


def addresses_of(config: Config) -> list[str]:
    """The peers' addresses in `config.join`, without this node's own.

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
    return found


class Members:
    """The other owners, by the addresses in the configuration."""

    def __init__(self, addresses: list[str]) -> None:
        self.reasons: Mapping[str, str] = {}  # The dialler's reason why an address is not linked.
        self._members = {address: MemberState(address) for address in addresses}
        self._disagreements: dict[bytes, str] = {}  # By node; the latest `_DISAGREEMENTS_MAX`.

    @property
    def all(self) -> list[MemberState]:
        """The other owners, in the order of the configuration."""
        return list(self._members.values())

    @property
    def addresses(self) -> set[str]:
        """The configured addresses of the other owners."""
        return set(self._members)

    @property
    def size(self) -> int:
        """The number of owners, this node included."""
        return 1 + len(self._members)

    def needed(self, durability: str) -> int:
        """The number of copies that `quorum` or `all` needs, this node's included."""
        return self.size if durability == "all" else self.size // 2 + 1

    @property
    def others_needed(self) -> int:
        """A majority of the others; 0 if there are none."""
        return len(self._members) // 2 + 1 if self._members else 0

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

    def address_of(self, node: bytes) -> str:
        """For people: the address of a node, or its whole id if it is no longer a member."""
        return next((member.address for member in self.all if member.node == node), node.hex())

    def check(self, peer: Identity, *, own: str) -> None:
        """Check whether a peer may send. One that advertises this node's `own` address may, so that both sides report that.

        Raises:
            PeerRefused: it is not a member, another node is linked at its address, or one with its id is linked under
                another address or in another process.
        """
        if peer.name not in self._members and peer.name != own:
            raise PeerRefused(
                f"{peer.name[:NAME_CHARS_MAX]!r} is not in this node's list of members. Nothing was written. Add it to "
                "SHOAL_JOIN here and restart. If the list has it under another name, start it with that name as "
                "SHOAL_ADVERTISE.",
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

    def compare(self, peer: Identity, *, own: Identity) -> str | None:
        """Compare a peer's list of members with this node's.

        Returns None if nothing has changed since the last time; else the new disagreement, or "" if there is none any more.
        """
        others = [member.identity for member in self._members.values() if member.outlet is not None and member.identity]
        found = membership.disagreement(own, peer, others)
        before = self._disagreements.pop(peer.node, "")
        if found:
            self._disagreements[peer.node] = found
        if len(self._disagreements) > _DISAGREEMENTS_MAX:
            del self._disagreements[next(iter(self._disagreements))]
        return found if found != before else None

    def linked(self, peer: Identity, outlet: Outlet, *, now_ms: int) -> bytes:
        """Record a link. Returns the node that was at this address before and is at none now; empty if there is none."""
        member = self._members.get(outlet.address)
        if member is None:
            return b""
        before = member.node
        member.node, member.outlet, member.linked_ms = peer.node, outlet, now_ms
        member.identity = peer
        return b"" if before in self.nodes else before

    def unlinked(self, outlet: Outlet) -> None:
        """Record that a link has ended."""
        for member in self._members.values():
            if member.outlet is outlet:
                member.outlet = None

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
