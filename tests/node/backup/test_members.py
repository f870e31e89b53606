"""The backup of a store whose members change."""

from __future__ import annotations

from shoal.config import Config
from shoal.storage.memory import MemoryStorage
from shoal.testing.machines import run
from simulation.world.bucket import SimulatedBucket
from simulation.world.environment import SimulatedEnvironment
from simulation.world.fleet import Fleet
from tests.node.backup.conftest import URL, declare, ship
from tests.node.conftest import Bench, Opener
from tests.support.paces import USUAL

ALL = "a:1,b:1,c:1"


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
