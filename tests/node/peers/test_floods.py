"""What a peer sends with hardly a byte: it counts by the memory that it takes, and shares the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from shoal.cluster import messages, operation
from shoal.cluster.delivery import OVERHEAD_BYTES
from shoal.cluster.messages import Present, Shipment, Supply
from shoal.cluster.operation import CHAIN_START, Body
from shoal.crdt.applier import NOTHING
from shoal.crdt.dot import COUNTER_BITS, Dot, Origin
from shoal.kinds.counter import state as counter
from shoal.kinds.presence.handler import Presences
from shoal.node import mutation
from shoal.node.handler import Target
from shoal.node.mutation import Mutation
from shoal.node.peers import delivering
from shoal.node.transaction import pack_blobs
from shoal.storage.keys import Kind
from simulation.world.environment import START_MS
from simulation.world.fleet import Fleet, Member
from tests.node.wiretap import BRINGER, Tap, admit, pushed, taken
from tests.support.turns import Turns

LIAR = Origin(b"l" * 16)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet("a", join="b:1") as fleet:
        yield fleet


@pytest.fixture
def tap(fleet: Fleet) -> Tap:
    """A link of the liar to the node."""
    tap = Tap()
    admit(BRINGER, fleet["a"])
    fleet["a"].replicator.linked(BRINGER, tap)
    return tap


def sound() -> Shipment:
    """The first operation of the liar: an add."""
    target = Target(Kind.COUNTER, "crew", "n")
    payload = mutation.encode([Mutation(Kind.COUNTER, "crew", "n", counter.Add(1))])
    packed = operation.encode(Body(START_MS << COUNTER_BITS, START_MS, [], None, payload))
    dot = Dot(LIAR, 1)
    chain = operation.chain(CHAIN_START, target.partition, dot, packed)
    return Shipment(target.partition, *dot, chain, packed, pack_blobs([NOTHING]))


def empty(sequence: int) -> Shipment:
    """An operation without a byte."""
    return Shipment(7, LIAR, sequence, bytes(32), b"", b"")


def ahead(member: Member) -> int:
    """The bytes of the liar's that wait, as the node counts them."""
    found = member.replicator._deliveries._ahead.get(BRINGER.node)
    return 0 if found is None else found.bytes


async def test_an_operation_without_bytes_ends_no_link(fleet: Fleet, tap: Tap) -> None:
    await pushed(fleet["a"], BRINGER, [sound(), empty(2)])
    assert await fleet["a"].store().space("crew").counter("n").value() == 1
    [trouble] = tap.troubles()
    assert trouble.sequence == 2


async def test_operations_without_bytes_count_by_their_memory(fleet: Fleet, tap: Tap) -> None:
    many = messages.encode(messages.Push([empty(number) for number in range(1, 1001)]))
    await fleet["a"].replicator.received(BRINGER, many)
    assert ahead(fleet["a"]) > 900 * OVERHEAD_BYTES
    await taken(fleet["a"])
    assert ahead(fleet["a"]) == 0


async def test_small_messages_that_wait_count_by_their_memory(fleet: Fleet, tap: Tap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "PEER_AHEAD_BYTES_MAX", 100 * OVERHEAD_BYTES)
    sending = asyncio.create_task(_flood(fleet["a"], 1000))
    await asyncio.sleep(0)
    found = fleet["a"].replicator._deliveries._ahead[BRINGER.node]
    assert len(found.held) <= 102
    await sending
    await taken(fleet["a"])


async def test_messages_that_waited_are_taken_in_turns(fleet: Fleet, tap: Tap, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch, Presences, "heard", lambda *_: 1)
    fleet["a"].replicator.handlers[Present] = fleet["a"].replicator._presences.heard
    await _flood(fleet["a"], 1000)
    await taken(fleet["a"])
    assert turns.all == 1000
    assert turns.most <= delivering.PEER_HELD_IN_A_ROW_MAX


async def _flood(member: Member, count: int) -> None:
    """Messages of a few bytes, behind one that takes its time."""
    await member.replicator.received(BRINGER, messages.encode(Supply(1, [empty(number) for number in range(1, 101)])))
    small = messages.encode(Present([]))
    for _ in range(count):
        await member.replicator.received(BRINGER, small)
