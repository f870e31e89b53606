"""Changes of the members that are asked for again, and nodes that have left and are asked."""

from __future__ import annotations

import asyncio

import pytest

from shoal.cluster import messages
from shoal.cluster.consensus.ballots import Accept, Ballot, Vote
from shoal.errors import InvalidInput, NotAMember
from shoal.storage.interface import MemoryStorage
from tests.node.membership.test_changes import (
    asked,
    changes,
    cluster,
    is_done,
    record,
)


class Unheard:
    """Drops the votes for the first change of the members that a node proposes."""

    def __init__(self, proposer: str) -> None:
        self._proposer = proposer
        self._ballots: set[Ballot] = set()

    def __call__(self, source: str, target: str, message: bytes) -> bytes | None:
        found = messages.decode(messages.unstamped(message)[1])
        if isinstance(found, Accept) and source == self._proposer and found.value.version == 1:
            self._ballots.add(found.ballot)
        is_dropped = isinstance(found, Vote) and target == self._proposer and found.accepting and found.ballot in self._ballots
        return None if is_dropped else message


async def test_a_node_that_drains_itself_is_told_so_though_no_member_answers_it_any_more() -> None:
    async with cluster(quorum_timeout_s=1.0) as fleet:
        fleet.spoil = Unheard("b")
        await asked(fleet, changes(fleet, "b").change("drain", leaves="b:1"))
        await fleet.until(lambda: is_done(fleet, "ac"))


async def test_a_drain_that_is_asked_for_again_once_it_is_done_is_told_so() -> None:
    """By any node: also by the one that left, and by the members when that one is down."""
    async with cluster(quorum_timeout_s=1.0) as fleet:
        fleet.spoil = Unheard("b")
        asking = asyncio.create_task(changes(fleet, "b").change("drain", leaves="b:1"))
        await fleet.until(lambda: is_done(fleet, "ac", "abc"))
        asking.cancel()
        epoch = record(fleet, "a").epoch
        for name in "bac":
            assert await asked(fleet, changes(fleet, name).change("drain", leaves="b:1")) == record(fleet, name)
            if name == "b":
                await fleet.crash("b")
        assert {record(fleet, name).epoch for name in "ac"} == {epoch}


async def test_a_node_that_was_forgotten_is_not_told_that_it_was_drained() -> None:
    async with cluster() as fleet:
        await fleet.crash("b")
        await asked(fleet, changes(fleet, "a").change("forget", leaves="b:1"))
        await fleet.until(lambda: is_done(fleet, "ac"))
        assert await asked(fleet, changes(fleet, "a").change("forget", leaves="b:1")) == record(fleet, "a")
        with pytest.raises(InvalidInput, match="'b:1' is not a member"):
            await asked(fleet, changes(fleet, "c").change("drain", leaves="b:1"))


async def test_a_node_that_left_answers_for_itself_alone() -> None:
    """Whoever left may not know that another came back; whoever believes it would stop a node that holds data."""
    async with cluster("abcd") as fleet:
        for name in "cb":
            await asked(fleet, changes(fleet, "a").change("drain", leaves=f"{name}:1"))
            await fleet.until(lambda: all(record(fleet, each).change is None for each in "ad"))
        await fleet.until(lambda: is_done(fleet, "ad", "abd"))
        await fleet.isolate("b")
        fleet.apart |= {pair for other in "acd" for pair in (("b", other), (other, "b"))}
        await fleet.crash("c")
        fleet.start("c", MemoryStorage(), linked=False)
        await asked(fleet, changes(fleet, "a").change("add", joins="c:1"))
        await fleet.until(lambda: is_done(fleet, "acd"))
        with pytest.raises(NotAMember):
            await asked(fleet, changes(fleet, "b").change("drain", leaves="c:1"))
        with pytest.raises(NotAMember):
            await asked(fleet, changes(fleet, "b").change("replace", leaves="b:1", joins="c:1"))
        assert await asked(fleet, changes(fleet, "b").change("drain", leaves="b:1")) == record(fleet, "b")


async def test_a_node_that_came_back_is_drained_again() -> None:
    async with cluster() as fleet:
        await asked(fleet, changes(fleet, "a").change("drain", leaves="b:1"))
        await fleet.until(lambda: is_done(fleet, "ac"))
        await fleet.crash("b")
        fleet.start("b", MemoryStorage(), linked=False)
        await asked(fleet, changes(fleet, "a").change("add", joins="b:1"))
        await fleet.until(lambda: is_done(fleet, "abc"))
        with pytest.raises(InvalidInput, match="a member already"):
            await asked(fleet, changes(fleet, "a").change("add", joins="b:1"))
        await asked(fleet, changes(fleet, "a").change("drain", leaves="b:1"))
        await fleet.until(lambda: is_done(fleet, "ac"))
        assert [removal.address for removal in record(fleet, "a").removed] == ["b:1", "b:1"]
