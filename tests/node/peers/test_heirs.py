"""What removed directories left in maps and budgets is merged by their heir, so that it does not grow with lost disks."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import RightsElsewhere, StoreCorrupt
from shoal.kinds.budget import state as budget
from shoal.kinds.budget.handle import Budget
from shoal.kinds.map import state as ormap
from shoal.kinds.map.handle import SharedMap
from shoal.node.handler import Target
from shoal.protocol import requests
from shoal.storage.interface import MemoryStorage
from shoal.storage.keys import Kind
from simulation.world.fleet import Fleet
from tests.node.membership.test_changes import asked, changes, cluster, is_done

FAST: dict[str, Any] = {"sync_interval_s": 0.02, "mark_interval_s": 0.02, "rights_spread_s": 3600.0, "key_window_s": 1}
COUNTS, TOKENS = Target(Kind.MAP, "crew", "counts"), Target(Kind.BUDGET, "crew", "tokens")


def counts(fleet: Fleet, name: str) -> SharedMap:
    return fleet[name].store().space("crew").map("counts")


async def total(fleet: Fleet, name: str) -> int | None:
    entry = await counts(fleet, name).entry("k")
    return None if entry is None else entry.count


def tokens(fleet: Fleet, name: str) -> Budget:
    return fleet[name].store().space("crew").budget("tokens")


def parts(fleet: Fleet, name: str) -> list[ormap.Part]:
    """The adds to key `k`."""
    rows = fleet[name].node._database.document(COUNTS).rows
    return [part for _, part in ormap._all_rows(rows, "k")]


def accounts(fleet: Fleet, name: str) -> dict[bytes, int]:
    rows = fleet[name].node._database.document(TOKENS).rows
    return {account.origin: account.rights for account in budget.accounts(rows)}


def directory(fleet: Fleet, name: str) -> bytes:
    return fleet[name].node._incarnation.node


async def lose(fleet: Fleet, gone: str, at: str, others: str) -> MemoryStorage:
    left = await fleet.crash(gone)
    await fleet.until(lambda: f"{gone}:1" not in fleet[at].replicator.quorum.members.reached)
    await asked(fleet, changes(fleet, at).change("forget", leaves=f"{gone}:1"))
    await fleet.until(lambda: is_done(fleet, others))
    return left


async def test_adds_of_a_removed_directory_are_merged_with_those_of_its_heir() -> None:
    async with cluster(**FAST) as fleet:
        for name, amount in (("a", 1), ("b", 10), ("c", 100)):
            await counts(fleet, name).add("k", amount)
        await fleet.converged()
        assert len(parts(fleet, "a")) == 3
        kept = {part.dot for part in parts(fleet, "b") if part.amount == 10}
        await lose(fleet, "c", "a", "ab")
        await fleet.until(lambda: all(len(parts(fleet, name)) == 2 for name in "ab"))
        for name in "ab":
            [merged] = [part for part in parts(fleet, name) if part.dot not in kept]
            assert (merged.amount, merged.directory) == (101, directory(fleet, "a"))
            assert await total(fleet, name) == 111


async def test_an_heir_of_an_heir_goes_on_with_what_that_one_merged() -> None:
    async with cluster("abcde", **FAST) as fleet:
        await counts(fleet, "e").add("k", 1)
        await counts(fleet, "d").add("k", 10)
        await fleet.converged()
        await lose(fleet, "e", "a", "abcd")
        await fleet.until(lambda: [part.directory for part in parts(fleet, "b") if part.amount == 1] == [directory(fleet, "a")])
        await fleet.converged()
        await lose(fleet, "a", "b", "bcd")
        await fleet.until(lambda: [part.directory for part in parts(fleet, "c") if part.amount == 1] == [directory(fleet, "b")])
        await lose(fleet, "d", "b", "bc")
        await fleet.until(lambda: all(len(parts(fleet, name)) == 1 for name in "bc"))
        assert await total(fleet, "c") == 11


async def test_adds_are_merged_only_once_their_keys_expired_and_their_origin_is_retired_after_that() -> None:
    async with cluster(**FAST) as fleet:
        await fleet["c"].node.session().call(requests.AddEntry("crew", "counts", "k", 7), key="once")
        await counts(fleet, "c").add("k", 1)
        await fleet.converged()
        gone = fleet["c"].node._incarnation.current
        assert gone is not None
        await lose(fleet, "c", "a", "ab")
        await fleet.until(lambda: fleet["a"].node._database.orphans._again_at != {})
        assert gone in fleet["a"].node._database.partitions.load(COUNTS.partition).vector
        assert len(parts(fleet, "b")) == 2
        for name in "ab":
            fleet[name].simulated.now_ms += 5000
        await fleet.until(lambda: len(parts(fleet, "b")) == 1)
        assert await total(fleet, "b") == 8
        await fleet.until(lambda: gone not in fleet["b"].node._database.partitions.load(COUNTS.partition).vector)


async def test_nobody_else_can_merge_the_adds_of_a_member() -> None:
    async with cluster(**FAST) as fleet:
        await counts(fleet, "c").add("k", 7)
        await counts(fleet, "c").add("other", 7)
        await fleet.converged()
        for target in (COUNTS.partition,):
            for _ in range(2):
                fleet["a"].node._database.claims._stable(target)
        reply = await fleet["a"].node.session().call(requests.FoldEntry("crew", "counts", "k", 1, inherited=True))
        assert reply == requests.EntryFolded(0, 0)
        await tokens(fleet, "c").grant(30)
        await tokens(fleet, "c").draw(10)
        await fleet.converged()
        moved = await fleet["a"].node.session().call(requests.InheritRights("crew", "tokens"))
        assert moved == requests.Rights(0, 0)


async def test_the_rights_of_removed_directories_are_in_one_account_until_an_operator_reclaims_them() -> None:
    async with cluster("abcde", **FAST) as fleet:
        await tokens(fleet, "a").grant(60)
        for name, amount in (("d", 20), ("e", 30)):
            await tokens(fleet, name).draw(amount)
        await fleet.converged()
        await lose(fleet, "e", "a", "abcd")
        await fleet.until(lambda: accounts(fleet, "b").get(budget.REMOVED) == 30)
        await lose(fleet, "d", "a", "abc")
        await fleet.until(lambda: accounts(fleet, "b") == {budget.REMOVED: 50})
        await fleet.converged()
        assert await tokens(fleet, "b").draw(10) == 10
        with pytest.raises(RightsElsewhere, match="the account of removed nodes has rights to 50"):
            await tokens(fleet, "b").spend(20)
        [holder] = [each for each in (await tokens(fleet, "b").rights()).holders if each.rights == 50]
        assert await tokens(fleet, "b").draw(60, reclaim=holder.origin) == 60
        assert await tokens(fleet, "b").spend(60) == 0


async def test_concurrent_reclaims_count_once() -> None:
    async with cluster("abcd", **FAST) as fleet:
        await tokens(fleet, "a").grant(30)
        await tokens(fleet, "d").draw(30)
        await fleet.converged()
        await lose(fleet, "d", "a", "abc")
        await fleet.until(lambda: all(accounts(fleet, name) == {budget.REMOVED: 30} for name in "abc"))
        for name in "ab":
            fleet[name].node._database.issue(requests.DrawRights("crew", "tokens", 30, reclaimed=budget.REMOVED.hex()), None)
        await fleet.converged()
        held = [await tokens(fleet, name).draw(0, reclaim=budget.REMOVED.hex()) for name in "ab"]
        assert sum(held) <= 30
        await fleet.converged()
        assert sum([await tokens(fleet, name).draw(0, reclaim=budget.REMOVED.hex()) for name in "ab"]) == 30


async def test_a_budget_that_cannot_be_read_holds_up_nothing_else() -> None:
    async with cluster(**FAST) as fleet:
        await tokens(fleet, "a").grant(30)
        await tokens(fleet, "c").draw(10)
        await fleet.converged()
        gone, orphans = fleet["c"].node._incarnation.current, fleet["a"].node._database.orphans
        assert gone is not None

        def damaged(target: Target) -> list[budget.Account]:
            raise StoreCorrupt(f"{target.name} is damaged")

        orphans._left = damaged
        await lose(fleet, "c", "a", "ab")
        await fleet.until(lambda: gone not in fleet["b"].node._database.partitions.load(TOKENS.partition).vector)
        assert accounts(fleet, "b")[gone] == 10
