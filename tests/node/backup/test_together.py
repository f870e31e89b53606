"""Several nodes that ship to one bucket at once, while it fails as a seed says; and planted bugs that this finds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
import pytest

from shoal.backup import format as formats
from shoal.backup.bucket import Bucket
from shoal.backup.format import Manifest, Pack, Packing
from shoal.errors import BackupDamaged, BackupUnreachable, MomentMissing, ShoalError
from shoal.node.backup import restoring, shipper, shipping
from shoal.node.incarnation import Incarnation
from shoal.protocol.requests import DeclareBackup
from simulation.bounds import altered
from simulation.world.bucket import SimulatedBucket
from simulation.world.fleet import Fleet
from tests.node.backup.conftest import URL, declare, restore, ship, state_of
from tests.node.backup.test_shipping import fill, truncate
from tests.node.conftest import Bench, Opener

SEEDS = 12


async def test_nodes_that_ship_at_once_make_one_backup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipper, "rank", lambda *_: 0)  # All of them have the turn.
    async with Fleet("abc") as fleet:
        bucket = SimulatedBucket(Random(3))
        for member in fleet.members.values():
            member.simulated.bucket = bucket
            await member.node.backups.stop()
        await fleet["a"].node.session().call(DeclareBackup(URL))
        bucket.share, bucket.slow_s = 0.2, 0.05
        for nth in range(8):
            for member in fleet.members.values():
                await member.store().space("crew").counter("n").add(1)
                await member.store().space("crew").counter(f"of {member.name}").add(nth)
            looks = [member.node.backups.look() for member in fleet.members.values()]
            for failed in await asyncio.gather(*looks, return_exceptions=True):
                assert failed is None or isinstance(failed, ShoalError)
        bucket.share = 0.0
        await fleet.until(lambda: len({member.digest() for member in fleet.members.values()}) == 1, 20)
        for member in fleet.members.values():
            await member.node.backups.look()
        shippers = {member.node.backups.shipper for member in fleet.members.values()}
        assert None not in shippers
        made = await restore(bucket)
        left = Bench(made.storage, fleet["a"].simulated, fleet["a"].config)
        assert await left.space.counter("n").value() == 24
        await left.node.stop()


# ── planted bugs ──────────────────────────────────────────────────────────────


def a_manifest_skips_a_segment(patch: pytest.MonkeyPatch) -> None:
    manifest = shipping.Shipping._manifest

    def skipping(self: Any, catalogue: Any, load: Any, through_ms: int) -> Manifest | None:
        made = manifest(self, catalogue, load, through_ms)
        assert made is not None
        return msgspec.structs.replace(made, segments=made.segments[1:])

    patch.setattr(shipping.Shipping, "_manifest", skipping)


def a_cut_takes_a_later_operation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restoring, "COUNTER_BITS", 17)  # Instead of 16: a moment of the far future.


def a_cut_loses_an_operation(patch: pytest.MonkeyPatch) -> None:
    moment_of = formats.moment_of

    def losing(catalogue: Any, hlc: int, partitions: Any = None) -> Any:
        found = moment_of(catalogue, hlc, partitions)
        return found._replace(segments=[pack for pack in found.segments if pack.last_hlc < hlc - (1 << 20)])

    patch.setattr(restoring, "moment_of", losing)


def a_base_lacks_rows(patch: pytest.MonkeyPatch) -> None:
    add = Packing.add_rows

    def lacking(self: Packing, partition: int, rows: Any) -> int:
        return add(self, partition, [row for row in rows if row[0][:1] != b"O"])

    patch.setattr(Packing, "add_rows", lacking)


def a_segment_is_named_before_it_is_put(patch: pytest.MonkeyPatch) -> None:
    waiting: list[tuple[Bucket, Pack, bytes]] = []
    put, commit = Bucket.put, Bucket.commit

    async def later(self: Bucket, pack: Pack, content: bytes) -> None:
        waiting.append((self, pack, content))

    async def then(self: Bucket, make: Any) -> Any:
        made = await commit(self, make)
        for each in [*waiting]:
            waiting.remove(each)
            await put(*each)
        return made

    patch.setattr(Bucket, "put", later)
    patch.setattr(Bucket, "commit", then)


def a_vector_grows_beyond_what_was_put(patch: pytest.MonkeyPatch) -> None:
    ranges = shipping.Shipping._ranges

    def without_the_first(self: Any, partition: Any, held: Any) -> Any:
        found = ranges(self, partition, held)
        return found and [(number, origin, min(first + 1, last), last) for number, origin, first, last in found]

    patch.setattr(shipping.Shipping, "_ranges", without_the_first)


def a_restore_keeps_its_identity(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Incarnation, "closing", lambda self: self.admission(has_others=True)[0])


MUTANTS = (
    a_manifest_skips_a_segment,
    a_cut_takes_a_later_operation,
    a_cut_loses_an_operation,
    a_base_lacks_rows,
    a_segment_is_named_before_it_is_put,
    a_vector_grows_beyond_what_was_put,
    a_restore_keeps_its_identity,
)


async def drawn(open_bench: Opener, seed: int) -> None:
    """One plan: two nodes of one directory's history that write and ship while the bucket fails; then restores to any moment.

    Raises:
        AssertionError: a restore is not what was there.
        BackupDamaged: the backup cannot be restored.
    """
    random = Random(seed)
    bench = open_bench(seed=seed + 1)
    bucket = SimulatedBucket(random, now_ms=lambda: bench.simulated.now_ms)
    bucket.slow_s = 0.01
    await declare(bench, bucket)
    bucket.share = 0.3
    moments: list[tuple[int, int]] = []
    with altered(pack_bytes=600, base_after_bytes=2000):
        for _ in range(8):
            await fill(bench, random.randint(1, 3))
            moments.append((bench.simulated.now_ms, await bench.space.counter("n").value()))
            bench.simulated.now_ms += random.choice((10, 1000, shipping.BASE_EVERY_MS))
            with suppress(BackupUnreachable):
                await ship(bench)
            if random.random() < 0.15:
                await truncate(bench)
            if random.random() < 0.3 and bench.node.backups.shipper is not None:
                other = Bucket(bucket, cluster=bench.node.backups.shipper._bucket.cluster, now=lambda: 0.0)
                await bench.space.counter("n").add(0)
                with suppress(BackupUnreachable):
                    await other.refresh()
                    passing = shipping.Shipping(bench.node._database._context, bench.node._database, other)
                    lacking = bench.node.backups.shipper._lacking(look=True)
                    passed = passing.run(lacking, through_ms=bench.simulated.now_ms)
                    for failed in await asyncio.gather(passed, ship(bench), return_exceptions=True):
                        if isinstance(failed, BaseException) and not isinstance(failed, BackupUnreachable):
                            raise failed
        bucket.share = 0.0
        await ship(bench)
    made = await restore(bucket)
    assert state_of(made.storage) == state_of(bench.storage)
    left = Bench(made.storage, bench.simulated, bench.config)
    assert not left.node._incarnation.was_member
    await left.node.stop()
    for at_ms, counted in moments:
        try:
            found = Bench((await restore(bucket, moment=at_ms)).storage, bench.simulated, bench.config)
        except MomentMissing:
            assert bench.node._database.truncator.truncated, "nothing left the log"
            continue
        assert await found.space.counter("n").value() == counted
        await found.node.stop()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_drawn_plans_lose_nothing(open_bench: Opener, seed: int) -> None:
    await drawn(open_bench, seed)


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
async def test_a_planted_bug_is_found(
    open_bench: Opener, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS):
        try:
            await drawn(open_bench, seed)
        except (AssertionError, BackupDamaged):
            return
    pytest.fail("no drawn plan finds it")
