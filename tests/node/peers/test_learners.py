"""A node that may have forgotten is a learner: it counts in no quorum until it holds what a majority of the others hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from shoal.cluster import messages
from shoal.cluster.fetching import Learning
from shoal.cluster.membership.epochs import Change, Record
from shoal.cluster.messages import Digest, Vectors
from shoal.cluster.operation import partition_of
from shoal.cluster.replication import Replication
from shoal.crdt.dot import Origin, VersionVector
from shoal.errors import CatchingUp, NoQuorum, RightsElsewhere
from shoal.node.membership.roster import Roster
from shoal.protocol.requests import BeginStep, CatchUp, ReadStep, Step
from shoal.storage.interface import MemoryStorage
from simulation.world.fleet import Fleet, Member

FORGOTTEN = ["wiped", "set back"]


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


def is_learner(member: Member) -> bool:
    return member.replicator.quorum.is_learner


async def forget(fleet: Fleet, name: str, how: str, copy: MemoryStorage) -> None:
    """Start a node again, on an empty disk or on a copy of its disk, without a link to anybody."""
    await fleet.crash(name)
    fleet._make(name, MemoryStorage() if how == "wiped" else copy)


async def begun(member: Member, attempt: str) -> bool:
    step = BeginStep("crew", "t", "charge-42", "charge", attempt)
    reply = await member.node.session().call(step, durability="quorum", key=attempt)
    assert isinstance(reply, Step)
    return reply.begun


@pytest.mark.answers("wiped-or-restored-node-counts-towards-a-majority")
@pytest.mark.parametrize("how", FORGOTTEN)
async def test_a_step_that_a_quorum_holds_is_not_begun_again_where_it_was_forgotten(fleet: Fleet, how: str) -> None:
    """One disk of three is lost and one node is cut off: the intent is on that one alone."""
    copy = fleet["c"].storage.left_by_crash(0)
    await fleet.isolate("b")
    assert await begun(fleet["a"], "first")
    await forget(fleet, "c", how, copy)
    await fleet.isolate("a")
    fleet.link("b", "c")
    fleet.link("c", "b")
    for name in "bc":
        with pytest.raises((NoQuorum, CatchingUp), match=r"has fetched what the others hold|began empty|is a copy"):
            await begun(fleet[name], f"again at {name}")
    fleet.link_all("a")
    await fleet.admitted()
    assert not await begun(fleet["b"], "healed")


@pytest.mark.answers("wiped-or-restored-node-counts-towards-a-majority", note="its twin")
async def test_without_the_fence_it_is_begun_twice(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failing twin of the test above."""
    await fleet.isolate("b")
    assert await begun(fleet["a"], "first")
    monkeypatch.setattr(Replication, "is_member", lambda self, peer: True)
    await forget(fleet, "c", "wiped", MemoryStorage())
    await fleet.isolate("a")
    fleet.link("b", "c")
    fleet.link("c", "b")
    assert await begun(fleet["b"], "again")


@pytest.mark.answers("seed-70258", "answer-of-a-learner-counts-later")
async def test_a_node_that_was_asked_while_it_was_a_learner_is_asked_again_once_it_counts() -> None:
    """Found by seed 70307 of `composed`: b asks what a quorum holds, and only c answers, which learns meanwhile."""
    async with Fleet(quorum_timeout_s=30) as fleet:
        answered, counts = asyncio.Event(), asyncio.Event()

        def spoil(source: str, target: str, message: bytes) -> bytes | None:
            """Until c counts, b hears that a counts, what c answers before it learns anything, and nothing else."""
            decoded = messages.decode(message)
            if target != "b" or counts.is_set() or (isinstance(decoded, Digest) and (source == "a" or decoded.learner)):
                return message
            if isinstance(decoded, Digest):
                counts.set()
                return message
            if source == "c" and isinstance(decoded, Vectors) and decoded.question and not decoded.answer:
                answered.set()
                return None if ("a", "c") in fleet.wires else message
            return None

        await fleet.isolate("b")
        assert await begun(fleet["a"], "first")
        await forget(fleet, "c", "wiped", MemoryStorage())
        fleet.spoil = spoil
        for pair in ("ab", "ba", "bc", "cb"):
            fleet.link(*pair)
        session = fleet["b"].node.session()
        asked = asyncio.create_task(session.call(CatchUp("crew", "t")))
        async with asyncio.timeout(30):
            await answered.wait()
            fleet.link_all("a")
            assert (await asked).quorum
        assert (await session.call(ReadStep("crew", "t", "charge-42"))).state == "open"
        assert counts.is_set()


