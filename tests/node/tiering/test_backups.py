"""Backups of threads whose chunks are in another bucket."""

from __future__ import annotations

import pytest

from shoal.backup.format import BASES
from shoal.errors import StoreCorrupt
from simulation.bounds import altered
from simulation.world.bucket import SimulatedBucket
from tests.node.backup.conftest import declare, restore, ship, state_of
from tests.node.conftest import Bench
from tests.node.tiering.conftest import OF, TARGET, URL, crashed, filled, mover_of, stubs

HOUR_MS = 3_600_000


async def test_a_backup_has_what_is_away_and_brings_nothing_back(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    await bench.space.counter("n").add(1)
    before = state_of(bench.storage)
    await mover_of(bench).move(TARGET, URL)
    away = stubs(bench)
    await declare(bench, bucket)
    await ship(bench)
    assert bucket.names(BASES)
    assert stubs(bench) == away
    restored = state_of((await restore(bucket)).storage)
    assert restored == state_of(bench.storage) | {key: before[key] for key in away}


async def test_a_base_of_a_log_that_left_has_what_is_away(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    before = state_of(bench.storage)
    await declare(bench, bucket)
    with altered(first_operations_max=0):
        await mover_of(bench).move(TARGET, URL)
        await ship(bench)
    restored = state_of((await restore(bucket)).storage)
    assert {key: restored[key] for key in stubs(bench)} == {key: before[key] for key in stubs(bench)}


@pytest.mark.parametrize("trouble", ["lost", "refused"])
async def test_an_unfetched_chunk_holds_up_no_other_partition(bench: Bench, bucket: SimulatedBucket, trouble: str) -> None:
    await filled(bench)
    await bench.space.counter("n").add(1)
    await mover_of(bench).move(TARGET, URL)
    [pack] = bucket.names("tiers/")
    content = bucket.objects[pack]
    if trouble == "lost":
        del bucket.objects[pack]
    else:
        cold_bucket = bench.node._database.chunks._stores[URL] = SimulatedBucket()
        cold_bucket.objects[pack], cold_bucket.modified[pack] = content, 0
        cold_bucket.refused = "403 no permission"
    await declare(bench, bucket)
    shipper = await ship(bench)
    [told] = shipper.told(bench.node.backups.view()).skipped
    assert ("missing" if trouble == "lost" else "no permission") in told
    assert (await restore(bucket)).restored is not None
    bucket.objects[pack], bucket.modified[pack] = content, 0
    if trouble == "refused":
        cold_bucket.refused = ""
    assert (await ship(bench)).told(bench.node.backups.view()).skipped == []
    assert stubs(bench).keys() <= state_of((await restore(bucket)).storage).keys()


async def test_a_snapshot_is_filled_with_what_came_back_since(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    before = dict(bench.storage.scan(OF, OF + b"\xff"))
    mover, chunks = mover_of(bench), bench.node._database.chunks
    await mover.move(TARGET, URL)
    rows = [(key, value) for key, value in bench.storage.scan(OF, OF + b"\xff") if key in stubs(bench)]
    await chunks.bring_back_all(OF)
    await mover.tidy()
    assert bucket.names("tiers/") == []
    assert await chunks.filled(rows) == [(key, before[key]) for key, _ in rows]
    bench.node._commit.write({rows[0][0]: None})  # And erased: it is not in the snapshot that a peer is given.
    with pytest.raises(StoreCorrupt, match="not known"):
        await chunks.filled(rows)


async def test_a_restored_directory_has_nothing_in_the_bucket(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    await bench.space.tiering.set(URL, idle=3600)
    bench.simulated.now_ms += HOUR_MS + 1
    await bench.space.tiering.run()
    await declare(bench, bucket)
    await ship(bench)
    made = await restore(bucket)
    again = Bench(made.storage, crashed(bench).simulated, bench.config)
    again.simulated.bucket, again.simulated.now_ms = bucket, bench.simulated.now_ms + HOUR_MS
    before = bucket.names("tiers/")
    try:
        view = await again.space.tiering.get()
        assert (view.url, view.away_bytes, view.packs) == (URL, 0, 0)
        await again.node.service.tiering.look()
        assert "set it once more" in (await again.space.tiering.get()).trouble
        assert stubs(again) == {}
        assert bucket.names("tiers/") == before
    finally:
        await again.node.stop()
