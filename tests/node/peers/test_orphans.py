"""The origins of directories that were removed are retired, once nothing more of them can arrive."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.cluster import messages
from shoal.cluster.messages import Digest, Parts, Vectors
from shoal.cluster.operation import partition_of
from shoal.crdt.dot import Origin, belongs
from shoal.errors import InvalidInput, PeerRefused
from shoal.node.partitions import Partition
from shoal.storage.interface import MemoryStorage
from simulation.world.fleet import Fleet, Member
from tests.node.membership.test_changes import asked, changes, cluster, is_done

PARTITION = partition_of("crew", "c")
FAST: dict[str, Any] = {"sync_interval_s": 0.02, "mark_interval_s": 0.02}


async def add(fleet: Fleet, name: str, amount: int = 1, durability: Any = "local") -> None:
    await fleet[name].store().space("crew").counter("c").add(amount, durability=durability)


def origin(fleet: Fleet, name: str) -> Origin:
    found = fleet[name].node._incarnation.current
    assert found is not None
    return found


def partition(member: Member) -> Partition:
    return member.node._database.partitions.load(PARTITION)


def is_retired(fleet: Fleet, gone: Origin, members: str) -> bool:
    return not any(gone in partition(fleet[name]).vector for name in members)


async def without_c(fleet: Fleet, others: str = "ab") -> MemoryStorage:
    """Node c is lost, and forgotten. Returns its disk."""
    left = await fleet.crash("c")
    await fleet.until(lambda: "c:1" not in fleet["a"].replicator.quorum.members.reached)
    await asked(fleet, changes(fleet, "a").change("forget", leaves="c:1"))
    await fleet.until(lambda: is_done(fleet, others))
    return left


async def test_an_origin_names_its_directory() -> None:
    async with cluster() as fleet:
        await add(fleet, "a")
        assert belongs(origin(fleet, "a"), fleet["a"].node._incarnation.node)
        assert not belongs(origin(fleet, "a"), fleet["b"].node._incarnation.node)
        assert not belongs(origin(fleet, "a"), b"")


@pytest.mark.answers("removed-members-stay-in-vectors")
async def test_the_origins_of_a_forgotten_directory_are_retired() -> None:
    async with cluster(**FAST) as fleet:
        await add(fleet, "a", 1)
        await add(fleet, "c", 10)
        await fleet.converged()
        gone, kept = origin(fleet, "c"), origin(fleet, "a")
        await without_c(fleet)
        await fleet.until(lambda: is_retired(fleet, gone, "ab"))
        await fleet.converged()
        for name in "ab":
            assert await fleet[name].store().space("crew").counter("c").value() == 11
            assert kept in partition(fleet[name]).vector


@pytest.mark.answers("removed-members-stay-in-vectors")
async def test_the_origins_of_a_drained_and_of_a_replaced_directory_are_retired() -> None:
    async with cluster(**FAST) as fleet:
        await add(fleet, "b", 1)
        await add(fleet, "c", 10)
        await fleet.converged()
        drained, replaced = origin(fleet, "c"), origin(fleet, "b")
        await asked(fleet, changes(fleet, "a").change("drain", leaves="c:1"))
        await fleet.until(lambda: is_done(fleet, "ab", "ab"))
        fleet.start("d", MemoryStorage(), linked=False, join="a:1")
        await asked(fleet, changes(fleet, "a").change("replace", leaves="b:1", joins="d:1"))
        await fleet.until(lambda: is_done(fleet, "ad", "ad"))
        await fleet.until(lambda: is_retired(fleet, drained, "ad") and is_retired(fleet, replaced, "ad"))
        assert await fleet["d"].store().space("crew").counter("c").value() == 11


@pytest.mark.answers("operation-of-a-removed-directory-arrives-late")
async def test_an_operation_that_only_a_member_has_that_is_cut_off_is_waited_for() -> None:
    async with cluster("abcde", **FAST) as fleet:
        await add(fleet, "c")
        await fleet.converged()
        gone = origin(fleet, "c")
        for other in "abd":
            fleet.apart |= {("c", other), (other, "c"), ("e", other), (other, "e")}
            for pair in (("c", other), ("e", other), (other, "c"), (other, "e")):
                await fleet.cut(*pair)
        await add(fleet, "c", 10)
        await fleet.until(lambda: partition(fleet["e"]).vector[gone] == 2)
        await fleet.crash("c")
        await asked(fleet, changes(fleet, "a").change("forget", leaves="c:1"))
        await fleet.until(lambda: is_done(fleet, "abde", "abd"))
        estate = fleet["a"].replicator.quorum.estate
        assert estate.directories
        assert not estate.is_open
        fleet.apart.clear()
        await fleet.until(lambda: is_retired(fleet, gone, "abde"))
        for name in "abde":
            assert await fleet[name].store().space("crew").counter("c").value() == 11


@pytest.mark.answers("operation-of-a-removed-directory-arrives-late")
async def test_words_of_an_older_epoch_do_not_count() -> None:
    async with cluster("abcd", **FAST) as fleet:
        await add(fleet, "c")
        await fleet.converged()
        await fleet.until(lambda: fleet["a"].replicator.quorum.holdings(PARTITION)["d:1"].whole is not None)
        gone = origin(fleet, "c")
        said: list[str] = []

        def mute(source: str, target: str, message: bytes) -> bytes | None:
            is_said = isinstance(messages.decode(messages.unstamped(message)[1]), Digest | Parts | Vectors)
            if is_said and (source, target) == ("d", "a"):
                said.append(source)
                return None
            return message

        fleet.spoil = mute
        await without_c(fleet, "abd")
        await fleet.until(lambda: len(said) > 20)
        assert fleet["a"].replicator.quorum.estate.is_open
        assert fleet["a"].replicator.quorum.holdings(PARTITION)["d:1"].whole is None
        assert not is_retired(fleet, gone, "a")
        fleet.spoil = lambda source, target, message: message
        await fleet.until(lambda: is_retired(fleet, gone, "abd"))


@pytest.mark.answers("operation-of-a-removed-directory-arrives-late")
async def test_a_copy_of_a_removed_directory_is_refused() -> None:
    async with cluster(**FAST) as fleet:
        await add(fleet, "c")
        await fleet.converged()
        left = await without_c(fleet)
        await fleet.crash("b")
        copied = fleet.start("b", MemoryStorage(dict(left.scan(b"", None)), identity=b"another disk"), linked=False)
        assert copied.node._incarnation.copied
        with pytest.raises(PeerRefused, match="a copy of that of c:1, which was forgotten"):
            fleet.link("b", "a")


@pytest.mark.answers("removed-members-stay-in-vectors")
async def test_a_directory_whose_place_another_one_took_is_forgotten_by_its_id() -> None:
    async with cluster(**FAST) as fleet:
        await add(fleet, "a", 1)
        await add(fleet, "c", 10)
        await fleet.converged()
        gone, directory = origin(fleet, "c"), fleet["c"].node._incarnation.node
        left = await fleet.crash("c")
        fleet.start("c", MemoryStorage(), linked=False)
        await fleet.until(lambda: directory in fleet["a"].replicator._marking.lost)
        await fleet.until(lambda: not fleet["c"].replicator.quorum.is_learner)
        view = fleet["a"].replicator.memberships.members()
        assert [(each.name, each.node) for each in view.lost] == [("c:1", directory.hex())]
        await asked(fleet, changes(fleet, "a").change("forget", leaves=directory.hex()[:8]))
        await fleet.until(lambda: is_retired(fleet, gone, "abc") and is_done(fleet, "abc"))
        assert fleet["a"].replicator.memberships.members().lost == []
        again = await asked(fleet, changes(fleet, "b").change("forget", leaves=directory.hex()[:8]))
        assert again.epoch == 1
        assert await fleet["c"].store().space("crew").counter("c").value() == 11
        await fleet.crash("c")
        fleet.start("c", left, linked=False)
        with pytest.raises(PeerRefused, match="was forgotten in epoch 1"):
            fleet.link("c", "a")


async def test_only_a_directory_that_was_lost_is_forgotten_by_its_id() -> None:
    async with cluster(**FAST) as fleet:
        for named in ("", "c", "6e1741b1", fleet["b"].node._incarnation.node.hex()):
            with pytest.raises(InvalidInput, match="Nothing was written"):
                await changes(fleet, "a").change("forget", leaves=named)
        assert fleet["a"].replicator.quorum.members.roster.epoch == 0


async def test_a_members_loss_is_remembered_across_its_restart() -> None:
    async with cluster(**FAST) as fleet:
        directory = fleet["c"].node._incarnation.node
        await fleet.crash("c")
        fleet.start("c", MemoryStorage(), linked=False)
        marking = fleet["a"].replicator._marking
        await fleet.until(lambda: marking._written_lost == {directory: "c:1"})
        await fleet.until(lambda: fleet["a"].node.writes_pending == 0)
        left = await fleet.crash("a")
        fleet.start("a", left, linked=False)
        await fleet.until(lambda: fleet["a"].replicator._marking.lost == {directory: "c:1"})


async def test_a_lost_directory_is_forgotten_only_while_all_members_are_up() -> None:
    async with cluster(**FAST) as fleet:
        directory = fleet["c"].node._incarnation.node
        await fleet.crash("c")
        fleet.start("c", MemoryStorage(), linked=False)
        await fleet.until(lambda: directory in fleet["a"].replicator._marking.lost)
        await fleet.until(lambda: fleet["c"].replicator.register.is_voting)
        await fleet.crash("b")
        with pytest.raises(InvalidInput, match="b:1 cannot be reached, and all members must be up"):
            await changes(fleet, "a").change("forget", leaves=directory.hex()[:8])
        assert fleet["a"].replicator.quorum.members.roster.epoch == 0


async def test_one_member_alone_retires() -> None:
    async with cluster(**FAST) as fleet:
        await add(fleet, "c", 10)
        await fleet.converged()
        await without_c(fleet)
        assert fleet["a"].replicator.quorum.estate.directories
        assert not fleet["b"].replicator.quorum.estate.directories


async def test_without_removed_directories_there_is_no_task() -> None:
    async with cluster(**FAST) as fleet:
        orphans = fleet["a"].node._database.orphans
        orphans.stir()
        assert orphans._task is None