@pytest.mark.parametrize("durability", ["local", "quorum", "all"])
async def test_a_wiped_node_issues_nothing_until_it_is_admitted(fleet: Fleet, durability: str) -> None:
    await forget(fleet, "c", "wiped", MemoryStorage())
    fleet.link("c", "a")
    fleet.link("a", "c")
    counter = fleet["c"].store().space("crew").counter("n")
    with pytest.raises(CatchingUp, match="has not heard a:1, b:1"):
        await counter.add(1, durability=durability)  # type: ignore[arg-type]
    fleet.link_all("c")
    await fleet.admitted()
    assert await counter.add(1, durability=durability) == 1  # type: ignore[arg-type]


async def test_a_restart_is_no_learner_and_needs_nobody(fleet: Fleet) -> None:
    await fleet.converged()
    await fleet.isolate("a")
    left = await fleet.crash("c")
    fleet._make("c", left)
    assert not is_learner(fleet["c"])
    fleet.link("b", "c")
    fleet.link("c", "b")
    await fleet["b"].store().space("crew").counter("n").add(1, durability="quorum")


async def test_a_learner_that_restarts_is_still_one(fleet: Fleet) -> None:
    await forget(fleet, "c", "wiped", MemoryStorage())
    left = await fleet.crash("c")
    fleet._make("c", left)
    assert is_learner(fleet["c"])
    with pytest.raises(CatchingUp, match="began empty"):
        await fleet["c"].store().space("crew").counter("n").value()
    fleet.link_all("c")
    await fleet.admitted()


async def test_a_copy_is_another_node_than_its_original(fleet: Fleet) -> None:
    await fleet["b"].store().space("crew").counter("n").add(1)
    original = fleet["b"].identity()
    copy = fleet["b"].storage.left_by_crash(0)
    await fleet.crash("c")
    fleet._make("c", copy)
    assert is_learner(fleet["c"])
    assert fleet["c"].identity().node != original.node
    fleet.link_all("c")
    await fleet.admitted()
    await fleet.converged()


@pytest.mark.answers("restored-copy-builds-on-pruned-data")
async def test_a_copy_writes_nothing_until_it_has_caught_up_whatever_the_durability(fleet: Fleet) -> None:
    """It may build on chunks that all others have erased."""
    await fleet["b"].store().space("crew").counter("n").add(1)
    await fleet.converged()
    copy = fleet["c"].storage.left_by_crash(0)
    await forget(fleet, "c", "set back", copy)
    fleet.link("c", "a")
    fleet.link("a", "c")
    for _ in range(2):
        with pytest.raises(CatchingUp, match="a copy"):
            await fleet["c"].store().space("crew").counter("n").add(1)
        assert await fleet["c"].store().space("crew").counter("n").value() == 1
        fleet._make("c", await fleet.crash("c"))  # It is known after a restart, too.
    fleet.link_all("c")
    await fleet.admitted()
    assert await fleet["c"].store().space("crew").counter("n").add(1) == 2


async def test_a_copy_that_wrote_while_it_was_alone_is_still_one_among_peers(fleet: Fleet) -> None:
    copy = fleet["c"].storage.left_by_crash(0)
    await fleet.crash("c")
    async with Fleet("c", join="", seed=900) as alone:
        await alone.crash("c")
        alone._make("c", copy)
        await alone["c"].store().space("crew").counter("n").add(1)
        left = await alone.crash("c")
    fleet._make("c", left)
    with pytest.raises(CatchingUp, match="a copy"):
        await fleet["c"].store().space("crew").counter("n").add(1)
    fleet.link_all("c")
    await fleet.admitted()
    assert await fleet["c"].store().space("crew").counter("n").add(1) == 2


async def test_a_lone_store_that_was_copied_goes_on() -> None:
    async with Fleet("a", join="") as fleet:
        await fleet["a"].store().space("crew").counter("n").add(1)
        copy = fleet["a"].storage.left_by_crash(0)
        await fleet.crash("a")
        fleet._make("a", copy)
        assert await fleet["a"].store().space("crew").counter("n").add(1) == 2


async def test_a_copy_leaves_the_rights_of_its_original_alone(fleet: Fleet) -> None:
    """The original may be alive, and spend what it has."""
    budget = fleet["a"].store().space("crew").budget("b")
    await budget.grant(30)
    await budget.draw(30)
    await fleet.converged()
    copy = fleet["a"].storage.left_by_crash(0)
    await fleet.crash("a")
    fleet.start("a", copy)
    await fleet.admitted()
    with pytest.raises(RightsElsewhere):
        await fleet["a"].store().space("crew").budget("b").spend(30)


