"""Operations go to the peers beside the own fsync: what they are not taken for, and what becomes of them after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shoal.cluster import messages
from shoal.cluster.messages import Digest, Push
from shoal.crdt.dot import Dot, Origin
from shoal.errors import StorageFull
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.storage.interface import MemoryStorage
from simulation.world.environment import SimulatedEnvironment
from simulation.world.fleet import Fleet, Member
from tests.node.wiretap import POLL_S, Tap, pushed, taken


@asynccontextmanager
async def fleet_of(names: str = "abc", **settings: Any) -> AsyncIterator[Fleet]:
    """A fleet whose disks sync again at the end, whatever happens."""
    async with Fleet(names, **settings) as fleet:
        try:
            yield fleet
        finally:
            for member in fleet.members.values():
                member.simulated.release_syncs()


async def crashed(fleet: Fleet, name: str, writing: asyncio.Task[object]) -> MemoryStorage:
    """Cut the power of a node whose fsync is under way. Returns its disk without what that would have made durable."""
    member = fleet[name]
    crashing = asyncio.create_task(fleet.crash(name, 0))
    await asyncio.sleep(20 * POLL_S)
    member.simulated.release_syncs()  # Else the thread that syncs would be waited for.
    await asyncio.gather(writing, return_exceptions=True)
    return await crashing


async def add(member: Member, *, durability: Durability = "local") -> None:
    await member.store().space("crew").counter("n").add(1, durability=durability)


def pushes(message: bytes) -> bool:
    return isinstance(messages.decode(messages.unstamped(message)[1]), Push)


def origin_of(member: Member) -> Origin:
    found = member.replicator._incarnation.current
    assert found is not None
    return found


def known(member: Member, of: Member, dot: Dot) -> bool:
    """Whether a node counts another one as one that holds an operation."""
    knowledge = member.replicator._protocol.known(of.replicator.identity().node)
    return any(knowledge.vector(number).covers(dot) for number in member.node._database.partitions.vectors())


def applied(member: Member, dot: Dot) -> bool:
    return any(vector.covers(dot) for vector in member.node._database.partitions.vectors().values())


async def written_beside(fleet: Fleet, name: str, *, durability: Durability = "local") -> asyncio.Task[None]:
    """A write of a node whose disk does not sync; all others have it by then, durably."""
    await add(fleet[name])
    await fleet.converged()
    fleet[name].simulated.hold_syncs()
    writing = asyncio.create_task(add(fleet[name], durability=durability))
    dot = Dot(origin_of(fleet[name]), 2)
    await fleet.until(lambda: all(applied(fleet[other], dot) for other in "abc" if other != name))
    await asyncio.sleep(20 * POLL_S + 2 * SimulatedEnvironment.sync_s)
    return writing


async def test_an_operation_reaches_others_while_its_own_fsync_is_under_way() -> None:
    async with fleet_of() as fleet:
        writing = await written_beside(fleet, "a", durability="quorum")
        assert not writing.done(), "it is not durable where it was made"
        fleet["a"].simulated.release_syncs()
        await writing


async def test_an_early_acknowledgement_is_no_impossible_claim() -> None:
    async with fleet_of() as fleet:
        writing = await written_beside(fleet, "a")
        await fleet.until(lambda: known(fleet["a"], fleet["b"], Dot(origin_of(fleet["a"]), 2)))
        assert fleet.refusals == []
        fleet["a"].simulated.release_syncs()
        await writing


async def test_a_push_does_not_count_as_held_where_it_came_from_until_that_is_said() -> None:
    async with fleet_of() as fleet:
        writing = await written_beside(fleet, "a")
        dot = Dot(origin_of(fleet["a"]), 2)
        assert not known(fleet["b"], fleet["a"], dot)
        fleet["a"].simulated.release_syncs()
        await writing
        await fleet.until(lambda: known(fleet["b"], fleet["a"], dot))


async def test_a_retry_elsewhere_counts_no_copy_that_is_not_durable() -> None:
    async with fleet_of("ab", quorum_timeout_s=0.05) as fleet:
        await add(fleet["a"])
        await fleet.converged()
        fleet["a"].simulated.hold_syncs()
        request = requests.Add("crew", "n", 1)
        writing = asyncio.create_task(fleet["a"].node.session().call(request, key="k"))
        await fleet.until(lambda: applied(fleet["b"], Dot(origin_of(fleet["a"]), 2)))
        again = asyncio.create_task(fleet["b"].node.session().call(request, key="k", durability="quorum"))
        [ended] = await asyncio.gather(again, return_exceptions=True)
        fleet["a"].simulated.release_syncs()
        await writing
        assert isinstance(ended, Exception), "only one node has it on its disk"


async def test_a_read_and_a_watch_show_nothing_before_it_is_durable_here() -> None:
    async with fleet_of() as fleet:
        changes: list[object] = []

        async def watch() -> None:
            async for change in fleet["a"].store().space("crew").watch():
                changes.append(change)  # noqa: PERF401 (it never ends)

        watching = asyncio.create_task(watch())
        await asyncio.sleep(20 * POLL_S)
        writing = await written_beside(fleet, "a")
        before = len(changes)
        reading = asyncio.create_task(fleet["a"].store().space("crew").counter("n").value())
        await asyncio.sleep(20 * POLL_S)
        assert not reading.done()
        assert await fleet["b"].store().space("crew").counter("n").value() == 2, "it is durable there"
        fleet["a"].simulated.release_syncs()
        await writing
        assert await reading == 2
        await fleet.until(lambda: len(changes) > before)
        watching.cancel()
        assert before == 1


@pytest.mark.answers("sequence-number-is-reused-after-a-lost-fsync")
async def test_a_node_takes_back_what_it_lost_in_a_crash() -> None:
    async with fleet_of() as fleet:
        writing = await written_beside(fleet, "a")
        dot = Dot(origin_of(fleet["a"]), 2)
        storage = await crashed(fleet, "a", writing)
        fleet.start("a", storage)
        assert not applied(fleet["a"], dot)
        await fleet.converged()
        assert applied(fleet["a"], dot)
        assert await fleet["a"].store().space("crew").counter("n").value() == 2
        status = await fleet["a"].node.session().call(requests.Status())
        assert not fleet["a"].replicator._incarnation.fence, status
        assert fleet.refusals == []


async def test_a_retry_after_the_crash_is_applied_once() -> None:
    async with fleet_of() as fleet:
        await add(fleet["a"])
        await fleet.converged()
        fleet["a"].simulated.hold_syncs()
        request = requests.Add("crew", "n", 5)
        writing = asyncio.create_task(fleet["a"].node.session().call(request, key="k"))
        await fleet.until(lambda: applied(fleet["b"], Dot(origin_of(fleet["a"]), 2)))
        storage = await crashed(fleet, "a", writing)
        await fleet["b"].node.session().call(request, key="k", durability="quorum")
        fleet.start("a", storage)
        await fleet["a"].node.session().call(request, key="k", durability="quorum")
        await fleet.converged()
        assert await fleet["a"].store().space("crew").counter("n").value() == 6


async def test_after_a_failed_fsync_the_outcome_is_unknown_and_the_others_keep_it() -> None:
    async with fleet_of() as fleet:
        writing = await written_beside(fleet, "a")
        fleet["a"].storage.fail_next("sync")
        fleet["a"].simulated.release_syncs()
        with pytest.raises(StorageFull, match="may or may not"):
            await writing
        assert await fleet["b"].store().space("crew").counter("n").value() == 2


async def test_the_first_write_of_an_opening_waits_for_its_fsync() -> None:
    """Else a crash could take away that the directory had this origin, and nobody would ever retire it."""
    async with fleet_of("ab") as fleet:
        fleet["a"].simulated.hold_syncs()
        writing = asyncio.create_task(add(fleet["a"]))
        await asyncio.sleep(50 * POLL_S)
        assert not fleet["b"].node._database.partitions.vectors()
        fleet["a"].simulated.release_syncs()
        await writing


@pytest.mark.parametrize("kind", ["budget", "map"])
async def test_rights_and_sums_taken_over_wait_for_their_fsync(kind: str) -> None:
    async with fleet_of("ab") as fleet:
        await add(fleet["a"])
        await fleet.converged()
        sent = len(fleet["b"].node._database.partitions.vectors())
        fleet["a"].simulated.hold_syncs()
        space = fleet["a"].store().space("crew")
        write = space.budget("b").grant(5) if kind == "budget" else space.map("m").add("c")
        writing = asyncio.create_task(write)
        await asyncio.sleep(50 * POLL_S)
        assert len(fleet["b"].node._database.partitions.vectors()) == sent
        fleet["a"].simulated.release_syncs()
        await writing


async def test_a_node_of_an_older_version_gets_what_is_durable_alone() -> None:
    async with fleet_of("ab") as fleet:
        await add(fleet["a"])
        await fleet.converged()
        tap = Tap("b:1")
        older = fleet["b"].identity()._replace(protocol=6)
        fleet["a"].replicator.linked(older, tap)
        fleet["a"].simulated.hold_syncs()
        writing = asyncio.create_task(add(fleet["a"]))
        await asyncio.sleep(50 * POLL_S)
        assert tap.shipments() == []
        fleet["a"].simulated.release_syncs()
        await writing
        assert len(tap.shipments()) == 1


# ── where the origins of past openings end ────────────────────────────────────


async def test_nothing_of_an_earlier_run_is_taken_once_the_node_runs_again() -> None:
    async with fleet_of() as fleet:
        await add(fleet["a"])
        await fleet.converged()
        late: list[bytes] = []
        before = fleet["a"].identity()

        def keep(source: str, target: str, message: bytes) -> bytes | None:
            if source == "a" and pushes(message):
                late.append(message)
                return None
            return message

        fleet.spoil = keep
        fleet["a"].simulated.hold_syncs()
        writing = asyncio.create_task(add(fleet["a"]))
        await fleet.until(lambda: len(late) == 2)
        dot = Dot(origin_of(fleet["a"]), 2)
        storage = await crashed(fleet, "a", writing)
        fleet.spoil = lambda source, target, message: message
        fleet.start("a", storage)
        await fleet.until(lambda: fleet["a"].replicator._protocol.ends is None)
        await fleet["b"].replicator.received(before, late[0])
        await taken(fleet["b"], before)
        assert not applied(fleet["b"], dot)


async def test_until_all_have_said_so_nothing_that_it_holds_is_whole() -> None:
    async with fleet_of() as fleet:
        await add(fleet["a"])
        await fleet.converged()
        storage = await fleet.crash("a", 0)
        await fleet.isolate("c")
        fleet.start("a", storage, linked=False)
        for source, target in ("ab", "ba"):
            fleet.link(source, target)
        await asyncio.sleep(2)
        [number] = fleet["b"].node._database.partitions.vectors()
        node = fleet["a"].replicator.identity().node
        assert fleet["a"].replicator._protocol.ends is not None
        assert fleet["b"].replicator._protocol.known(node).whole(number) is None
        assert all(holding.whole is None for holding in fleet["a"].replicator.quorum.holdings(number).values())
        fleet.link_all("c")
        await fleet.until(lambda: fleet["a"].replicator._protocol.ends is None)
        await fleet.until(lambda: fleet["b"].replicator._protocol.known(node).whole(number) is not None)
        await fleet.until(lambda: fleet["a"].replicator.quorum.holdings(number)["b:1"].whole is not None)


async def test_a_peer_says_so_once_what_it_took_is_durable() -> None:
    async with fleet_of("ab") as fleet:
        await add(fleet["a"])
        await fleet.converged()
        tap = Tap("a:1")
        told = fleet["a"].identity()
        await fleet.isolate("a")
        fleet["b"].simulated.hold_syncs()
        await pushed(fleet["b"], told, [])
        writing = asyncio.create_task(add(fleet["b"]))
        await asyncio.sleep(20 * POLL_S)
        again = told._replace(opening=b"2" * 16)
        fleet["b"].replicator.admit(again)
        fleet["b"].replicator.linked(again, tap)
        assert all(not message.fenced for message in tap.messages if isinstance(message, Digest))
        fleet["b"].simulated.release_syncs()
        await writing
        assert [message.fenced for message in tap.messages if isinstance(message, Digest)][-1] == again.opening
