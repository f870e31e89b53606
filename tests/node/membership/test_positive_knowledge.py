"""A node serves, and says that it is ready, only once it knows that it may: a member admitted it, or its cluster is founded."""

from __future__ import annotations

import asyncio

import pytest

from shoal.errors import CatchingUp, NotAMember, NotFound, PeerRefused
from shoal.node.membership.roster import Roster
from shoal.storage.interface import MemoryStorage
from simulation.world.fleet import Fleet
from tests.node.membership.test_changes import asked, changes, cluster, is_done, record


def roster(fleet: Fleet, name: str) -> Roster:
    return fleet[name].replicator.quorum.members.roster


async def state_of(fleet: Fleet, name: str) -> tuple[str, bool]:
    status = await fleet[name].store().status()
    return status.state, status.serves


async def saved(fleet: Fleet, name: str, what: str = "here") -> None:
    await fleet[name].store().space("crew").thread("t").save({"is": what}, overwrite=True)


async def loaded(fleet: Fleet, name: str, *, stale: bool = False) -> object:
    found = await fleet[name].store().space("crew").thread("t").load(stale=stale)
    return found.state


async def refuses(fleet: Fleet, name: str, error: type[CatchingUp | NotAMember], match: str) -> None:
    """A node neither shows nor takes anything."""
    with pytest.raises(error, match=match):
        await loaded(fleet, name)
    with pytest.raises(error, match=match):
        await saved(fleet, name, "made from scratch")
    with pytest.raises(error, match=match):
        async for _ in fleet[name].store().space("crew").watch():
            break
    state, serves = await state_of(fleet, name)
    assert (state != "ready", serves) == (True, False)


async def alone(fleet: Fleet, name: str, storage: MemoryStorage) -> None:
    await fleet.crash(name)
    fleet.start(name, storage, linked=False)


# ── a cluster begins ──────────────────────────────────────────────────────────


@pytest.mark.answers("nodes-serve-on-positive-knowledge")
async def test_a_new_cluster_is_founded_by_the_word_of_all() -> None:
    async with Fleet() as fleet:
        for name in "abc":
            await fleet.crash(name)
        for name in "ab":
            fleet.start(name, MemoryStorage())
        await asyncio.sleep(1)
        await refuses(fleet, "a", CatchingUp, "has not heard c:1")
        fleet.start("c", MemoryStorage())
        await fleet.admitted()
        await saved(fleet, "a")
        assert await state_of(fleet, "a") == ("ready", True)


async def test_a_cluster_of_one_works_at_once() -> None:
    async with Fleet("a") as fleet:
        await saved(fleet, "a")
        assert await loaded(fleet, "a") == {"is": "here"}


@pytest.mark.answers("nodes-serve-on-positive-knowledge")
async def test_a_member_without_peers_goes_on() -> None:
    async with Fleet() as fleet:
        await saved(fleet, "a")
        for name in "abc":
            await fleet.isolate(name)
        fleet.start("a", await fleet.crash("a"), linked=False)
        assert await loaded(fleet, "a") == {"is": "here"}
        await saved(fleet, "a", "still here")
        assert await state_of(fleet, "a") == ("ready", True)


# ── a disk is lost ────────────────────────────────────────────────────────────


@pytest.mark.answers("nodes-serve-on-positive-knowledge", "wiped-node-is-ready-too-early")
async def test_a_wiped_node_shows_and_takes_nothing_until_it_is_filled() -> None:
    async with Fleet() as fleet:
        await saved(fleet, "a")
        await fleet.converged()
        await alone(fleet, "c", MemoryStorage())
        await refuses(fleet, "c", CatchingUp, "has not heard a:1, b:1. Start what is down")
        fleet.link("a", "c")
        fleet.link("c", "a")
        await fleet.converged()
        await refuses(fleet, "c", CatchingUp, "has not heard b:1")  # A quorum may have been b and the lost disk.
        fleet.link_all("c")
        await fleet.admitted()
        assert await loaded(fleet, "c") == {"is": "here"}


