from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from shoal.config import Config
from shoal.errors import BackupUnreachable, Cold, InvalidInput, Unsupported
from shoal.kinds.retention.serving.keeper import RESTORED
from shoal.kinds.tiering import state
from shoal.kinds.tiering.state import Rule
from shoal.node.backup.backups import check_place
from shoal.node.tiering.mover import LOOK_AGAIN_S
from shoal.storage import cold
from simulation.world.bucket import SimulatedBucket
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener
from tests.node.tiering.conftest import EXPECTED, OF, TARGET, TEXTS, URL, crashed, filled, forget, large, states, stubs

HOUR_MS = 3_600_000


async def test_idle_threads_move_and_others_stay(bench: Bench, bucket: SimulatedBucket) -> None:
    ids = await filled(bench)
    await bench.space.tiering.set(URL, idle=3600)
    await bench.space.tiering.run()
    assert stubs(bench) == {}
    bench.simulated.now_ms += HOUR_MS + 1
    await filled(bench, "b")
    view = await bench.space.tiering.run()
    assert (view.url, view.idle_ms) == (URL, HOUR_MS)
    assert view.away_bytes == view.moved_bytes > 500_000
    assert large(bench) == {}
    assert len(bucket.names("tiers/")) == view.packs == 1
    assert await states(bench, ids) == EXPECTED


async def test_a_thread_that_came_back_stays_for_as_long(bench: Bench, bucket: SimulatedBucket) -> None:
    ids = await filled(bench)
    await bench.space.tiering.set(URL, idle=3600)
    bench.simulated.now_ms += HOUR_MS + 1
    await bench.space.tiering.run()
    await states(bench, ids)
    bench.simulated.now_ms += HOUR_MS // 2
    await bench.space.tiering.run()
    assert stubs(bench) == {}
    bench.simulated.now_ms += HOUR_MS
    await bench.space.tiering.run()
    assert stubs(bench) != {}


