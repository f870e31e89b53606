"""A backup does not grow for ever: old moments go, small packs become large ones, and every kept moment can be restored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest

from shoal.backup import bucket as buckets
from shoal.backup import format as formats
from shoal.backup import keeping
from shoal.backup.bucket import Bucket, read
from shoal.backup.format import BASES, MANIFESTS, SEGMENTS, Catalogue
from shoal.config import Config
from shoal.errors import BackupDamaged, BackupUnreachable, InvalidInput, MomentMissing
from shoal.node.backup import shipper as shippers
from shoal.node.backup import shipping
from shoal.node.backup.folding import folded
from shoal.node.backup.restoring import plan
from shoal.protocol.requests import DeclareBackup
from shoal.storage.interface import MemoryStorage
from simulation.bounds import altered
from simulation.world.bucket import SimulatedBucket
from simulation.world.environment import SimulatedEnvironment
from tests.node.backup.conftest import URL, restore, rows_of, ship, state_of
from tests.node.backup.test_shipping import Crashed, crash_at, fill, truncate
from tests.node.conftest import Bench, Opener

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SEEDS = 10
SMALL = {"pack_bytes": 600, "base_after_bytes": 2000, "merged_min": 3, "merged_bytes": 4000}


async def declare(bench: Bench, bucket: SimulatedBucket, keep_ms: int | None = DAY_MS) -> None:
    bench.simulated.bucket = bucket
    await bench.node.backups.stop()
    await bench.node.session().call(DeclareBackup(URL, keep_ms))


async def value_of(bucket: SimulatedBucket, bench: Bench, at_ms: int) -> int:
    """The counter as it is in a restore to a moment."""
    left = Bench((await restore(bucket, moment=at_ms)).storage, bench.simulated, bench.config)
    try:
        return await left.space.counter("n").value()
    finally:
        await left.node.stop()


async def catalogue_of(bucket: SimulatedBucket) -> Catalogue:
    return await read(Bucket(bucket, now=lambda: 0.0))


def lacking(bucket: SimulatedBucket, catalogue: Catalogue) -> list[str]:
    """The packs that the manifests name and that are not there."""
    return [name for name in (*catalogue.segments, *catalogue.packs) if name not in bucket.objects]


# ── one thing at a time ───────────────────────────────────────────────────────


async def test_old_moments_go_and_kept_ones_stay(bench: Bench, bucket: SimulatedBucket) -> None:
    await declare(bench, bucket)
    moments: dict[int, int] = {}
    sizes: list[int] = []
    for _ in range(60):
        for name in ("n", "m", "n"):  # The state stays small, and so does the log.
            bench.simulated.now_ms += 10
            await bench.space.counter(name).add(1)
        moments[bench.simulated.now_ms] = await bench.space.counter("n").value()
        await ship(bench)
        await truncate(bench)  # Two hours.
        bench.simulated.now_ms += HOUR_MS
        await ship(bench)
        sizes.append(sum(len(content) for name, content in bucket.objects.items() if not name.startswith(MANIFESTS)))
    now_ms, catalogue = bench.simulated.now_ms, await catalogue_of(bucket)
    assert lacking(bucket, catalogue) == []
    assert max(sizes[30:]) < 1.2 * max(sizes[:30]), "it grows"
    first = min(pack.first_ms for pack in catalogue.segments.values())
    assert first > now_ms - 4 * DAY_MS
    earliest_ms = (await bench.node.session().call(shippers_read())).earliest_ms
    for at_ms, counted in moments.items():
        if at_ms >= earliest_ms:
            assert await value_of(bucket, bench, at_ms) == counted
        else:
            assert at_ms < now_ms - DAY_MS
            with pytest.raises(MomentMissing, match="the backup begins at") as refused:
                await restore(bucket, moment=at_ms)
            assert refused.value.detail["earliest_ms"] == earliest_ms


def shippers_read() -> Any:
    from shoal.protocol.requests import ReadBackup

    return ReadBackup()


async def test_nothing_goes_from_a_backup_that_is_kept_for_ever(bench: Bench, bucket: SimulatedBucket) -> None:
    await declare(bench, bucket, None)
    moments: dict[int, int] = {}
    for _ in range(12):
        await fill(bench)
        moments[bench.simulated.now_ms] = await bench.space.counter("n").value()
        await ship(bench)
        bench.simulated.now_ms += 10 * DAY_MS
    for at_ms, counted in moments.items():
        assert await value_of(bucket, bench, at_ms) == counted


async def test_many_small_packs_become_one(bench: Bench, bucket: SimulatedBucket) -> None:
    await declare(bench, bucket, None)
    moments: dict[int, int] = {}
    for _ in range(keeping.MERGED_MIN * 5):
        bench.simulated.now_ms += 1000
        await bench.space.counter("n").add(1)
        moments[bench.simulated.now_ms] = await bench.space.counter("n").value()
        await ship(bench)
    catalogue = await catalogue_of(bucket)
    assert len(catalogue.segments) < 2 * keeping.MERGED_MIN
    assert rows_of((await restore(bucket)).storage) == rows_of(bench.storage)
    for at_ms, counted in moments.items():
        assert await value_of(bucket, bench, at_ms) == counted
    bench.simulated.now_ms += DAY_MS + HOUR_MS
    await bench.space.counter("n").add(1)
    await ship(bench)  # The clock is at most an hour ahead of the manifests in the bucket.
    bench.simulated.now_ms += 2 * HOUR_MS
    await ship(bench)
    assert len(bucket.names(SEGMENTS)) < 2 * keeping.MERGED_MIN


async def test_small_packs_of_rows_become_one(bench: Bench, bucket: SimulatedBucket) -> None:
    await declare(bench, bucket, None)
    with altered(base_after_bytes=0, merged_min=3):
        for _ in range(10):
            bench.simulated.now_ms += shipping.BASE_EVERY_MS
            await fill(bench, 1)
            await ship(bench)
    catalogue = await catalogue_of(bucket)
    assert len(catalogue.packs) < sum(map(len, catalogue.bases.values()))
    assert lacking(bucket, catalogue) == []
    assert rows_of((await restore(bucket)).storage) == rows_of(bench.storage)


async def test_a_restore_that_runs_is_not_disturbed(bench: Bench, bucket: SimulatedBucket) -> None:
    """Its plan is made before packs go; their objects stay for a day."""
    with altered(**SMALL):
        await declare(bench, bucket)
        for _ in range(16):
            await fill(bench, 2)
            await ship(bench)
            bench.simulated.now_ms += 6 * HOUR_MS
        environment = SimulatedEnvironment(3).environment
        reading = Bucket(bucket, now=environment.monotonic)
        wanted = plan(await read(reading), None, now_ms=0)
        rows = state_of(bench.storage)
        named = {*reading.catalogue.segments, *reading.catalogue.packs}
        for _ in range(7):
            bench.simulated.now_ms += 3 * HOUR_MS
            await bench.space.counter("n").add(1)
            await ship(bench)
        assert named - {*(await catalogue_of(bucket)).segments, *(await catalogue_of(bucket)).packs}, "nothing went"
        storage = MemoryStorage()
        await folded(storage, reading, wanted, config=Config(), environment=environment)
        assert state_of(MemoryStorage(storage._durable.rows)) == rows


async def test_objects_without_a_name_are_deleted_after_a_day(bench: Bench, bucket: SimulatedBucket) -> None:
    await declare(bench, bucket)
    for _ in range(30):
        await fill(bench, 2)
        await ship(bench)
        bench.simulated.now_ms += 6 * HOUR_MS
        await ship(bench)
    catalogue = await catalogue_of(bucket)
    there = {*bucket.names(SEGMENTS), *bucket.names(BASES)}
    assert {*catalogue.segments, *catalogue.packs} <= there
    extra = there - {*catalogue.segments, *catalogue.packs}
    assert all(catalogue.left[name] > bench.simulated.now_ms - 2 * DAY_MS for name in extra)


async def test_a_clock_that_is_ahead_lets_nothing_go(bench: Bench, bucket: SimulatedBucket) -> None:
    """The bucket's own clock, which its listing shows, stays where it was."""
    bucket_ms = bench.simulated.now_ms
    bucket._now_ms = lambda: bucket_ms
    await declare(bench, bucket)
    with altered(base_after_bytes=0):
        for _ in range(4):
            bench.simulated.now_ms += shipping.BASE_EVERY_MS
            await fill(bench)
            await ship(bench)
    before = {*(await catalogue_of(bucket)).segments, *(await catalogue_of(bucket)).packs}
    bench.simulated.now_ms += 400 * DAY_MS
    for _ in range(4):
        await fill(bench)
        await ship(bench)
        bench.simulated.now_ms += HOUR_MS
    assert before <= bucket.objects.keys()
    assert (await catalogue_of(bucket)).since <= bucket_ms << 16