async def test_half_filled_and_restarted_it_still_waits() -> None:
    async with Fleet() as fleet:
        await saved(fleet, "a")
        await fleet.converged()
        await alone(fleet, "c", MemoryStorage())
        fleet.link("a", "c")
        fleet.link("c", "a")
        await fleet.converged()
        fleet.start("c", await fleet.crash("c", None), linked=False)
        assert fleet["c"].replicator.quorum.view().members[0].operations
        await refuses(fleet, "c", CatchingUp, "began empty")


# ── a node that is no member ──────────────────────────────────────────────────


@pytest.mark.answers("nodes-serve-on-positive-knowledge", "node-that-nobody-added")
async def test_a_node_that_nobody_added_never_acknowledges() -> None:
    async with cluster() as fleet:
        await saved(fleet, "a")
        fleet.start("d", MemoryStorage(), linked=False, join="a:1")
        await refuses(fleet, "d", CatchingUp, "has not heard a:1")
        await fleet.until(lambda: roster(fleet, "d").waits)
        await refuses(fleet, "d", NotAMember, "shoal cluster add d:1")
        fleet.start("d", await fleet.crash("d"), linked=False, join="a:1")
        await refuses(fleet, "d", NotAMember, "shoal cluster add d:1")  # It remembers, though it reaches nobody.
        await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))
        await fleet.until(lambda: is_done(fleet, "abcd"))
        await saved(fleet, "d", "added")
        assert await loaded(fleet, "d") == {"is": "added"}


async def test_a_directory_with_data_that_no_member_admitted_is_barred() -> None:
    async with cluster() as fleet:
        fleet.start("d", MemoryStorage(), linked=False, join="d:1")
        await saved(fleet, "d", "alone")
        fleet.start("d", await fleet.crash("d"), linked=False, join="a:1")
        await fleet.until(lambda: roster(fleet, "d").waits)
        with pytest.raises(NotAMember, match="shoal cluster leftovers"):
            await saved(fleet, "d", "beside the cluster")
        assert await loaded(fleet, "d", stale=True) == {"is": "alone"}  # For who asks for just that.


async def test_a_store_that_was_refused_begins_its_own_cluster() -> None:
    async with cluster() as fleet:
        fleet.start("d", MemoryStorage(), linked=False, join="d:1")
        await saved(fleet, "d", "alone")
        fleet.start("d", await fleet.crash("d"), linked=False, join="a:1")
        await fleet.until(lambda: roster(fleet, "d").waits)
        await fleet.durable()
        fleet.start("d", await fleet.crash("d"), linked=False, join="d:1")  # Its operator thought better of it.
        assert await state_of(fleet, "d") == ("ready", True)
        await saved(fleet, "d", "alone again")
        fleet.start("e", MemoryStorage(), linked=False, join="d:1")
        await asked(fleet, changes(fleet, "d").change("add", joins="e:1"))
        await fleet.until(lambda: is_done(fleet, "de"))
        await fleet.durable()
        fleet.start("d", await fleet.crash("d"), linked=False, join="d:1")
        assert await loaded(fleet, "d") == {"is": "alone again"}


@pytest.mark.answers("drained-node-answers-reads-for-the-members")
async def test_a_drained_node_does_not_answer_for_the_members() -> None:
    async with cluster() as fleet:
        await asked(fleet, changes(fleet, "a").change("drain", leaves="c:1"))
        await fleet.until(lambda: is_done(fleet, "ab", "abc"))
        await saved(fleet, "a")
        await refuses(fleet, "c", NotAMember, "was drained in epoch")
        with pytest.raises(NotFound):
            await loaded(fleet, "c", stale=True)


