"""Openings of the past: what is written, answered and told does not grow with them."""

from __future__ import annotations

import asyncio

import pytest

from shoal.cluster import messages, operation
from shoal.cluster.messages import Vectors
from shoal.cluster.operation import TIP_BYTES, LogEntry, Tip
from shoal.crdt.dot import Dot, HybridClock, Origin
from shoal.crdt.rows import successor
from shoal.node.partitions import Partitions
from shoal.node.peers.cluster_state import STATUS_ORIGINS_MAX
from shoal.protocol.bookmark import Bookmark
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.world.fleet import Fleet, Member
from tests.node.conftest import Bench, Opener

OPENINGS = 40


async def opened_often(open_bench: Opener, storage: MemoryStorage | None = None, *, openings: int = OPENINGS) -> Bench:
    """The last of so many openings of one directory, each of which wrote once."""
    bench = open_bench(storage)
    for seed in range(openings):
        await bench.space.counter("n").add(1)
        await bench.node.stop()
        bench = open_bench(bench.storage.left_by_crash(0), seed=seed + 100)
    return bench


def contexts(storage: MemoryStorage) -> list[int]:
    """How many entries the context of each operation has."""
    return [
        len(operation.decode(LogEntry.unpack(stored).packed).context)
        for _, stored in storage.scan(keys.LOG, successor(keys.LOG))
    ]


def tips(storage: MemoryStorage) -> dict[bytes, Tip]:
    return {key: Tip.unpack(packed) for key, packed in storage.scan(keys.VECTOR, successor(keys.VECTOR))}


@pytest.mark.answers("origins-of-past-openings-make-operations")
async def test_an_operation_names_the_last_one_before_it_and_none_of_past_openings(open_bench: Opener) -> None:
    bench = await opened_often(open_bench)
    assert sorted(contexts(bench.storage)) == [0] + [1] * (OPENINGS - 1)
    assert sum(not tip.known for tip in tips(bench.storage).values()) == 1


@pytest.mark.answers("origins-of-past-openings-make-operations")
async def test_a_bookmark_does_not_grow_with_past_openings(open_bench: Opener) -> None:
    bench = await opened_often(open_bench)
    assert await bench.space.counter("n").value() == OPENINGS
    [(_, vector)] = Bookmark.parse(bench.store.bookmark)
    assert len(vector) == 1


async def test_a_session_that_lasts_while_others_write_names_the_last_operation_alone() -> None:
    async with Fleet() as fleet:
        store = fleet["a"].store()
        for name in "abcabc":
            await fleet[name].store().space("crew").counter("n").add(1)
            await fleet.converged()
            await store.space("crew").counter("n").value()
        [(_, vector)] = Bookmark.parse(store.bookmark)
        assert len(vector) == 1


async def test_a_bookmark_names_all_concurrent_operations_until_one_comes_after_them() -> None:
    async with Fleet() as fleet:
        for name in "abc":
            await fleet.isolate(name)
        for name in "abc":
            await fleet[name].store().space("crew").counter("n").add(1)
        for name in "abc":
            fleet.link_all(name)
        await fleet.converged()
        store = fleet["a"].store()
        assert await store.space("crew").counter("n").value() == 3
        [(_, vector)] = Bookmark.parse(store.bookmark)
        assert len(vector) == 3
        await store.space("crew").counter("n").add(1)
        [(_, vector)] = Bookmark.parse(store.bookmark)
        assert len(vector) == 1


async def test_concurrent_values_are_named_after_a_restart() -> None:
    async with Fleet() as fleet:
        await fleet.isolate("a")
        for name in "ab":
            await fleet[name].store().space("crew").counter("n").add(1)
        fleet.link_all("a")
        await fleet.converged()
        left = await fleet.crash("a")
        again = fleet.start("a", left)
        store = again.store()
        assert await store.space("crew").counter("n").value() == 2
        [(_, vector)] = Bookmark.parse(store.bookmark)
        assert len(vector) == 2


