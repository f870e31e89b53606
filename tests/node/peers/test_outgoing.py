"""What a node answers to a peer that asks for operations."""

from __future__ import annotations

import pytest
from msgspec import msgpack

from shoal.cluster import operation
from shoal.cluster.messages import Shipment, Want
from shoal.cluster.operation import Tip, partition_of
from shoal.crdt.dot import Origin
from shoal.node.peers.outgoing import Settled
from shoal.node.writes.issuing import Logged
from shoal.protocol import requests
from simulation.world.fleet import Fleet, Member
from tests.node.wiretap import BRINGER, Tap, asked_of, issued_by

N = partition_of("crew", "n")


async def answered(member: Member) -> list[int]:
    """The sequences of the operations that it sends, when asked for all that it has issued."""
    session = member.node.session()
    issued = await issued_by(member, [session.call(requests.Add("crew", "n", 1)) for _ in range(10)])
    return [shipment.sequence for shipment in await asked_of(member, Want(1, [(N, issued[0].origin, 1, 10)]))]


@pytest.mark.answers("queues-are-bounded")
async def test_an_answer_holds_a_bounded_number_of_operations_and_the_first_ones() -> None:
    async with Fleet("a", join="b:1", supply_operations_max=3) as fleet:
        assert await answered(fleet["a"]) == [1, 2, 3]


async def test_an_answer_ends_with_the_operation_that_fills_it() -> None:
    async with Fleet("a", join="b:1", supply_bytes_max=1) as fleet:
        assert await answered(fleet["a"]) == [1]


async def test_only_durable_operations_are_shipped() -> None:
    async with Fleet("a", join="b:1") as fleet:
        member = fleet["a"]
        [first] = await issued_by(member, [member.node.session().call(requests.Add("crew", "n", 1))])
        member.simulated.hold_syncs()
        await member.store().space("crew").counter("n").add(1, durability="memory")
        sent = await asked_of(member, Want(1, [(N, first.origin, 1, 9)]))
        member.simulated.release_syncs()
        assert [each.sequence for each in sent] == [1]


async def test_a_range_that_begins_at_the_base_is_left_out() -> None:
    async with Fleet("a", join="b:1") as fleet:
        member = fleet["a"]
        session = member.node.session()
        issued = await issued_by(member, [session.call(requests.Add("crew", "n", 1)) for _ in range(3)])
        partition = member.node._database.partitions.load(N)
        origin = Origin(issued[0].origin)
        partition.truncate({origin: Tip(2, 1, issued[1].chain)})
        outgoing = member.node._database.exchange.outgoing
        assert outgoing.shipments([(N, origin, 2, 3)], bytes_max=1 << 20, operations_max=9) == []
        assert len(outgoing.shipments([(N, origin, 3, 3)], bytes_max=1 << 20, operations_max=9)) == 1
        assert [number for number, _ in outgoing.truncated([(N, origin, 2, 3), (N, origin, 3, 3)])] == [N]


async def test_operations_of_a_partition_come_in_causal_order() -> None:
    async with Fleet("ab") as fleet:
        for name in "abab":
            await fleet[name].store().space("crew").counter("n").add(1)
            await fleet.converged()
        outgoing = fleet["a"].node._database.exchange.outgoing
        vector = fleet["a"].node._database.vector_of(N)
        ranges = [(N, origin, 1, sequence) for origin, sequence in sorted(vector.items())]
        found = outgoing.shipments(ranges, bytes_max=1 << 20, operations_max=9)
        times = [operation.decode(msgpack.decode(raw, type=Shipment).packed).hlc for raw in found]
        assert times == sorted(times)
        assert len(times) == 4


async def test_nothing_is_pushed_before_its_commit() -> None:
    async with Fleet("a", join="b:1") as fleet:
        member, tap = fleet["a"], Tap()
        member.replicator.linked(BRINGER, tap)
        member.replicator._settling.issued(
            Logged(1 << 40, member.node._database.partitions.load(N), Shipment(N, b"o" * 16, 1, b"", b"", b""), "crew")
        )
        settling = member.replicator._settling
        assert settling.begun((1 << 40) - 1) == []
        assert settling.settle((1 << 40) - 1) == Settled([], {}, [])
        [shipment] = settling.begun(1 << 40)
        assert shipment.sequence == 1