@pytest.mark.answers("node-that-nobody-added")
async def test_a_drained_node_that_is_wiped_waits_to_be_added() -> None:
    """It is started with the list from before, as every other node."""
    async with cluster() as fleet:
        await asked(fleet, changes(fleet, "a").change("drain", leaves="c:1"))
        await fleet.until(lambda: is_done(fleet, "ab", "abc"))
        await saved(fleet, "a")
        await alone(fleet, "c", MemoryStorage())
        await refuses(fleet, "c", CatchingUp, "began empty")
        await fleet.until(lambda: roster(fleet, "c").waits)
        await refuses(fleet, "c", NotAMember, "shoal cluster add c:1")
        await asked(fleet, changes(fleet, "a").change("add", joins="c:1"))
        await fleet.until(lambda: is_done(fleet, "abc"))
        assert await loaded(fleet, "c") == {"is": "here"}


async def test_a_wiped_member_comes_back_though_a_drained_one_waits() -> None:
    """c has a new directory as well: b alone knows the members, and a cannot hear of them from more."""
    async with cluster() as fleet:
        await asked(fleet, changes(fleet, "a").change("drain", leaves="c:1"))
        await fleet.until(lambda: is_done(fleet, "ab", "abc"))
        await saved(fleet, "b")
        await alone(fleet, "a", MemoryStorage())
        await alone(fleet, "c", MemoryStorage())
        await fleet.until(lambda: is_done(fleet, "ab"))
        await asked(fleet, changes(fleet, "b").change("add", joins="c:1"))
        await fleet.until(lambda: is_done(fleet, "abc"))
        assert await loaded(fleet, "a") == {"is": "here"}


async def test_two_wiped_members_of_three_learn_the_members() -> None:
    async with cluster("abcd") as fleet:
        await asked(fleet, changes(fleet, "a").change("drain", leaves="d:1"))
        await fleet.until(lambda: is_done(fleet, "abc"))  # The drained one may learn it by being refused.
        await saved(fleet, "c")
        for name in "abd":
            await fleet.crash(name)
        for name in "ab":
            fleet.start(name, MemoryStorage(), linked=False, join="a:1,b:1,c:1")
        await fleet.until(lambda: record(fleet, "a") == record(fleet, "b") == record(fleet, "c"))
        await fleet.until(lambda: not any(fleet[name].replicator.quorum.is_learner for name in "ab"))
        assert await loaded(fleet, "a") == {"is": "here"}


async def test_a_member_that_was_away_is_told_while_another_one_is_wiped() -> None:
    async with cluster("abcd") as fleet:
        left = await fleet.crash("a")
        await asked(fleet, changes(fleet, "b").change("drain", leaves="d:1"))
        await fleet.until(lambda: is_done(fleet, "abc", "bc"))  # The drained one may learn it by being refused.
        await fleet.crash("b")
        fleet.start("b", MemoryStorage(), linked=False, join="a:1,b:1,c:1")
        fleet.start("a", left, linked=False)
        await fleet.until(lambda: record(fleet, "a") == record(fleet, "b") == record(fleet, "c"))


async def test_a_member_is_not_barred_by_a_node_of_another_cluster() -> None:
    async with cluster() as fleet:
        fleet.start("d", MemoryStorage(), linked=False, join="d:1")
        fleet.start("e", MemoryStorage(), linked=False, join="d:1")
        await asked(fleet, changes(fleet, "d").change("add", joins="e:1"))
        await fleet.until(lambda: is_done(fleet, "de"))
        await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))  # Whose epoch is later.
        await fleet.until(lambda: changes(fleet, "d").waiting)
        await saved(fleet, "a")


async def test_a_removed_node_takes_no_links() -> None:
    async with cluster() as fleet:
        await asked(fleet, changes(fleet, "a").change("drain", leaves="c:1"))
        await fleet.until(lambda: record(fleet, "c").removed and "c:1" not in record(fleet, "a").everyone)
        with pytest.raises(PeerRefused, match="was removed from its cluster") as caught:
            fleet["c"].replicator.admit(fleet["a"].identity())
        assert caught.value.detail["reason"] == "outside"