async def test_a_learner_moves_no_stability(fleet: Fleet) -> None:
    await fleet["a"].store().space("crew").counter("n").add(1)
    await fleet.converged()
    await forget(fleet, "c", "wiped", MemoryStorage())
    fleet.link("a", "c")
    fleet.link("c", "a")
    async with asyncio.timeout(30):
        while fleet["c"].digest() != fleet["a"].digest():
            await asyncio.sleep(0.002)
    assert is_learner(fleet["c"])  # b was not heard.
    assert all(holding.whole is None for holding in fleet["c"].replicator.quorum.holdings(0).values())
    assert fleet["a"].replicator.quorum.holdings(0)["c:1"].whole is None


async def test_a_first_start_of_a_cluster_needs_no_word_of_anybody() -> None:
    async with Fleet("abcde") as fleet:
        await fleet["a"].store().space("crew").counter("n").add(1, durability="all")


async def test_a_store_that_becomes_one_of_three_keeps_what_it_has() -> None:
    async with Fleet("a", join="") as alone:
        await alone["a"].store().space("crew").counter("n").add(7, durability="quorum")
        left = await alone.crash("a")
    async with Fleet() as fleet:
        await fleet.crash("a")
        fleet.start("a", left)
        await fleet.admitted()
        await fleet.converged()
        assert await fleet["b"].store().space("crew").counter("n").add(1, durability="all") == 8


async def test_the_status_tells_from_whom_it_learns_and_how_far_it_is(fleet: Fleet) -> None:
    await fleet["a"].store().space("crew").counter("n").add(1)
    await fleet.converged()
    assert (await fleet["c"].store().cluster()).learning == []
    await forget(fleet, "c", "wiped", MemoryStorage())
    assert (await fleet["c"].store().cluster()).learning == ["a:1: not heard yet", "b:1: not heard yet"]
    fleet.link("c", "a")
    fleet.link("a", "c")
    async with asyncio.timeout(30):
        while (await fleet["c"].store().cluster()).learning != ["a:1: all fetched", "b:1: not heard yet"]:
            await asyncio.sleep(0.002)


async def test_a_learner_counts_once_its_admission_is_durable(fleet: Fleet) -> None:
    await forget(fleet, "c", "wiped", MemoryStorage())
    admission, protocol = fleet["c"].replicator._admission, fleet["c"].replicator._protocol
    admission._write = 1 << 40
    assert not admission.durable((1 << 40) - 1)
    assert protocol.learning is not None
    assert admission.durable(1 << 40)
    assert protocol.learning is None


async def test_a_node_that_a_member_refused_is_not_admitted(fleet: Fleet) -> None:
    await forget(fleet, "c", "wiped", MemoryStorage())
    by = fleet["a"].identity()._replace(epoch=7)
    fleet["c"].replicator.memberships._roster.refused("c:1 is no member. Nothing was written.", is_removed=False, by=by)
    fleet.link_all("c")
    await asyncio.sleep(1)
    assert fleet["c"].replicator._protocol.learning is not None


async def test_a_learner_that_lacks_something_is_not_admitted(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    await forget(fleet, "c", "wiped", MemoryStorage())
    monkeypatch.setattr(Roster, "is_admissible", True)
    admission = fleet["c"].replicator._admission
    admission.seek()
    assert admission._write is None


async def test_a_learner_knows_of_nobodys_holdings(fleet: Fleet) -> None:
    await begun(fleet["a"], "first")
    await fleet.converged()
    quorum, protocol = fleet["a"].replicator.quorum, fleet["a"].replicator._protocol
    number = partition_of("crew", "t")
    await fleet.until(lambda: all(held.vector for held in quorum.holdings(number).values()))
    protocol.learning = Learning(lambda _: VersionVector(), {number: VersionVector({Origin(b"o" * 16): 1})})
    assert [held.whole for held in quorum.holdings(number).values()] == [None, None]
    assert not any(held.vector for held in quorum.holdings(number).values())


@pytest.mark.parametrize(("is_done", "holds"), [(True, True), (True, False), (False, True)])
async def test_a_leaving_node_hands_over_all(fleet: Fleet, is_done: bool, holds: bool) -> None:
    replicator = fleet["a"].replicator
    roster = replicator.memberships._roster
    change = Change("drain", "", "c:1", is_joint=True, hands_over=True)
    roster.record = Record(2, ("a:1", "b:1", "c:1"), change=change)
    replicator._protocol.handover = SimpleNamespace(is_done=lambda *_, **__: is_done, holds=lambda _: holds)  # type: ignore[assignment]
    assert replicator._admission.is_caught_up is (is_done and holds)
    replicator._protocol.handover = None
    roster.record = Record(0, ("a:1", "b:1", "c:1"))