async def test_the_time_is_changed_by_another_declaration(bench: Bench, bucket: SimulatedBucket) -> None:
    await declare(bench, bucket, None)
    session = bench.node.session()
    assert (await session.call(shippers_read())).keep_ms == 0
    assert (await session.call(DeclareBackup(URL, 30 * DAY_MS))).keep_ms == 30 * DAY_MS
    assert (await session.call(DeclareBackup(URL))).keep_ms == 30 * DAY_MS, "it stays as it is"
    with pytest.raises(InvalidInput, match="a day at least"):
        await session.call(DeclareBackup(URL, HOUR_MS))
    assert (await session.call(DeclareBackup(URL, 0))).keep_ms == 0


async def test_two_nodes_that_merge_the_same_packs_make_one(bench: Bench, bucket: SimulatedBucket) -> None:
    await declare(bench, bucket, None)
    for _ in range(keeping.MERGED_MIN - 1):
        bench.simulated.now_ms += 1000
        await bench.space.counter("n").add(1)
        await ship(bench)
    made = await ship(bench)
    environment = bench.simulated.environment
    stamp = keeping.Stamp(b"n" * 16, bench.simulated.now_ms)
    both = [Bucket(bucket, cluster=made._bucket.cluster, now=lambda: 0.0) for _ in range(2)]
    for each in both:
        await each.refresh()

    def packing(sealed: str) -> formats.Packing:
        return formats.Packing(SEGMENTS, environment.entropy(16), sealed)

    with altered(merged_min=3):
        merging = (keeping.merge(each, stamp, packing=packing, pause=environment.pause) for each in both)
        counts = await asyncio.gather(*merging)
    assert sorted(map(bool, counts)) == [False, True]
    assert lacking(bucket, await catalogue_of(bucket)) == []
    assert rows_of((await restore(bucket)).storage) == rows_of(bench.storage)


