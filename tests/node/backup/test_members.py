"""The backup of a store whose members change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import BackupUnreachable
from shoal.kinds.retention import state
from shoal.kinds.retention.serving.keeper import Keeper
from shoal.protocol.requests import DeclareBackup
from shoal.storage.interface import MemoryStorage
from shoal.testing.machines import run
from simulation.world.bucket import SimulatedBucket
from simulation.world.environment import SimulatedEnvironment
from simulation.world.fleet import Fleet, Member
from tests.node.backup.conftest import URL, declare, restore, ship
from tests.node.conftest import Bench, Opener
from tests.support.paces import USUAL

ALL = "a:1,b:1,c:1"
AWAY_S = 10.0  # Nobody repeats a question for so long.


def test_a_store_that_gets_other_members_is_still_backed_up() -> None:
    async def main() -> None:
        alone = Bench(MemoryStorage(), SimulatedEnvironment(99), Config())
        bucket = SimulatedBucket(now_ms=lambda: alone.simulated.now_ms)
        await declare(alone, bucket)
        await alone.space.counter("n").add(1)
        await ship(alone)
        await alone.node.stop()
        left = MemoryStorage(alone.storage._durable.rows)
        async with Fleet("", join=ALL, quorum_timeout_s=4.0, quorum_register_retry_s=0.05, **USUAL) as fleet:
            for name, storage in {"a": left, "b": MemoryStorage(), "c": MemoryStorage()}.items():
                fleet.start(name, storage, linked=False, join=ALL).simulated.bucket = bucket
            await fleet.until(lambda: all(fleet[name].node.backups.view().url == URL for name in "abc"))
            await fleet["a"].store().space("crew").counter("n").add(1)
            await fleet.until(lambda: any(fleet[name].node.backups.view().shipped for name in "abc"))

    run(main())


async def test_a_store_that_was_declared_before_its_first_write_is_no_copy(open_bench: Opener) -> None:
    first = open_bench()
    bucket = SimulatedBucket(now_ms=lambda: first.simulated.now_ms)
    await declare(first, bucket)
    await first.node.stop()
    again = open_bench(MemoryStorage(first.storage._durable.rows), seed=2)
    again.simulated.bucket = bucket
    await again.node.backups.stop()
    await again.space.counter("n").add(1)
    await ship(again)
    assert again.node.backups.view().state == "current"


async def added_to_a_restored_store(seed: int) -> None:
    """One plan: a store with rules is restored, started, and gets members, of which some end as by a power cut meanwhile.

    Raises:
        AssertionError: a rule that was restored let something go; or one that was set once more let nothing go.
    """
    random = Random(seed)
    old = Bench(MemoryStorage(), SimulatedEnvironment(seed + 1), Config())
    bucket = SimulatedBucket(now_ms=lambda: old.simulated.now_ms)
    spaces = [f"space-{nth}" for nth in range(6)]  # Several nodes look after them.
    for name in spaces:
        thread = old.store.space(name).thread("agent")
        for nth in range(4):
            await thread.save({"n": nth})
        await old.store.space(name).retention.set(keep_last=2)
    await declare(old, bucket)
    await ship(old)
    left = (await restore(bucket, seed=seed)).storage
    await old.node.stop()
    async with Fleet("", seed=seed, join=ALL, quorum_timeout_s=4.0, quorum_register_retry_s=0.05, **USUAL) as fleet:
        fleet.start("a", left, linked=False, join=ALL)
        for name in random.sample("bc", 2):
            await fleet.until(lambda: True, random.random())
            if random.random() < 0.5:
                await fleet.durable()
                fleet.start("a", await fleet.crash("a"), linked=False, join=ALL)
            fleet.start(name, MemoryStorage(), linked=False, join=ALL)
        await fleet.until(lambda: not any(member.replicator.quorum.is_learner for member in fleet.members.values()))
        await fleet.until(lambda: len({member.digest() for member in fleet.members.values()}) == 1)
        for _ in range(3):
            for member in fleet.members.values():
                member.simulated.now_ms += 60_000
                await member.node.service.keeper.look()
        store = fleet[random.choice("abc")].store()
        assert await lengths(store, spaces) == [4] * len(spaces)
        again = random.sample(spaces, 3)
        for name in again:
            await store.space(name).retention.set(keep_last=2)
        await fleet.until(lambda: len({member.digest() for member in fleet.members.values()}) == 1)
        for member in fleet.members.values():
            await member.node.service.keeper.look()
        await fleet.until(lambda: len({member.digest() for member in fleet.members.values()}) == 1)
        assert await lengths(store, spaces) == [2 if name in again else 4 for name in spaces]


async def lengths(store: Store, spaces: list[str]) -> list[int]:
    return [len([found async for found in store.space(name).thread("agent").history()]) for name in spaces]


SEEDS = 6


@pytest.mark.parametrize("seed", range(SEEDS))
def test_restored_rules_wait_on_nodes_that_are_added(seed: int) -> None:
    run(added_to_a_restored_store(seed))


def the_restored_node_tells_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Keeper, "_tell_restored", lambda self: None)


def the_record_of_a_restore_is_not_heeded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state, "held_back", lambda rule, restored_ms: rule)


def a_rule_that_is_set_once_more_waits(patch: pytest.MonkeyPatch) -> None:
    sound = state.held_back
    patch.setattr(state, "held_back", lambda rule, restored_ms: sound(rule, 2 * restored_ms))


MUTANTS = (the_restored_node_tells_nobody, the_record_of_a_restore_is_not_heeded, a_rule_that_is_set_once_more_waits)


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS):
        try:
            run(added_to_a_restored_store(seed))
        except AssertionError:
            return
    pytest.fail("no drawn plan finds it")


def test_a_member_that_was_away_learns_where_to_ship() -> None:
    """It voted on no declaration: neither on the first one, nor on another place that is declared later."""

    async def main() -> None:
        pace: dict[str, Any] = {"quorum_timeout_s": 4.0, "quorum_register_retry_s": 0.05, "quorum_register_found_s": 0.05}
        async with Fleet("abc", **pace, **USUAL) as fleet:
            bucket = SimulatedBucket()
            for member in fleet.members.values():
                member.simulated.bucket = bucket
            bucket.refused = "403"
            with pytest.raises(BackupUnreachable):  # The register is founded by all, and nothing is declared.
                await fleet["a"].node.session().call(DeclareBackup(URL))
            bucket.refused = ""
            for url in (URL, f"{URL}-two"):
                left = await fleet.crash("c", None)
                await fleet["a"].node.session().call(DeclareBackup(url))
                await fleet.until(partial(_knows, fleet["b"], url))
                await asyncio.sleep(AWAY_S)
                fleet.start("c", left).simulated.bucket = bucket
                await fleet.until(partial(_knows, fleet["c"], url))

    run(main())


def _knows(member: Member, url: str) -> bool:
    return member.node.backups.view().url == url
