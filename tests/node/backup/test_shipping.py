"""A node ships to a bucket: what is in it, when, and what happens if the bucket fails."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from random import Random

import pytest

from shoal.backup.bucket import Bucket
from shoal.backup.format import BASES, MANIFESTS, SEGMENTS, VERIFIED
from shoal.cluster.operation import partition_of
from shoal.config import Config
from shoal.errors import BackupConflict, BackupUnreachable, BookmarkLost, MomentMissing, RightsElsewhere, Unsupported
from shoal.node.backup import shipper, shipping
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import DeclareBackup, ReadBackup, ReadCounter
from shoal.storage.interface import MemoryStorage
from simulation.bounds import altered
from simulation.world.bucket import SimulatedBucket
from tests.node.backup.conftest import URL, declare, restore, rows_of, ship, state_of
from tests.node.conftest import Bench, Opener

HOUR_MS = 3_600_000
CREW = partition_of("crew", "n")


async def fill(bench: Bench, count: int = 5) -> None:
    for nth in range(count):
        bench.simulated.now_ms += 10
        await bench.space.counter("n").add(1)
        await bench.space.thread(f"t{nth}").save({"text": "x" * 200, "nth": nth}, overwrite=True)
    await bench.space.set("urls").add(f"u{count}")


async def truncate(bench: Bench) -> None:
    """All operations so far leave the log."""
    bench.simulated.now_ms += 2 * HOUR_MS
    truncator = bench.node._database.truncator
    await truncator.look(truncator.due())


async def test_a_restore_holds_what_was_shipped(bench: Bench, bucket: SimulatedBucket) -> None:
    await fill(bench)
    await declare(bench, bucket)
    await ship(bench)
    made = await restore(bucket)
    assert rows_of(made.storage) == rows_of(bench.storage)


async def test_only_what_is_new_is_shipped(bench: Bench, bucket: SimulatedBucket) -> None:
    await fill(bench)
    await declare(bench, bucket)
    await ship(bench)
    [first] = bucket.names(SEGMENTS)
    await ship(bench)
    assert bucket.names(SEGMENTS) == [first]
    await bench.space.counter("n").add(1)
    await ship(bench)
    [second] = set(bucket.names(SEGMENTS)) - {first}
    assert len(bucket.objects[second]) < len(bucket.objects[first]) / 4
    assert rows_of((await restore(bucket)).storage) == rows_of(bench.storage)


async def test_a_restore_to_a_moment_holds_nothing_later(bench: Bench, bucket: SimulatedBucket) -> None:
    await declare(bench, bucket)
    counts: list[int] = []
    for _ in range(6):
        bench.simulated.now_ms += 100
        await bench.space.counter("n").add(1)
        counts.append(bench.simulated.now_ms)
        await ship(bench)
    for nth, at in enumerate(counts, 1):
        made = await restore(bucket, moment=at)
        left = Bench(made.storage, bench.simulated, bench.config)
        assert await left.space.counter("n").value() == nth
        await left.node.stop()


async def test_the_moment_of_a_write_is_in_it_and_the_next_is_not(bench: Bench, bucket: SimulatedBucket) -> None:
    await declare(bench, bucket)
    await bench.space.counter("n").add(1)
    at = bench.simulated.now_ms
    bench.simulated.now_ms += 1
    await bench.space.counter("n").add(1)
    await ship(bench)
    assert (await restore(bucket, moment=at)).restored.operations == 1
    assert (await restore(bucket, moment=at + 1)).restored.operations == 2


async def test_a_moment_before_the_backup_is_refused(bench: Bench, bucket: SimulatedBucket) -> None:
    await fill(bench)
    await declare(bench, bucket)
    await ship(bench)
    with pytest.raises(MomentMissing, match="the backup begins at") as refused:
        await restore(bucket, moment=bench.simulated.now_ms - 10 * HOUR_MS)
    assert refused.value.detail["earliest_ms"]


async def test_a_moment_that_has_not_come_yet_is_refused(bench: Bench, bucket: SimulatedBucket) -> None:
    await declare(bench, bucket)
    await bench.space.counter("n").add(1)
    await ship(bench)
    through_ms = bench.simulated.now_ms
    bench.simulated.now_ms += HOUR_MS  # Nothing was written since, so nothing is shipped.
    assert (await restore(bucket, moment=bench.simulated.now_ms)).restored.operations == 1
    with pytest.raises(MomentMissing, match="has not come yet") as refused:
        await restore(bucket, moment=bench.simulated.now_ms + 1000)
    assert refused.value.detail["latest_ms"] == through_ms


async def test_a_clock_behind_refuses_no_moment_that_was_shipped(bench: Bench, bucket: SimulatedBucket) -> None:
    await declare(bench, bucket)
    await bench.space.counter("n").add(1)
    await ship(bench)
    through_ms = bench.simulated.now_ms
    bench.simulated.now_ms -= HOUR_MS
    assert (await restore(bucket, moment=through_ms)).restored.operations == 1
    with pytest.raises(MomentMissing, match="has not come yet"):
        await restore(bucket, moment=through_ms + 1000)


async def test_the_first_moment_that_a_refusal_names_can_be_restored(bench: Bench, bucket: SimulatedBucket) -> None:
    bench.simulated.now_ms += 350 - bench.simulated.now_ms % 1000  # Within a second, of which the text tells no part.
    await declare(bench, bucket)
    await bench.space.counter("n").add(1)
    await ship(bench)
    with pytest.raises(MomentMissing) as refused:
        await restore(bucket, moment=bench.simulated.now_ms - 10 * HOUR_MS)
    told = re.search(r"begins at ([^,]+),", str(refused.value))
    assert told is not None
    named = datetime.fromisoformat(told[1])
    assert (await restore(bucket, moment=round(named.timestamp() * 1000))).restored.operations == 1


async def test_operations_that_left_the_log_are_shipped_as_rows(bench: Bench, bucket: SimulatedBucket) -> None:
    await fill(bench)
    await truncate(bench)
    await bench.space.counter("n").add(1)
    await declare(bench, bucket)
    await ship(bench)
    assert bucket.names(BASES)
    made = await restore(bucket)
    assert rows_of(made.storage) == rows_of(bench.storage)


async def test_truncation_that_outran_shipping_leaves_a_gap_that_is_told(bench: Bench, bucket: SimulatedBucket) -> None:
    await declare(bench, bucket)
    await bench.space.counter("n").add(1)
    whole_ms = bench.simulated.now_ms
    await ship(bench)
    bench.simulated.now_ms += 1000
    await bench.space.counter("n").add(1)
    gap_ms = bench.simulated.now_ms
    await truncate(bench)
    await bench.space.counter("n").add(1)
    await ship(bench)
    made = await restore(bucket)
    assert rows_of(made.storage) == rows_of(bench.storage)
    with pytest.raises(MomentMissing, match="lacks operations"):
        await restore(bucket, moment=gap_ms)
    with pytest.raises(MomentMissing, match="lacks operations"):  # It may lack some: nobody knows when they were issued.
        await restore(bucket, moment=whole_ms)


async def test_a_partition_with_many_operations_gets_a_base(bench: Bench, bucket: SimulatedBucket) -> None:
    with altered(base_after_bytes=2000):
        await declare(bench, bucket)
        await fill(bench, 3)
        early_ms = bench.simulated.now_ms
        await ship(bench)
        for _ in range(40):
            await bench.space.counter("n").add(1)
        bench.simulated.now_ms += shipping.BASE_EVERY_MS + 1
        await bench.space.counter("n").add(1)
        await ship(bench)
    assert bucket.names(BASES)
    made = await restore(bucket)
    assert rows_of(made.storage) == rows_of(bench.storage)
    assert made.restored.operations < 40  # Those of the base are in its rows.
    await restore(bucket, moment=early_ms)  # The base takes no moment away.


async def test_large_packs_are_cut(bench: Bench, bucket: SimulatedBucket) -> None:
    with altered(pack_bytes=1000, base_after_bytes=1500):
        await declare(bench, bucket)
        await fill(bench, 12)
        await ship(bench)
        assert len(bucket.names(SEGMENTS)) > 3
        bench.simulated.now_ms += shipping.BASE_EVERY_MS + 1
        await fill(bench, 12)
        await ship(bench)
    assert rows_of((await restore(bucket)).storage) == rows_of(bench.storage)


@pytest.mark.parametrize("every", [1, 3])
async def test_retired_origins_are_shipped(open_bench: Opener, every: int) -> None:
    bucket, storage, now_ms = SimulatedBucket(), MemoryStorage(), 0
    for nth in range(8):
        bench = open_bench(storage, seed=nth + 10, retire_origins_min=2)
        bench.simulated.bucket, bench.simulated.now_ms = bucket, max(now_ms, bench.simulated.now_ms) + 1000
        if nth:
            await bench.node.backups.stop()
        else:
            await declare(bench, bucket)
        await bench.space.counter("n").add(1)
        if nth % every == 0:
            await ship(bench)
        await asyncio.sleep(1)
        now_ms = bench.simulated.now_ms
        await bench.node.stop()
        storage = MemoryStorage(bench.storage._durable.rows)
    last = open_bench(storage, seed=99, retire_origins_min=2)
    last.simulated.bucket, last.simulated.now_ms = bucket, now_ms
    await ship(last)
    assert last.node._database.partitions.load(CREW).retired.summary.horizon
    assert state_of((await restore(bucket)).storage) == state_of(last.storage)


async def test_a_restored_directory_is_a_new_node_with_a_new_origin(bench: Bench, bucket: SimulatedBucket) -> None:
    await fill(bench)
    old = set(bench.node._database.partitions.load(CREW).vector)
    await declare(bench, bucket)
    await ship(bench)
    made = await restore(bucket)
    left = Bench(made.storage, bench.simulated, bench.config)
    assert not left.node._incarnation.was_member
    assert not left.node._incarnation.copied
    await left.space.counter("n").add(1)
    assert left.node._incarnation.node != bench.node._incarnation.node
    assert left.node._incarnation.current not in old
    assert left.node._incarnation.past_origins() == []
    assert not left.node._incarnation.was_member
    assert (await left.node.session().call(ReadBackup())).state == "none"
    await left.node.stop()


async def test_rights_to_a_budget_of_lost_nodes_are_told_with_how_to_take_them(
    bench: Bench, bucket: SimulatedBucket, open_bench: Opener
) -> None:
    budget = bench.space.budget("money")
    await budget.grant(100)
    await budget.spend(30)
    await budget.draw(70)
    await declare(bench, bucket)
    await ship(bench)
    restored = open_bench((await restore(bucket)).storage, seed=5)
    budget = restored.space.budget("money")
    with pytest.raises(RightsElsewhere, match="as after a restore") as refused:
        await budget.spend(10)
    left = refused.value.detail["left"]
    assert isinstance(left, list)
    [origin] = [each.removesuffix(": 70") for each in left]
    assert f'draw(70, reclaim="{origin}")' in refused.value.message
    assert await budget.draw(70, reclaim=origin) == 70
    assert await budget.spend(70) == 0


async def test_a_bookmark_of_what_a_restore_lacks_is_lost(bench: Bench, bucket: SimulatedBucket) -> None:
    await declare(bench, bucket)
    await bench.space.counter("n").add(1)
    await ship(bench)
    session = bench.node.session()
    await session.call(requests.Add("crew", "n", 1))
    made = await restore(bucket)
    left = Bench(made.storage, bench.simulated, bench.config)
    later = left.node.session(Bookmark(lambda: 0.0))
    later.bookmark.note(CREW, session.bookmark.vector(CREW))
    with pytest.raises(BookmarkLost):
        await later.call(ReadCounter("crew", "n"))
    await left.node.stop()


async def test_the_bucket_of_another_cluster_is_left_alone(bench: Bench, open_bench: Opener) -> None:
    bucket = SimulatedBucket(now_ms=lambda: bench.simulated.now_ms)
    await fill(bench)
    await declare(bench, bucket)
    await ship(bench)
    before = dict(bucket.objects)
    other = open_bench(seed=5)
    other.simulated.bucket = bucket
    with pytest.raises(BackupConflict, match="another cluster"):
        await other.node.session().call(DeclareBackup(URL))
    assert bucket.objects == before
    assert (await other.node.session().call(ReadBackup())).state == "none"


async def test_two_clusters_that_declare_one_empty_place_do_not_mix(bench: Bench, open_bench: Opener) -> None:
    bucket = SimulatedBucket(now_ms=lambda: bench.simulated.now_ms)
    other = open_bench(seed=5)
    await declare(bench, bucket)
    await declare(other, bucket)
    await bench.space.counter("n").add(1)
    await other.space.counter("n").add(2)
    await ship(bench)
    with pytest.raises(BackupConflict, match="another cluster"):
        await ship(other)
    assert rows_of((await restore(bucket)).storage) == rows_of(bench.storage)


async def test_a_node_that_has_just_begun_knows_that_there_is_a_backup(
    bench: Bench, bucket: SimulatedBucket, open_bench: Opener
) -> None:
    await declare(bench, bucket)
    left = bench.storage.left_by_crash(0)
    again = open_bench(MemoryStorage(dict(left.scan(b"", None)), identity=bench.storage.identity), seed=9)
    told = again.node.backups.view()
    assert (told.state, told.url, told.covered_ms) == ("behind", URL, 0)
    assert told.lag_ms


async def test_a_copy_of_a_directory_ships_nothing(bench: Bench, bucket: SimulatedBucket, open_bench: Opener) -> None:
    await declare(bench, bucket)
    await bench.space.counter("n").add(1)
    await ship(bench)
    copy = open_bench(MemoryStorage(dict(bench.storage.left_by_crash(0).scan(b"", None)), identity=b"elsewhere"), seed=9)
    await copy.node.backups.stop()
    copy.simulated.bucket = bucket
    await copy.space.counter("n").add(1)
    before = dict(bucket.objects)
    with pytest.raises(BackupConflict, match="is a copy"):
        await ship(copy)
    assert bucket.objects == before


async def test_a_bucket_that_fails_stops_no_write_and_is_told(bench: Bench, bucket: SimulatedBucket) -> None:
    await declare(bench, bucket)
    bucket.refused = "403 access denied"
    await fill(bench)
    with pytest.raises(BackupUnreachable, match="403"):
        await ship(bench)
    bucket.refused = ""
    await ship(bench)
    assert rows_of((await restore(bucket)).storage) == rows_of(bench.storage)


async def test_the_status_tells_how_far_the_backup_is(bench: Bench, bucket: SimulatedBucket) -> None:
    await declare(bench, bucket)
    await fill(bench)
    view = await bench.node.session().call(ReadBackup())
    assert (view.state, view.covered_ms) == ("behind", 0)
    assert view.lag_ms > 0, "nothing is known to be there"
    await ship(bench)
    view = await bench.node.session().call(ReadBackup())
    assert (view.state, view.lag_ms, view.manifest) == ("current", 0, 1)
    bench.simulated.now_ms += 500
    await bench.space.counter("n").add(1)
    view = await bench.node.session().call(ReadBackup())
    assert (view.state, view.lag_ms) == ("behind", 500)
    assert (await bench.store.status()).backup_lag_ms == 500


async def test_a_full_bucket_is_told_and_goes_on_once_there_is_room(bench: Bench, bucket: SimulatedBucket) -> None:
    await declare(bench, bucket)
    await fill(bench)
    bucket.room = 50
    with pytest.raises(BackupUnreachable, match="full"):
        await ship(bench)
    bucket.room = None
    await ship(bench)
    assert rows_of((await restore(bucket)).storage) == rows_of(bench.storage)


@pytest.mark.parametrize("seed", range(12))
async def test_faults_of_the_bucket_lose_nothing(bench: Bench, seed: int) -> None:
    random = Random(seed)
    bucket = SimulatedBucket(random, now_ms=lambda: bench.simulated.now_ms)
    bucket.slow_s = 0.01
    await declare(bench, bucket)
    bucket.share = 0.4
    with altered(pack_bytes=600, base_after_bytes=2000):
        for _ in range(15):
            await fill(bench, random.randint(1, 3))
            bench.simulated.now_ms += random.choice((10, 1000, HOUR_MS // 2))
            if random.random() < 0.1:
                await truncate(bench)
            with suppress(BackupUnreachable):
                await ship(bench)
        bucket.share = 0.0
        await ship(bench)
    assert set(bucket.met)
    assert state_of((await restore(bucket)).storage) == state_of(bench.storage)


class Crashed(Exception):
    """The node ended here."""


def crash_at(nth: int) -> tuple[Callable[[str], object], list[str]]:
    met: list[str] = []

    async def at(moment: str) -> None:
        met.append(moment)
        if len(met) == nth:
            raise Crashed(moment)

    return at, met


async def test_a_crash_at_any_put_loses_nothing(open_bench: Opener) -> None:
    nth = 0
    while True:
        nth += 1
        bench, bucket = open_bench(seed=nth), SimulatedBucket()
        await declare(bench, bucket)
        with altered(pack_bytes=600, base_after_bytes=1000):
            await fill(bench, 4)
            await ship(bench)
            bench.simulated.now_ms += shipping.BASE_EVERY_MS + 1
            await fill(bench, 4)
            at, met = crash_at(nth)
            bucket.at = at  # type: ignore[assignment]
            with suppress(Crashed):
                await ship(bench)
            crashed = len(met) >= nth
            left = open_bench(MemoryStorage(bench.storage._durable.rows), seed=nth + 100)
            await left.node.backups.stop()
            left.simulated.bucket, left.simulated.now_ms = bucket, bench.simulated.now_ms
            bucket.at = SimulatedBucket().at
            await ship(left)
        assert rows_of((await restore(bucket)).storage) == rows_of(left.storage)
        if not crashed:
            assert nth > 4
            return


async def test_orphans_are_swept_after_a_day(bench: Bench, bucket: SimulatedBucket) -> None:
    await declare(bench, bucket)
    await fill(bench)
    bucket.objects[f"{SEGMENTS}{'0' * 64}"], bucket.modified[f"{SEGMENTS}{'0' * 64}"] = b"x", bench.simulated.now_ms
    made = await ship(bench)
    bench.simulated.now_ms += 25 * HOUR_MS
    await bench.space.counter("n").add(1)
    await ship(bench)
    assert f"{SEGMENTS}{'0' * 64}" not in bucket.objects
    assert made is not None
    assert len(bucket.names(MANIFESTS)) == 2
    await restore(bucket)


async def test_nodes_take_turns() -> None:
    nodes = [b"a", b"b", b"c"]
    first = [next(node for node in nodes if shipper.rank(node, nodes, at * shipper.TURN_MS) == 0) for at in range(60)]
    assert {node: first.count(node) > 10 for node in nodes} == dict.fromkeys(nodes, True)
    assert [sorted(shipper.rank(node, nodes, at) for node in nodes) for at in range(3)] == [[0, 1, 2]] * 3


# ── when ──────────────────────────────────────────────────────────────────────


async def test_nothing_is_shipped_before_it_is_durable(bench: Bench, bucket: SimulatedBucket) -> None:
    await declare(bench, bucket)
    bench.simulated.hold_syncs()
    await bench.node.session().call(requests.Add("crew", "n", 1), durability="memory")
    shipping_now = asyncio.create_task(ship(bench))
    await asyncio.sleep(60)
    assert bucket.names(SEGMENTS) == []
    bench.simulated.release_syncs()
    await shipping_now
    assert len(bucket.names(SEGMENTS)) == 1


async def test_a_node_without_the_turn_ships_what_is_late(
    bench: Bench, bucket: SimulatedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipper, "rank", lambda *_: 1)
    await declare(bench, bucket)
    await bench.space.counter("n").add(1)
    await ship(bench)
    assert bucket.names(SEGMENTS) == []
    bench.simulated.now_ms += round(shipper.LATE_S * 1000)
    await ship(bench)
    assert len(bucket.names(SEGMENTS)) == 1


async def test_shipping_by_others_covers_the_moment_of_holding(
    bench: Bench, bucket: SimulatedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipper, "rank", lambda *_: 1)
    await declare(bench, bucket)
    await bench.space.counter("n").add(1)
    made = await ship(bench)
    held_ms = bench.simulated.now_ms
    other = Bucket(bucket, cluster=made._bucket.cluster, now=lambda: 0.0)
    await other.refresh()
    passing = shipping.Shipping(bench.node._database._context, bench.node._database, other)
    assert await passing.run(made._lacking(), through_ms=held_ms)
    bench.simulated.now_ms += 1000
    await bench.space.counter("n").add(1)
    await ship(bench)
    assert (await bench.store.backup.status()).covered_ms == held_ms


async def test_bytes_a_second_are_bounded(bench: Bench, bucket: SimulatedBucket) -> None:
    await declare(bench, bucket)
    await fill(bench, 10)
    with altered(bytes_s_max=1000):
        began_s = asyncio.get_running_loop().time()
        await ship(bench)
    size = sum(len(bucket.objects[name]) for name in bucket.names(SEGMENTS))
    assert asyncio.get_running_loop().time() - began_s >= size / 1000 - 1e-6, "but for what floats round off"


async def test_a_node_ships_by_itself_and_again_after_a_failure(bench: Bench, bucket: SimulatedBucket) -> None:
    bench.simulated.bucket = bucket
    await bench.store.backup.init(URL)
    bucket.refused = "403 access denied"
    await bench.space.counter("n").add(1)
    await asyncio.sleep(10)
    view = await bench.store.backup.status()
    assert (view.state, "403" in view.trouble) == ("failing", True)
    bucket.refused = ""
    await asyncio.sleep(120)
    assert (await bench.store.backup.status()).state == "current"
    await bench.store.backup.off()
    assert (await bench.store.backup.status()).state == "none"


def test_a_store_without_a_backup_loads_nothing_of_it(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys, shoal\n"
        "async def main():\n"
        "    async with shoal.open(sys.argv[1]) as store:\n"
        "        await store.space('crew').counter('n').add(1)\n"
        "asyncio.run(main())\n"
        "print([name for name in ('obstore', 'shoal.node.backup.shipper', 'shoal.backup.bucket') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "state"], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


async def test_a_first_verification_is_seen_soon(bench: Bench, bucket: SimulatedBucket) -> None:
    """Whoever is told to verify, and does, must not be told so for minutes more."""
    await declare(bench, bucket)
    await ship(bench)
    view = bench.node.backups.view()
    assert (view.verified_ms, view.begun_ms) == (0, bench.simulated.now_ms)
    now_ms = bench.simulated.now_ms
    await bucket.put_new(f"{VERIFIED}{now_ms:015d}", b"")
    bench.simulated.now_ms += 31_000
    await ship(bench)
    assert bench.node.backups.view().verified_ms == now_ms


async def test_a_verification_at_no_time_is_passed_over(bench: Bench, bucket: SimulatedBucket) -> None:
    await bucket.put_new(f"{VERIFIED}{'9' * 40}", b"")
    await bucket.put_new(f"{VERIFIED}7", b"")
    await declare(bench, bucket)
    await ship(bench)
    assert bench.node.backups.view().verified_ms == 7


@pytest.mark.parametrize(
    ("allowed", "url", "is_taken"),
    [
        ("", "file:///mnt/backup", False),
        ("/mnt/backup", "file:///mnt/backup", True),
        ("/srv, /mnt/backup", "file://localhost/mnt/backup/prod%20a", True),
        ("/mnt/backup", "file:///mnt/backups", False),
        ("/mnt/backup", "file:///mnt/backup/../../etc", False),
        ("/mnt/backup", "file:///mnt/backup/%2e%2e/etc", False),
        ("/mnt/backup", "FILE:////etc", False),
        ("/mnt/backup", "file:///etc", False),
        ("/mnt/backup", "s3://simulated/prod", True),
    ],
)
async def test_tokens_reach_no_directory_that_was_not_named(
    open_bench: Opener, allowed: str, url: str, *, is_taken: bool
) -> None:
    bench = open_bench(token_keys="keys.json", backup_directories=allowed)
    bench.simulated.bucket = SimulatedBucket(now_ms=lambda: bench.simulated.now_ms)
    await bench.node.backups.stop()
    if is_taken:
        await bench.node.session().call(DeclareBackup(url))
        assert await ship(bench)
        return
    with pytest.raises(Unsupported, match="SHOAL_BACKUP_DIRECTORIES"):
        await bench.node.session().call(DeclareBackup(url))
    assert bench.simulated.bucket.objects == {}


async def test_a_node_ships_to_no_directory_that_another_member_declared(open_bench: Opener) -> None:
    bench = open_bench(token_keys="keys.json", backup_directories="/mnt/backup")
    bench.simulated.bucket = SimulatedBucket(now_ms=lambda: bench.simulated.now_ms)
    await bench.node.backups.stop()
    await bench.node.session().call(DeclareBackup("file:///mnt/backup"))
    held = bench.node.backups
    held._context = replace(held._context, config=Config(token_keys="keys.json"))
    with pytest.raises(Unsupported):
        await held.look()