async def test_a_crash_at_any_step_loses_nothing(open_bench: Opener) -> None:
    nth = 0
    while True:
        nth += 1
        bench, bucket = open_bench(seed=nth), SimulatedBucket()
        bucket._now_ms = lambda bench=bench: bench.simulated.now_ms  # type: ignore[misc]
        moments: dict[int, int] = {}
        with altered(**SMALL):
            await declare(bench, bucket)
            for _ in range(10):
                await fill(bench, 2)
                moments[bench.simulated.now_ms] = await bench.space.counter("n").value()
                await ship(bench)
                bench.simulated.now_ms += 7 * HOUR_MS
            at, met = crash_at(nth)
            bucket.at = at  # type: ignore[assignment]
            with suppress(Crashed):
                for _ in range(2):
                    await ship(bench)
                    bench.simulated.now_ms += 7 * HOUR_MS
            crashed = len(met) >= nth
            bucket.at = SimulatedBucket().at
            catalogue = await catalogue_of(bucket)
            assert lacking(bucket, catalogue) == []
            left = open_bench(MemoryStorage(bench.storage._durable.rows), seed=nth + 100)
            await left.node.backups.stop()
            left.simulated.bucket, left.simulated.now_ms = bucket, bench.simulated.now_ms
            await ship(left)
        assert state_of((await restore(bucket)).storage) == state_of(left.storage)
        for at_ms, counted in moments.items():
            if at_ms >= bench.simulated.now_ms - DAY_MS:
                assert await value_of(bucket, bench, at_ms) == counted
        if not crashed:
            assert nth > 4
            return


