"""Long messages of peers are applied step by step, and requests are answered meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterable

import pytest

from shoal.cluster import messages
from shoal.cluster.messages import Push, Shipment
from shoal.cluster.peering import Identity
from shoal.protocol import requests
from simulation.world.fleet import Fleet, Member
from tests.node.wiretap import BRINGER, admit, issued_by, take

OTHER = Identity(b"o" * 16, "o:1", "test")


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet("ab", peer_step_operations_max=2) as fleet:
        await fleet.isolate("b")
        yield fleet


async def shipped(fleet: Fleet, names: Iterable[str]) -> list[Shipment]:
    """Operations of the node a."""
    session = fleet["a"].node.session()
    return await issued_by(fleet["a"], [session.call(requests.Add("crew", name, 1)) for name in names])


async def received(member: Member, peer: Identity, operations: list[Shipment]) -> None:
    admit(peer, member)
    await member.replicator.received(peer, messages.encode(Push(operations)))


@pytest.mark.answers("node-that-catches-up-stalls-its-clients")
async def test_a_request_is_answered_while_a_long_message_is_applied(fleet: Fleet) -> None:
    shipments = await shipped(fleet, (f"n{number}" for number in range(100)))
    taking = asyncio.create_task(take(fleet["b"], shipments))
    await asyncio.sleep(0)
    await fleet["b"].node.session().call(requests.Add("crew", "own", 1))
    assert not taking.done()
    assert await taking == []
    assert fleet["b"].replicator.quorum.view().members[0].operations == 101


@pytest.mark.answers("node-that-catches-up-stalls-its-clients")
async def test_of_two_long_messages_one_step_is_applied_in_a_turn(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = fleet["b"].replicator._protocol
    deliver, turn = protocol.deliver, 0
    steps: list[tuple[int, bytes]] = []

    def noted(peer: bytes, some: Iterable[Shipment], now: float) -> None:
        steps.append((turn, peer))
        deliver(peer, some, now)

    monkeypatch.setattr(protocol, "deliver", noted)
    shipments = await shipped(fleet, (f"n{number}" for number in range(40)))
    taking = [asyncio.create_task(received(fleet["b"], *each)) for each in ((BRINGER, shipments[:20]), (OTHER, shipments[20:]))]
    while not all(task.done() for task in taking):
        await asyncio.sleep(0)
        turn += 1
    assert len({turn for turn, _ in steps}) == len(steps) == 20
    assert {peer for _, peer in steps[:4]} == {BRINGER.node, OTHER.node}, "they take turns"


@pytest.mark.answers("node-that-catches-up-stalls-its-clients")
async def test_a_step_is_followed_by_a_pause_while_a_request_waits_for_the_disk(fleet: Fleet) -> None:
    pauses = 0

    async def pause() -> None:
        nonlocal pauses
        pauses += 1

    member = fleet["b"]
    deliveries = member.replicator._deliveries
    deliveries._environment = dataclasses.replace(deliveries._environment, pause=pause)
    shipments = await shipped(fleet, (f"n{number}" for number in range(40)))
    await received(member, BRINGER, shipments[:20])
    assert pauses == 0
    await member.node.session().call(requests.ListSpaces())  # Which waits for all that was written.
    member.simulated.hold_syncs()
    waiting = asyncio.create_task(member.node.session().call(requests.Add("crew", "own", 1)))
    await asyncio.sleep(0)
    await received(member, BRINGER, shipments[20:])
    member.simulated.release_syncs()
    await waiting
    assert pauses == 10