async def test_unset_brings_all_back(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    before = large(bench)
    await bench.space.tiering.set(URL, idle=3600)
    bench.simulated.now_ms += HOUR_MS + 1
    await bench.space.tiering.run()
    await bench.space.tiering.unset()
    view = await bench.space.tiering.run()
    assert view.away_bytes == 0
    assert large(bench) == before
    assert bucket.names("tiers/") == []


async def test_the_node_moves_by_itself(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    await bench.space.tiering.set(URL, idle=3600)
    bench.simulated.now_ms += HOUR_MS + 1
    await asyncio.sleep(61)
    assert stubs(bench) != {}


async def test_a_bucket_that_fails_is_told_and_tried_again(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    await bench.space.tiering.set(URL, idle=3600)
    bench.simulated.now_ms += HOUR_MS + 1
    bucket.refused = "403 no permission"
    with pytest.raises(BackupUnreachable, match="no permission"):
        await bench.space.tiering.run()
    assert "no permission" in (await bench.store.status()).tiering_trouble
    bucket.refused = ""
    assert (await bench.space.tiering.run()).trouble == ""
    assert stubs(bench) != {}


@pytest.mark.parametrize("room", [None, 3])
async def test_an_address_that_cannot_be_used_is_not_recorded(bench: Bench, bucket: SimulatedBucket, room: int | None) -> None:
    bucket.room, bucket.refused = room, "" if room else "403 no permission"
    with pytest.raises(BackupUnreachable):
        await bench.space.tiering.set(URL, idle=3600)
    assert (await bench.space.tiering.get()).wall_ms == 0


async def test_wrong_rules_are_refused(bench: Bench, bucket: SimulatedBucket) -> None:
    with pytest.raises(InvalidInput, match="at least 60 s"):
        await bench.space.tiering.set(URL, idle=1)
    with pytest.raises(InvalidInput, match="needs an address"):
        await bench.space.tiering.set("", idle=3600)
    with pytest.raises(InvalidInput, match="stays where it is"):
        await bench.store.space(".shoal").tiering.set(URL, idle=3600)


def test_a_directory_is_used_only_if_the_operator_allows_it() -> None:
    config = Config(token_keys="k", backup_directories="/mnt/cold")
    check_place(config, "file:///mnt/cold/a", "chunks")
    with pytest.raises(Unsupported, match="may write no chunks to"):
        check_place(config, "file:///etc", "chunks")


@pytest.mark.parametrize(
    "record",
    [b"", b"\xc1", state.packed(Rule("other", URL, 1)), state.packed(Rule("crew", URL, -1)), b"\x81\xa5space\xa4crew"],
)
def test_a_record_that_cannot_be_read_is_no_rule(record: bytes) -> None:
    good = state.packed(Rule("crew", URL, HOUR_MS))
    assert state.read(state.key_of("crew"), [(record, 5)]) is None
    assert state.read(state.key_of("crew"), [(good, 4), (record, 5)]) == Rule("crew", URL, HOUR_MS, 4)


def test_of_rules_set_at_once_the_latest_counts() -> None:
    records = [(state.packed(Rule("crew", URL, 1)), 1), (state.packed(Rule("crew", "", 0)), 2)]
    assert state.read(state.key_of("crew"), records) == Rule("crew", "", 0, 2)


async def test_a_space_without_a_record_is_left_as_it_is(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    await bench.node.service.tiering.mover.move(TARGET, URL)
    before = stubs(bench)
    await bench.node.service.tiering.look()
    assert stubs(bench) == before != {}


async def test_a_look_takes_a_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Fleet("a") as fleet:
        began: list[float] = []

        async def long() -> None:
            began.append(asyncio.get_running_loop().time())
            await asyncio.sleep(100)

        monkeypatch.setattr(fleet["a"].node.service.tiering, "look", long)
        await asyncio.sleep(2500)
        assert began[1] - began[0] >= 999


def allowing(open_bench: Opener, directories: str) -> Bench:
    bench = open_bench(token_keys="keys.json", backup_directories=directories)
    bench.simulated.bucket = SimulatedBucket(now_ms=lambda: bench.simulated.now_ms)
    return bench


async def test_a_directory_that_is_not_allowed_is_not_tried(open_bench: Opener) -> None:
    bench = allowing(open_bench, "/mnt/cold")
    with pytest.raises(Unsupported, match="SHOAL_BACKUP_DIRECTORIES"):
        await bench.space.tiering.set("file:///etc", idle=3600)
    assert (await bench.space.tiering.get()).wall_ms == 0
    assert (await bench.space.tiering.set("file:///mnt/cold/a", idle=3600)).url == "file:///mnt/cold/a"


async def test_a_rule_of_another_node_reaches_no_directory_that_is_not_allowed(open_bench: Opener) -> None:
    bench = allowing(open_bench, "/mnt/cold")
    bucket = bench.simulated.bucket
    assert isinstance(bucket, SimulatedBucket)
    await bench.space.tiering.set("file:///mnt/cold", idle=3600)
    await filled(bench)
    bench.simulated.now_ms += HOUR_MS + 1
    held = bench.node.service.tiering
    held._context = replace(held._context, config=Config(token_keys="keys.json"))
    with pytest.raises(BackupUnreachable, match="SHOAL_BACKUP_DIRECTORIES"):
        await bench.space.tiering.run()
    assert stubs(bench) == {}
    assert bucket.names("tiers/") == []


async def test_a_closed_store_and_a_new_opening_go_on(bench: Bench, bucket: SimulatedBucket) -> None:
    ids = await filled(bench)
    await bench.space.tiering.set(URL, idle=3600)
    bench.simulated.now_ms += HOUR_MS + 1
    await bench.space.tiering.run()
    again = crashed(bench, None)
    again.simulated.bucket = bucket
    assert (await again.space.tiering.get()).url == URL
    assert stubs(again) != {}
    assert await states(again, ids) == EXPECTED
    await again.node.stop()


async def test_a_bucket_that_fails_holds_up_no_other_space(bench: Bench, bucket: SimulatedBucket) -> None:
    await bench.store.space("a").tiering.set("s3://another", idle=3600)
    await bench.space.tiering.set(URL, idle=3600)
    chunks = bench.node._database.chunks
    chunks._stores["s3://another"] = failing = SimulatedBucket(url="s3://another")
    failing.refused = "403 no permission"
    for space in (bench.store.space("a"), bench.space):
        await space.thread("a").save({"text": TEXTS[0]})
    bench.simulated.now_ms += HOUR_MS + 1
    with pytest.raises(BackupUnreachable, match="s3://another"):
        await bench.store.space("a").tiering.run()
    await bench.node.service.tiering.look()
    assert stubs(bench) != {}
    assert "s3://another" in (await bench.store.space("a").tiering.get()).trouble
    assert "s3://another" in (await bench.store.status()).tiering_trouble


async def test_trouble_of_a_space_names_no_other_and_no_thread(bench: Bench, bucket: SimulatedBucket) -> None:
    for space in (bench.store.space("secret-space"), bench.space):
        await space.thread("secret-thread").save({"text": TEXTS[0]})
        await space.tiering.set(URL, idle=3600)
    bench.simulated.now_ms += HOUR_MS + 1
    for space in (bench.store.space("secret-space"), bench.space):
        await space.tiering.run()
    forget(bench)
    bucket.refused = "403 no permission"
    with pytest.raises(Cold):
        await bench.store.space("secret-space").thread("secret-thread").load()
    assert (await bench.space.tiering.get()).trouble == ""
    assert (await bench.space.tiering.run()).trouble == ""
    told = (await bench.store.space("secret-space").tiering.get()).trouble
    assert "no permission" in told
    assert "secret-thread" not in told + (await bench.store.status()).tiering_trouble
    bucket.refused = ""
    await bench.store.space("secret-space").thread("secret-thread").delete()
    await asyncio.sleep(5)  # It is swept.
    bench.simulated.now_ms += int(LOOK_AGAIN_S * 1000)
    await bench.store.space("secret-space").tiering.run()  # Nothing is away any more: what failed does not matter.
    assert (await bench.store.status()).tiering_trouble == ""


async def test_nothing_names_a_deleted_thread(bench: Bench, bucket: SimulatedBucket) -> None:
    ids = await filled(bench)
    await bench.space.tiering.set(URL, idle=3600)
    bench.simulated.now_ms += HOUR_MS + 1
    await bench.space.tiering.run()
    await states(bench, ids)
    assert list(cold.warm(bench.storage)) == [OF]
    await bench.space.thread("a").delete()
    bench.simulated.now_ms += int(LOOK_AGAIN_S * 1000)
    await bench.space.tiering.run()
    assert list(cold.warm(bench.storage)) == []


async def test_a_rule_of_a_restored_store_moves_nothing(open_bench: Opener) -> None:
    first = open_bench()
    bucket = SimulatedBucket(now_ms=lambda: first.simulated.now_ms)
    first.simulated.bucket = bucket
    await filled(first)
    await first.space.tiering.set(URL, idle=3600)
    first.storage.write({RESTORED: (first.simulated.now_ms + 1).to_bytes(8, "big")})
    left = crashed(first, None)
    left.simulated.bucket, left.simulated.now_ms = bucket, first.simulated.now_ms + HOUR_MS + 1
    try:
        with pytest.raises(BackupUnreachable, match="set it once more"):
            await left.space.tiering.run()
        assert stubs(left) == {}
        await left.space.tiering.set(URL, idle=3600)
        assert (await left.space.tiering.run()).packs == 1
        assert stubs(left) != {}
    finally:
        await left.node.stop()


async def test_a_dry_run_counts_and_records_nothing(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    bench.simulated.now_ms += HOUR_MS + 1
    await filled(bench, "b")
    view = await bench.space.tiering.set(URL, idle=3600, dry_run=True)
    assert (view.wall_ms, view.idle_threads) == (0, 1)
    assert bucket.objects == {}
    await bench.space.tiering.set(URL, idle=3600)
    assert (await bench.space.tiering.run()).away_bytes == view.idle_bytes > 500_000
    assert (await bench.space.tiering.set(URL, idle=3600, dry_run=True)).idle_threads == 0
