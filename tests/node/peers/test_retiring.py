"""A cluster retires the origins of past openings: every node, and no node takes another for one that was set back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from shoal.cluster import operation
from shoal.cluster.delivery import Arrival
from shoal.cluster.messages import Shipment
from shoal.cluster.operation import partition_of
from shoal.crdt.dot import Dot, Origin
from shoal.errors import BadOperation
from shoal.node import mutation, transaction
from shoal.node.partitions import Partition
from shoal.node.verification.verify import verify
from shoal.storage.interface import MemoryStorage
from simulation.world.fleet import Fleet, Member

MIN = 2
WAIT_S = 30.0
HOUR_MS = 3_600_000
PARTITION = partition_of("crew", "t")


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet(retire_origins_min=MIN, mark_interval_s=0.01, sync_interval_s=0.01) as fleet:
        await append(fleet, "a", 0)
        await fleet.converged(WAIT_S)
        yield fleet


async def append(fleet: Fleet, name: str, number: int) -> None:
    await fleet[name].store().space("crew").thread("t").journal.append({"n": number, "by": name})


async def restarted(fleet: Fleet, name: str) -> None:
    storage = await fleet.crash(name)
    fleet.start(name, storage)
    await fleet.admitted(WAIT_S)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.002)


def partition(member: Member) -> Partition:
    return member.node._database.partitions.load(PARTITION)


def retired(member: Member) -> set[Origin]:
    return {origin for origin, _ in partition(member).retired.all()}


async def reopen(fleet: Fleet, name: str, times: int) -> None:
    """Start a node so often, with a write each time, that it retires; wait until all nodes have."""
    for number in range(times):
        await restarted(fleet, name)
        await append(fleet, name, number)
        await fleet.converged(WAIT_S)


@pytest.mark.answers("vectors-grow-with-openings")
async def test_all_nodes_retire_what_one_retires(fleet: Fleet) -> None:
    await reopen(fleet, "a", 6)
    await until(lambda: all(len(retired(member)) >= 5 for member in fleet.members.values()))
    await fleet.converged(WAIT_S)
    for member in fleet.members.values():
        assert len(partition(member).vector) <= MIN + 2
        assert len(partition(member).durable) <= MIN + 2
        events = [event async for event in member.store().space("crew").thread("t").journal.read()]
        assert len(events) == 7
    assert len({frozenset(retired(member)) for member in fleet.members.values()}) == 1


@pytest.mark.answers("retirement-is-seen")
async def test_no_node_is_taken_for_one_that_was_set_back(fleet: Fleet) -> None:
    for _ in range(3):
        for name in "abc":
            await reopen(fleet, name, 3)
    await until(lambda: all(len(retired(member)) >= 15 for member in fleet.members.values()))
    for name in "abc":
        await restarted(fleet, name)
    await fleet.converged(WAIT_S)
    for member in fleet.members.values():
        assert member.replicator.quorum.learning == []
        assert member.node._incarnation.fence == ""
        for other in fleet.members.values():
            if other is not member:
                mark = member.replicator._protocol.mark(other.node._incarnation.node)
                assert not mark.is_behind
                assert len(mark._vectors.get(PARTITION, ())) <= 3 * (MIN + 2)


@pytest.mark.answers("origin-is-retired-that-an-owner-lacks")
async def test_a_node_that_was_away_does_not_hold_back_what_others_write(fleet: Fleet) -> None:
    """Nothing is retired while it is away. When it is back, all that it missed arrives, and then it is retired."""
    await fleet.isolate("c")
    for number in range(6):
        storage = await fleet.crash("a")
        fleet.start("a", storage, linked=False)
        fleet.link("a", "b")
        fleet.link("b", "a")
        await append(fleet, "a", number)
    assert retired(fleet["b"]) == set()
    fleet.link_all("c")
    await fleet.converged(WAIT_S)
    await until(lambda: all(len(retired(member)) >= 5 for member in fleet.members.values()))
    await fleet.converged(WAIT_S)
    events = [event async for event in fleet["c"].store().space("crew").thread("t").journal.read()]
    assert len(events) == 7


@pytest.mark.answers("operation-under-a-retired-origin-is-applied")
async def test_an_operation_under_a_retired_origin_is_refused_and_says_why(fleet: Fleet) -> None:
    """A clone of the directory still writes."""
    origin = fleet["a"].node._incarnation.current
    assert origin is not None
    before = partition(fleet["a"]).tip(origin)
    await reopen(fleet, "a", 5)
    await until(lambda: origin in retired(fleet["b"]))
    received = fleet["b"].node._database.exchange.incoming.apply([arrival(Dot(origin, before.sequence + 1), before.chain)])
    [(_, error)] = received.refused
    assert isinstance(error, BadOperation)
    assert error.detail["reason"] == "retired"
    assert "a copy of the directory still writes under it" in error.message
    assert not received.applied


@pytest.mark.answers("operation-under-a-retired-origin-is-applied")
async def test_a_node_does_not_let_others_retire_the_origin_under_which_it_writes(fleet: Fleet) -> None:
    await append(fleet, "b", 1)
    await fleet.converged(WAIT_S)
    own, other = fleet["b"].node._incarnation.current, fleet["a"].node._incarnation.current
    assert own is not None
    assert other is not None
    tip = partition(fleet["b"]).tip(other)
    retires: list[tuple[bytes, int]] = [(own, partition(fleet["b"]).vector[own])]
    received = fleet["b"].node._database.exchange.incoming.apply([arrival(Dot(other, tip.sequence + 1), tip.chain, retires)])
    assert [error.message for _, error in received.refused if "under which this node writes" in error.message]
    assert own in partition(fleet["b"]).vector


def arrival(dot: Dot, before: bytes, retires: Sequence[tuple[bytes, int]] = ()) -> Arrival:
    body = operation.Body(1 << 62, 0, [], None, mutation.encode([]), retires=list(retires))
    packed = operation.encode(body)
    shipment = Shipment(PARTITION, *dot, operation.chain(before, PARTITION, dot, packed), packed, transaction.pack_blobs([]))
    return Arrival(shipment, body, dot)


@pytest.mark.answers("node-that-joins-does-not-learn-what")
async def test_a_lost_disk_is_filled_again_with_what_was_retired(fleet: Fleet) -> None:
    await reopen(fleet, "a", 6)
    await until(lambda: all(len(retired(member)) >= 5 for member in fleet.members.values()))
    await fleet.crash("c")
    fleet.start("c", MemoryStorage(identity=b"another disk"))
    await fleet.admitted(WAIT_S)
    await fleet.converged(WAIT_S)
    assert retired(fleet["c"]) == retired(fleet["a"])
    assert fleet.rows("c") == fleet.rows("a")


@pytest.mark.answers("vectors-grow-with-openings")
async def test_every_node_forgets_what_is_left_of_retired_origins(fleet: Fleet) -> None:
    """Also one that is never opened again, and so never retires anything itself."""
    await reopen(fleet, "a", 6)
    await reopen(fleet, "b", 6)
    await until(lambda: all(member.node._database.retiring._task is None for member in fleet.members.values()))
    await fleet.converged(WAIT_S)
    assert all(len(retired(member)) >= 8 for member in fleet.members.values())
    for member in fleet.members.values():
        member.simulated.now_ms += 8 * 24 * HOUR_MS
    for member in fleet.members.values():
        async with asyncio.timeout(WAIT_S):
            while retired(member):  # It may not know yet what the others hold, and their operations leave the log first.
                await member.node._database.truncator.look([PARTITION])
                await asyncio.sleep(0.01)
    await fleet.durable()
    for name in "abc":
        await restarted(fleet, name)
        assert retired(fleet[name]) == set()
        events = [event async for event in fleet[name].store().space("crew").thread("t").journal.read()]
        assert len(events) == 13
        assert verify(fleet[name].storage, config=fleet[name].config).problems == []


@pytest.mark.answers("node-that-joins-does-not-learn-what")
async def test_a_lost_disk_is_filled_by_a_snapshot_if_what_was_retired_has_left_the_logs(fleet: Fleet) -> None:
    await reopen(fleet, "a", 6)
    await until(lambda: all(len(retired(member)) >= 5 for member in fleet.members.values()))
    for member in fleet.members.values():
        member.simulated.now_ms += 2 * HOUR_MS
    for member in fleet.members.values():
        await member.node._database.truncator.look([PARTITION])
        assert not any(row.is_logged for _, row in partition(member).retired.all())
    await fleet.crash("c")
    fleet.start("c", MemoryStorage(identity=b"another disk"))
    fleet["c"].simulated.now_ms = fleet["a"].simulated.now_ms
    await fleet.admitted(WAIT_S)
    await fleet.converged(WAIT_S)
    assert retired(fleet["c"]) == retired(fleet["a"])
    events = [event async for event in fleet["c"].store().space("crew").thread("t").journal.read()]
    assert len(events) == 7
    assert verify(fleet["c"].storage, config=fleet["c"].config).problems == []