class Running(NamedTuple):
    """A restore that has made its plan, and goes on until a time within a day."""

    reading: Bucket
    environment: SimulatedEnvironment
    ends_ms: int

    @classmethod
    async def begin(cls, bucket: SimulatedBucket, ends_ms: int) -> Running:
        environment = SimulatedEnvironment(3)
        reading = Bucket(bucket, now=environment.environment.monotonic)
        await read(reading)
        return cls(reading, environment, ends_ms)

    async def finish(self, bucket: SimulatedBucket) -> None:
        """It finds all that it reads."""
        share, bucket.share = bucket.share, 0.0
        wanted = plan(self.reading.catalogue, None, now_ms=0)
        await folded(MemoryStorage(), self.reading, wanted, config=Config(), environment=self.environment.environment)
        bucket.share = share


# ── drawn plans ───────────────────────────────────────────────────────────────


async def drawn(open_bench: Opener, seed: int) -> None:
    """Days of writes, two nodes that ship at once, a bucket that fails; then restores to every moment.

    Raises:
        AssertionError: a kept moment is not what was there, or cannot be restored; or the backup grew without bound.
        BackupDamaged: something that a manifest names is gone.
    """
    random = Random(seed)
    bench = open_bench(seed=seed + 1)
    bucket = SimulatedBucket(random, now_ms=lambda: bench.simulated.now_ms)
    bucket.slow_s = 0.01
    moments: dict[int, int] = {}
    running: list[Running] = []
    with altered(**{**SMALL, "merged_bytes": random.choice((4000, 40_000))}):
        await declare(bench, bucket)
        bucket.share = random.choice((0.0, 0.2))
        for _ in range(22):
            for each in [each for each in running if each.ends_ms <= bench.simulated.now_ms + 10 * HOUR_MS]:
                running.remove(each)
                await each.finish(bucket)
            if bucket.names(MANIFESTS) and not running:
                with suppress(BackupUnreachable):
                    running.append(await Running.begin(bucket, bench.simulated.now_ms + 23 * HOUR_MS))
            await fill(bench, random.randint(1, 2))
            moments[bench.simulated.now_ms] = await bench.space.counter("n").value()
            bench.simulated.now_ms += random.choice((10, 1000, HOUR_MS, 6 * HOUR_MS, 10 * HOUR_MS))
            with suppress(BackupUnreachable):
                await ship(bench)
            if random.random() < 0.1:
                await truncate(bench)
            made = bench.node.backups.shipper
            if random.random() < 0.3 and made is not None:
                other = shippers.Shipper(
                    *(bench.node._database._context, bench.node._database, bucket),
                    cluster=made._bucket.cluster,
                    fellows=list,
                    keep_ms=DAY_MS,
                )
                for failed in await asyncio.gather(other.look(), ship(bench), return_exceptions=True):
                    if isinstance(failed, BaseException) and not isinstance(failed, BackupUnreachable):
                        raise failed
        bucket.share = 0.0
        for _ in range(3):
            await ship(bench)
            bench.simulated.now_ms += HOUR_MS
    catalogue = await catalogue_of(bucket)
    assert lacking(bucket, catalogue) == []
    assert state_of((await restore(bucket)).storage) == state_of(bench.storage)
    for at_ms, counted in moments.items():
        try:
            assert await value_of(bucket, bench, at_ms) == counted
        except MomentMissing:
            is_kept = at_ms >= bench.simulated.now_ms - DAY_MS
            assert not is_kept or bench.node._database.truncator.truncated, "a moment that is kept is refused"
    first = min(pack.first_ms for pack in catalogue.segments.values())
    assert first > bench.simulated.now_ms - 4 * DAY_MS, "it keeps what nobody needs"


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_drawn_plans_keep_every_moment(open_bench: Opener, seed: int) -> None:
    await drawn(open_bench, seed)


# ── planted bugs ──────────────────────────────────────────────────────────────


