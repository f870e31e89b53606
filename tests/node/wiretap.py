"""What a node would send, taken off before it leaves; and operations, brought to a node as a peer would bring them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from shoal.cluster import messages
from shoal.cluster.messages import Message, Push, Shipment, Supply, Trouble, Want
from shoal.cluster.peering import Identity
from shoal.protocol import requests
from simulation.world.fleet import Member

BRINGER = Identity(b"b" * 16, "b:1", "test")
POLL_S = 0.001  # Not 0: the time of the loop would stand still, and with it all that takes time, such as an fsync.


def admit(peer: Identity, member: Member) -> None:
    """Admit `peer` under the name of a member, as if that one's link had just ended: others are not admitted."""
    place = member.replicator.quorum.members.all[0]
    outlet, place.outlet = place.outlet, None
    member.replicator.admit(peer._replace(name=place.address))
    place.outlet = outlet


class Tap:
    """An outlet that keeps all that it is offered."""

    waiting_bytes = 0

    def __init__(self, address: str = "") -> None:
        self.address = address
        self.messages: list[Message] = []

    def offer(self, message: bytes, /) -> bool:
        self.messages.append(messages.decode(message))
        return True

    def shipments(self) -> list[Shipment]:
        pushes = [message for message in self.messages if isinstance(message, Push)]
        return [shipment for push in pushes for shipment in push.operations if isinstance(shipment, Shipment)]

    def troubles(self) -> list[Trouble]:
        return [message for message in self.messages if isinstance(message, Trouble)]


async def issued_by(member: Member, writes: Sequence[Awaitable[object]]) -> list[Shipment]:
    """What the node pushes of these writes, in order."""
    tap = Tap()
    member.replicator.linked(BRINGER, tap)
    for write in writes:
        await write
    member.replicator.unlinked(BRINGER, tap)
    return tap.shipments()


async def pushed(member: Member, peer: Identity, operations: Sequence[Shipment]) -> None:
    """Push operations to a node, and return once it has taken them all."""
    await member.replicator.received(peer, messages.encode(Push(operations)))
    await taken(member, peer)


async def taken(member: Member, peer: Identity = BRINGER) -> None:
    """Return once a node has taken all that this peer sent."""
    while member.replicator._deliveries.is_ahead(peer.node):
        await asyncio.sleep(POLL_S)


async def settled(member: Member, peer: Identity = BRINGER) -> int:
    """As `taken`, and all of it is durable. Returns the number of operations that the node holds."""
    await taken(member, peer)
    await member.node.session().call(requests.ListSpaces())  # Which waits for all that was written.
    return member.replicator.quorum.view().members[0].operations


async def take(member: Member, operations: Sequence[Shipment], *, peer: Identity = BRINGER) -> list[Trouble]:
    """Push operations to a node, and return what it complains of, once all is durable."""
    tap = Tap()
    admit(peer, member)
    member.replicator.linked(peer, tap)
    await pushed(member, peer, operations)
    member.replicator.unlinked(peer, tap)
    await member.node.session().call(requests.ListSpaces())  # Which waits for all that was written.
    return tap.troubles()


async def asked_of(member: Member, want: Want) -> list[Shipment]:
    """What a node supplies."""
    tap = Tap()
    admit(BRINGER, member)
    member.replicator.linked(BRINGER, tap)
    await member.replicator.received(BRINGER, messages.encode(want))
    member.replicator.unlinked(BRINGER, tap)
    [supply] = [message for message in tap.messages if isinstance(message, Supply)]
    return [shipment for shipment in supply.operations if isinstance(shipment, Shipment)]
