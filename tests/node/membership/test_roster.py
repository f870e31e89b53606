"""What a node makes of the records and words about members that it hears."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from shoal.cluster.membership.epochs import Record
from shoal.cluster.membership.notices import Membership, Standing
from shoal.cluster.peering import Identity
from shoal.node.membership.roster import Roster
from shoal.storage.interface import MemoryStorage
from simulation.world.fleet import Fleet

MEMBERS = ("a:1", "b:1", "c:1")


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


def roster_of(fleet: Fleet) -> Roster:
    return fleet["a"].replicator.memberships._roster


async def adopted(fleet: Fleet, epoch: int) -> None:
    async with asyncio.timeout(10):
        await roster_of(fleet).reach(epoch)


async def test_a_record_is_adopted_once_it_is_durable(fleet: Fleet) -> None:
    roster = roster_of(fleet)
    fleet["a"].simulated.hold_syncs()
    roster.learn(Record(1, MEMBERS))
    roster.durable(0)
    assert (roster.epoch, roster.is_current) == (0, False)
    fleet["a"].simulated.release_syncs()
    await adopted(fleet, 1)
    assert roster.is_current


async def test_epochs_only_grow(fleet: Fleet) -> None:
    roster = roster_of(fleet)
    roster.learn(Record(2, MEMBERS))
    await adopted(fleet, 2)
    roster.learn(Record(1, MEMBERS))
    await asyncio.sleep(1)
    assert roster.epoch == 2


async def test_a_node_writes_nothing_once_it_has_written_that_it_is_removed(fleet: Fleet) -> None:
    roster = roster_of(fleet)
    await fleet["a"].store().space("s").counter("n").add(1)
    fleet["a"].simulated.hold_syncs()
    roster.learn(Record(1, ("b:1", "c:1")))
    assert roster.epoch == 0
    assert roster._incarnation.barred
    fleet["a"].simulated.release_syncs()


async def test_an_older_members_link_does_not_undo_a_later_ones_word(fleet: Fleet) -> None:
    roster = roster_of(fleet)
    await fleet["a"].store().space("s").counter("n").add(1)
    by = Identity(fleet["b"].identity().node, "b:1", "test", epoch=7)
    roster.refused("a:1 was removed. Nothing was written.", is_removed=True, by=by)
    assert roster._incarnation.barred
    roster.accepted(6)
    assert roster._incarnation.barred
    roster.accepted(7)
    assert not roster._incarnation.barred


async def test_only_a_directory_that_was_never_admitted_is_unaware(fleet: Fleet) -> None:
    assert not roster_of(fleet).is_unaware
    await fleet.crash("a")
    fleet.start("a", MemoryStorage(), linked=False)
    assert roster_of(fleet).is_unaware
    roster_of(fleet)._incarnation.told_by = "b:1"  # A peer may lie that it was set back.
    assert not roster_of(fleet).is_unaware


async def test_only_what_was_said_in_this_epoch_counts(fleet: Fleet) -> None:
    changes = fleet["a"].replicator.memberships.changes
    changes.heard("b:1", fleet["b"].identity().node, Standing(0, True, True))
    changes.heard("c:1", fleet["c"].identity().node, Standing(7, True, True))
    assert set(changes.standings) == {"a:1", "b:1"}


async def test_a_halted_member_adopts_no_record_of_before_its_foundation(fleet: Fleet) -> None:
    memberships, roster = fleet["a"].replicator.memberships, roster_of(fleet)
    memberships.rebuilding._halted = 5, b"i" * 8, 1e9
    for name in "bc":
        memberships.heard(fleet[name].identity(), Membership(Record(5, MEMBERS)))
    await asyncio.sleep(1)
    assert roster.epoch == 0
    for name in "bc":
        memberships.heard(fleet[name].identity(), Membership(Record(6, MEMBERS)))
    await adopted(fleet, 6)
