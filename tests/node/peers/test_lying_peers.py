"""A member with valid credentials that lies: what the other nodes hold does not change by its word."""

from __future__ import annotations

import asyncio

import pytest

from shoal.cluster import messages
from shoal.cluster.messages import SnapshotRequest, Truncated, Vectors, Want
from shoal.cluster.partition import partition_of
from shoal.crdt.dot import Origin, VersionVector
from simulation.world.fleet import Fleet

pytestmark = pytest.mark.virtual_time

N = partition_of("crew", "n")
NOBODY = Origin(b"\x00" * 15 + b"\x07")


async def say(fleet: Fleet, liar: str, target: str, *said: messages.Message) -> None:
    """Let a member say this to another one, as if its program had."""
    for message in said:
        packed = messages.stamped(messages.encode(message), fleet[liar].identity().epoch)
        await fleet[target].replicator.received(fleet[liar].identity(), packed)


def asked_by(fleet: Fleet, name: str, kind: type[messages.Message]) -> list[messages.Message]:
    """Everything of this kind that a node sends from now on."""
    seen: list[messages.Message] = []
    before = fleet.spoil

    def listen(source: str, target: str, message: bytes) -> bytes | None:
        found = messages.decode(messages.unstamped(message)[1])
        if source == name and isinstance(found, kind):
            seen.append(found)
        return before(source, target, message)

    fleet.spoil = listen
    return seen


async def test_a_truncation_that_answers_nothing_is_ignored() -> None:
    async with Fleet("abc") as fleet:
        await fleet["a"].store().space("crew").counter("n").add(1)
        await fleet.converged()
        asked = asked_by(fleet, "a", SnapshotRequest)
        await say(fleet, "c", "a", Truncated(N, VersionVector({NOBODY: 1}).pack()))
        await asyncio.sleep(1)
        assert (asked, fleet["a"].replicator.quorum.view().truncated) == ([], [])


async def test_a_truncation_of_what_one_peer_claims_is_ignored() -> None:
    async with Fleet("abc") as fleet:
        await fleet["a"].store().space("crew").counter("n").add(1)
        await fleet.converged()
        base = VersionVector({NOBODY: 1}).pack()

        def claim(source: str, target: str, message: bytes) -> bytes | None:
            found = messages.decode(message)
            if target == "c" and isinstance(found, Want) and any(origin == NOBODY for _, origin, *_ in found.ranges):
                wanted.append(found)
            return message

        wanted: list[Want] = []
        fleet.spoil = claim
        asked = asked_by(fleet, "a", SnapshotRequest)
        held = fleet["a"].node._database.vector_of(N)
        await say(fleet, "c", "a", Vectors([(N, held.join(VersionVector({NOBODY: 1})).pack())], False))
        await fleet.until(lambda: wanted, 5)
        await say(fleet, "c", "a", Truncated(N, base))
        await asyncio.sleep(1)
        assert (asked, fleet["a"].replicator.quorum.view().truncated) == ([], [])
