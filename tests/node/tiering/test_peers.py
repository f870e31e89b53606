"""A node whose chunks are in a bucket, among peers that have them on their disks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from shoal.node.tiering.mover import Mover
from shoal.storage import cold
from shoal.storage.interface import MemoryStorage
from simulation.bounds import altered
from simulation.world.bucket import SimulatedBucket
from simulation.world.fleet import Fleet, Member
from tests.node.conftest import Bench
from tests.node.tiering.conftest import EXPECTED, OF, TARGET, TEXTS, URL, mover_of
from tests.node.tiering.conftest import filled as filled_alone

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet(snapshot_operations_min=1, scrub_interval_s=0.1, scrub_bytes_per_s=1 << 30) as made:
        bucket = SimulatedBucket()
        for member in made.members.values():
            member.simulated.bucket = bucket
        yield made


def bucket_of(fleet: Fleet) -> SimulatedBucket:
    bucket = fleet["a"].simulated.bucket
    assert isinstance(bucket, SimulatedBucket)
    return bucket


async def filled(fleet: Fleet) -> list[str]:
    thread = fleet["a"].store().space("crew").thread("a")
    ids = [(await thread.save({"text": text, "step": step})).id for step, text in enumerate(TEXTS)]
    await fleet.converged()
    return ids


async def move(member: Member) -> None:
    assert await Mover(member.node._context, member.node._database).move(TARGET, URL) > 0


def stubs(member: Member) -> int:
    return sum(cold.stub_of(key, value) is not None for key, value in member.storage.scan(OF, OF + b"\xff"))


async def states(member: Member, ids: list[str]) -> list[object]:
    member.node._database._kinds.shapes._entries.clear()
    thread = member.store().space("crew").thread("a")
    return [(await thread.load(id)).state for id in ids]


async def test_a_new_member_gets_chunks_and_no_stubs(fleet: Fleet) -> None:
    ids = await filled(fleet)
    for name in "ab":
        await move(fleet[name])
    await fleet.crash("c")
    fleet.start("c", MemoryStorage(identity=b"another disk")).simulated.bucket = None
    await fleet.until(lambda: not fleet["c"].replicator.quorum.is_learner)
    assert stubs(fleet["c"]) == 0
    assert await states(fleet["c"], ids) == EXPECTED


async def test_peers_of_which_one_has_stubs_do_not_differ(fleet: Fleet) -> None:
    ids = await filled(fleet)
    await move(fleet["b"])
    before = stubs(fleet["b"])
    await asyncio.sleep(3)  # Some passes.
    assert [fleet[name].replicator.scrubber.told for name in "abc"] == [[], [], []]
    assert stubs(fleet["b"]) == before
    thread = fleet["a"].store().space("crew").thread("a")
    await thread.load()
    await thread.save({"text": "new", "step": 9})
    await fleet.converged()
    assert await states(fleet["b"], ids) == EXPECTED


async def test_a_peer_that_was_away_gets_what_is_in_the_bucket(fleet: Fleet) -> None:
    await fleet.isolate("c")
    thread = fleet["a"].store().space("crew").thread("a")
    ids = [(await thread.save({"text": text, "step": step})).id for step, text in enumerate(TEXTS)]
    await fleet.durable()
    await move(fleet["a"])
    fleet.link_all("c")
    await fleet.converged(60)
    assert await states(fleet["c"], ids) == EXPECTED


async def test_a_pack_that_is_lost_is_asked_of_peers(fleet: Fleet) -> None:
    ids = await filled(fleet)
    await move(fleet["a"])
    bucket_of(fleet).objects.clear()
    assert await states(fleet["a"], ids) == EXPECTED


async def test_a_peer_is_given_what_is_in_the_bucket(fleet: Fleet) -> None:
    ids = await filled(fleet)
    await move(fleet["a"])
    await move(fleet["b"])
    for key, value in list(fleet["c"].storage.scan(OF + b"D", OF + b"E")):
        if len(value) > cold.NODE_BYTES:
            fleet["c"].storage.write({key: value[:-1] + b"?"})
    assert await states(fleet["c"], ids) == EXPECTED


async def test_a_peer_waits_for_fetches_and_not_as_for_damage(fleet: Fleet) -> None:
    """Each operation's chunks are in other packs: a quarantine for each pack would take hours."""
    await fleet.isolate("c")
    thread = fleet["a"].store().space("crew").thread("a")
    ids = [(await thread.save({"text": text, "step": step})).id for step, text in enumerate(TEXTS)]
    await fleet.durable()
    with altered(pack_bytes=70_000):
        await move(fleet["a"])
        await move(fleet["b"])
    assert len(bucket_of(fleet).names("tiers/")) >= 12
    fleet.link_all("c")
    began = asyncio.get_running_loop().time()
    await fleet.converged(60)
    assert asyncio.get_running_loop().time() - began < 30
    assert await states(fleet["c"], ids) == EXPECTED


async def test_a_chunk_that_is_lost_comes_from_a_peer_that_fetches_it(fleet: Fleet) -> None:
    ids = await filled(fleet)
    for name in "abc":
        await move(fleet[name])
    bucket = bucket_of(fleet)
    lost = [name for name in bucket.names("tiers/") if fleet["a"].node._context.incarnation.node.hex() in name]
    for name in lost:
        del bucket.objects[name]
    assert lost
    assert await states(fleet["a"], ids) == EXPECTED


async def test_two_clusters_share_a_bucket(fleet: Fleet, bench: Bench) -> None:
    ids = await filled(fleet)
    await move(fleet["a"])
    theirs = set(bucket_of(fleet).objects)
    bench.simulated.bucket = bucket_of(fleet)
    await filled_alone(bench)
    mover = mover_of(bench)
    await mover.move(TARGET, URL)
    await bench.space.thread("a").delete()
    await asyncio.sleep(120)  # Until it was swept.
    await mover.tidy()
    assert set(bucket_of(fleet).objects) == theirs
    assert await states(fleet["a"], ids) == EXPECTED