def a_needed_pack_of_operations_goes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(keeping, "is_idle", lambda parts, vectors: all(part.partition in vectors for part in parts))


def a_base_that_is_needed_goes(patch: pytest.MonkeyPatch) -> None:
    first = keeping.first_bases

    def later(catalogue: Catalogue, since: int) -> Any:
        return first(catalogue, since + (20 * HOUR_MS << 16))

    patch.setattr(keeping, "first_bases", later)


def what_goes_is_deleted_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(buckets, "ORPHANS_KEEP_MS", -1)


def a_merged_pack_stands_at_the_end(patch: pytest.MonkeyPatch) -> None:
    merge = Catalogue._merge

    def at_the_end(self: Catalogue, manifest: Any) -> None:
        before = {name: pack for name, pack in self.segments.items() if name not in dict(manifest.gone)}
        merge(self, manifest)
        self.segments = before | {name: pack for name, pack in self.segments.items() if name not in before}

    patch.setattr(Catalogue, "_merge", at_the_end)


def a_merge_loses_a_part(patch: pytest.MonkeyPatch) -> None:
    joined = keeping.joined
    patch.setattr(keeping, "joined", lambda parts: joined(parts)[:1])
    patch.setattr(keeping, "read_entries", lambda content, what: formats.read_entries(content, what)[:3])


def a_pack_that_replaces_others_is_not_named(patch: pytest.MonkeyPatch) -> None:
    replaced = keeping._replaced

    async def unnamed(bucket: Any, packing: Any, stamp: Any, replacing: Any, count: int) -> int:
        def without(pack: Any, now: Any) -> Any:
            made = replacing(pack, now)
            return made and msgspec.structs.replace(made, segments=[])

        return await replaced(bucket, packing, stamp, without, count)

    patch.setattr(keeping, "_replaced", unnamed)


def pieces_of_a_merged_base_are_mixed_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(formats.Packing, "add_part", _reversed(formats.Packing.add_part))


def _reversed(add: Any) -> Any:
    def first(self: Any, part: Any, content: bytes) -> None:
        add(self, part, content)
        self.parts.insert(0, self.parts.pop())

    return first


def nothing_ever_goes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(keeping, "is_idle", lambda parts, vectors: False)


def no_base_is_made_for_what_is_kept(patch: pytest.MonkeyPatch) -> None:
    due = shipping.is_base_due

    def never(catalogue: Any, number: int, size: int = 0, *, now_ms: int, keep_ms: int) -> bool:
        return due(catalogue, number, size, now_ms=now_ms, keep_ms=0)

    patch.setattr(shipping, "is_base_due", never)
    patch.setattr(shippers, "is_base_due", never)


def a_whole_manifest_forgets_since_when(patch: pytest.MonkeyPatch) -> None:
    """Moments that are gone are taken for such that are there."""
    patch.setattr(keeping, "since_of", lambda catalogue, *, now_ms, keep_ms: max(0, now_ms - keep_ms) << 16)
    replace = msgspec.structs.replace

    def without(struct: Any, **changes: Any) -> Any:
        changes.pop("since", None)
        return replace(struct, **changes)

    class Structs:
        pass

    Structs.replace = staticmethod(without)  # type: ignore[attr-defined]

    class Patched:
        structs = Structs

    patch.setattr(keeping, "msgspec", Patched)


MUTANTS = (
    a_needed_pack_of_operations_goes,
    a_base_that_is_needed_goes,
    what_goes_is_deleted_at_once,
    a_merged_pack_stands_at_the_end,
    a_merge_loses_a_part,
    a_pack_that_replaces_others_is_not_named,
    pieces_of_a_merged_base_are_mixed_up,
    nothing_ever_goes,
    no_base_is_made_for_what_is_kept,
    a_whole_manifest_forgets_since_when,
)


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
async def test_a_planted_bug_of_keeping_is_found(
    open_bench: Opener, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS):
        try:
            await drawn(open_bench, seed)
        except (AssertionError, BackupDamaged):
            return
    pytest.fail("no drawn plan finds it")
