"""What a node answers to a peer that asks for operations."""

from __future__ import annotations

from shoal.cluster.messages import Want
from shoal.cluster.partition import partition_of
from shoal.protocol import requests
from simulation.world.fleet import Fleet, Member
from tests.node.wiretap import asked_of, issued_by

N = partition_of("crew", "n")


async def answered(member: Member) -> list[int]:
    """The sequences of the operations that it sends, when asked for all that it has issued."""
    session = member.node.session()
    issued = await issued_by(member, [session.call(requests.Add("crew", "n", 1)) for _ in range(10)])
    return [shipment.sequence for shipment in await asked_of(member, Want(1, [(N, issued[0].origin, 1, 10)]))]


async def test_an_answer_holds_a_bounded_number_of_operations_and_the_first_ones() -> None:
    async with Fleet("a", join="b:1", supply_operations_max=3) as fleet:
        assert await answered(fleet["a"]) == [1, 2, 3]


async def test_an_answer_ends_with_the_operation_that_fills_it() -> None:
    async with Fleet("a", join="b:1", supply_bytes_max=1) as fleet:
        assert await answered(fleet["a"]) == [1]
