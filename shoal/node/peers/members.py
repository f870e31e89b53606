"""The configured owners: who they are, and how this node stands with each of them.

Laws:
- Their number is that of the configuration, whoever can be reached and wherever an
  address leads; a majority is counted over it.
- An owner is the node that was reached at a configured address. A node that only
  dialled us, and an id that was there before, do not count.
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
    address: str
    node: bytes = b""
    identity: Identity | None = None  # As it was when it was linked last.
    outlet: Outlet | None = None
    linked_ms: int = 0
    dropped: int = 0
    trouble: str = ""


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
    def __init__(self, addresses: list[str]) -> None:
        self.reasons: Mapping[str, str] = {}  # Why an address is not linked, as whoever dials it says.
        self._members = {address: MemberState(address) for address in addresses}
        self._disagreements: dict[bytes, str] = {}  # By node; those that met this one last.

    @property
    def all(self) -> list[MemberState]:
        return list(self._members.values())

    @property
    def addresses(self) -> set[str]:
        return set(self._members)

    @property
    def size(self) -> int:
        """Owners, this node included."""
        return 1 + len(self._members)

    def needed(self, durability: str) -> int:
        """Copies, this node's included."""
        return self.size if durability == "all" else self.size // 2 + 1

    @property
    def others_needed(self) -> int:
        """A majority of the others; 0 if there are none."""
        return len(self._members) // 2 + 1 if self._members else 0

    def name_of(self, node: bytes) -> str:
        """The address at which it was reached, or its id, for people."""
        return next((member.address for member in self._members.values() if member.node == node), f"node {node.hex()[:8]}")

    @property
    def nodes(self) -> set[bytes]:
        return {member.node for member in self._members.values() if member.node}

    @property
    def linked_nodes(self) -> set[bytes]:
        return {member.node for member in self._members.values() if member.outlet is not None}

    def address_of(self, node: bytes) -> str:
        """For people: the address of a node, or its id if it is no member any more."""
        return next((member.address for member in self.all if member.node == node), node.hex())

    def check(self, peer: Identity, *, own: str) -> None:
        """Whether a peer may send; one that advertises this node's `own` address may, so that both sides tell of it.

        Raises:
            PeerRefused: it is no member, another node is linked at its address, or one with its id is linked under another
                address or in another process.
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
        """How nodes that met this one disagree with it about the members."""
        return list(dict.fromkeys(self._disagreements.values()))

    def compare(self, peer: Identity, *, own: Identity) -> str | None:
        """Compare what a peer says of the members; returns what has changed since: a disagreement, or "" if it is settled."""
        others = [member.identity for member in self._members.values() if member.outlet is not None and member.identity]
        found = membership.disagreement(own, peer, others)
        before = self._disagreements.pop(peer.node, "")
        if found:
            self._disagreements[peer.node] = found
        if len(self._disagreements) > _DISAGREEMENTS_MAX:
            del self._disagreements[next(iter(self._disagreements))]
        return found if found != before else None

    def linked(self, peer: Identity, outlet: Outlet, *, now_ms: int) -> bytes:
        """Returns the node that was at this address before, and is at none any more; else no bytes."""
        member = self._members.get(outlet.address)
        if member is None:
            return b""
        before = member.node
        member.node, member.outlet, member.linked_ms = peer.node, outlet, now_ms
        member.identity = peer
        return b"" if before in self.nodes else before

    def unlinked(self, outlet: Outlet) -> None:
        for member in self._members.values():
            if member.outlet is outlet:
                member.outlet = None

    def note_dropped(self, node: bytes) -> None:
        for member in self._members.values():
            if member.node == node:
                member.dropped += 1

    def note_trouble(self, node: bytes, trouble: Trouble) -> None:
        for member in self._members.values():
            if member.node == node:
                member.trouble = (
                    f"did not apply operation {trouble.sequence} of {trouble.origin.hex()[:16]} in partition "
                    f"{trouble.partition} ({trouble.reason[:100]}): {trouble.message[:300]}"
                )