async def test_a_directory_of_an_older_version_names_all_its_openings_until_its_next_write(open_bench: Opener) -> None:
    bench = await opened_often(open_bench)
    left = bench.storage.left_by_crash(0)
    left.write({key: (left.get(key) or b"")[:TIP_BYTES] for key in tips(left)})
    old = open_bench(left, seed=9)
    assert await old.space.counter("n").value() == OPENINGS
    [(_, vector)] = Bookmark.parse(old.store.bookmark)
    assert len(vector) == OPENINGS
    await old.space.counter("n").add(1)
    [(_, vector)] = Bookmark.parse(old.store.bookmark)
    assert len(vector) == 1
    assert sum(not tip.known for tip in tips(old.storage).values()) == 1


async def test_the_rights_of_every_past_opening_stay_those_of_the_directory(open_bench: Opener) -> None:
    bench = await opened_often(open_bench, openings=3)
    origins = [Origin(key[3:]) for key in tips(bench.storage)]
    opening = bench.node._database.issuer._incarnation
    assert all(opening.is_over(origin) for origin in origins)
    assert not opening.is_over(Origin(b"another directory"[:16]))


def reopened(member: Member, openings: int) -> None:
    """Let a node write under as many origins as that many openings would have taken."""
    issuer = member.node._database.issuer
    for _ in range(openings):
        issuer._incarnation._origin = None
        issuer.introduce()


async def write_under_new_origins(member: Member, count: int) -> None:
    store = member.store()
    for n in range(count):
        reopened(member, 1)
        await store.space("crew").counter(f"n{n % 97}").add(1, durability="memory")


@pytest.mark.answers("origins-of-past-openings-make-operations")
@pytest.mark.parametrize("openings", [1500, pytest.param(10_000, marks=pytest.mark.thorough)])
async def test_a_node_joins_one_that_was_opened_very_often(openings: int) -> None:
    longest = 0

    def measured(source: str, target: str, message: bytes) -> bytes:
        nonlocal longest
        if isinstance(messages.decode(message), Vectors):
            longest = max(longest, len(message))
        return message

    async with Fleet("ab", vectors_bytes_max=10_000, quorum_timeout_s=30.0, sync_interval_s=0.5) as fleet:
        await fleet.isolate("b")
        await write_under_new_origins(fleet["a"], openings)
        await fleet.durable()
        fleet.spoil = measured
        fleet.link_all("b")
        async with asyncio.timeout(60.0):
            while fleet["b"].node._database.partitions.totals.operations < openings:
                await asyncio.sleep(0.05)
        await fleet.converged(30.0)
        view = fleet["a"].replicator.quorum.view()
        assert (view.members[0].operations, view.members[0].origins) == (openings, openings)
        assert len(view.members[0].vector) == STATUS_ORIGINS_MAX
        assert 0 < longest <= 10_000
        assert fleet.refusals == []


@pytest.mark.answers("origins-of-past-openings-make-operations")
async def test_the_counts_of_the_status_are_those_of_a_recount() -> None:
    async with Fleet() as fleet:
        await fleet.isolate("c")
        for name in "abc":
            await write_under_new_origins(fleet[name], 7)
        await fleet["a"].store().space("crew").counter("n").add(1)
        await fleet.durable()
        fleet.spoil = lambda source, target, message: None if source == "c" else message
        fleet.link_all("c")
        replicator = fleet["a"].replicator
        partitions = fleet["a"].node._database.partitions
        for member, state in zip(replicator.quorum.view().members[1:], replicator.quorum.members.all, strict=True):
            known = replicator._protocol.known(state.node)
            lacks = ahead = 0
            for number in range(1024):
                ours, theirs = partitions.load(number).durable, known.vector(number)
                lacks += sum(map(len, ours.missing(theirs).values()))
                ahead += sum(map(len, theirs.missing(ours).values()))
            assert (member.lacks, member.ahead) == (lacks, ahead)
        assert replicator.quorum.view().members[0].operations == sum(
            sum(vector.values()) for vector in partitions.vectors().values()
        )


def test_partitions_are_loaded_with_the_frontier_that_was_stored() -> None:
    a, b = Origin(b"a" * 16), Origin(b"b" * 16)
    rows = {
        keys.vector(3, a): Tip(2, 1, bytes(32), known=True).pack(),
        keys.vector(3, b): Tip(1, 2, bytes(32)).pack(),
    }
    found = Partitions(MemoryStorage(rows), HybridClock()).load(3)
    assert found.vector.covers(Dot(a, 2))
    assert found.vector.frontier.entries() == [(b, 1)]
