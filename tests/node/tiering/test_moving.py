from __future__ import annotations

import asyncio
from hashlib import sha256

import pytest

from shoal.config import Config
from shoal.errors import BackupDamaged, BackupUnreachable, Cold, Retryable, StoreCorrupt
from shoal.node.tiering.chunks import FETCHES_MAX, GOING, PUTTING, THERE, WAIT_S, Chunks, unpacked
from shoal.node.tiering.mover import LOOK_AGAIN_S
from shoal.node.verification.verify import verify
from shoal.storage import cold
from simulation.bounds import altered
from simulation.world.bucket import SimulatedBucket
from tests.node.conftest import Bench
from tests.node.tiering.conftest import EXPECTED, OF, TARGET, URL, crashed, filled, forget, large, mover_of, states, stubs


def states_of_packs(bench: Bench) -> list[int]:
    return [unpacked(stored).state for _, _, stored in cold.records(bench.storage)]


async def test_chunks_move_and_come_back_on_read(bench: Bench, bucket: SimulatedBucket) -> None:
    ids = await filled(bench)
    before = large(bench)
    mover, chunks = mover_of(bench), bench.node._database.chunks
    moved = await mover.move(TARGET, URL)
    assert mover.moved_bytes == moved == sum(map(len, before.values())) > 500_000
    assert large(bench) == {}
    assert stubs(bench).keys() == before.keys()
    assert await states(bench, ids) == EXPECTED
    assert {key: value for key, value in large(bench).items() if key in before}.items() <= before.items()
    assert chunks.fetched_bytes == sum(map(len, bucket.objects.values()))


async def test_a_file_comes_back_on_read(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    await mover_of(bench).move(TARGET, URL)
    async with bench.space.thread("a").open_file("f.bin") as stream:
        found = await stream.read()
    assert sha256(found).hexdigest() == (await bench.space.thread("a").file("f.bin")).sha256


async def test_a_save_on_a_cold_thread_goes_on(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    await mover_of(bench).move(TARGET, URL)
    forget(bench)
    thread = bench.space.thread("a")
    loaded = await thread.load()
    await thread.save(loaded.state | {"more": "x" * 9000})
    assert (await thread.load()).state == EXPECTED[-1] | {"more": "x" * 9000}


async def test_nothing_in_the_bucket_can_be_read_without_the_stubs(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    chunks = large(bench).values()
    await mover_of(bench).move(TARGET, URL)
    content = b"".join(bucket.objects.values())
    assert content
    assert not any(chunk[:64] in content for chunk in chunks)
    assert not any(stub.key in content for stub in stubs(bench).values())


@pytest.mark.answers("idle-chunks-are-let-go-too-early")
@pytest.mark.parametrize("moment", ["before put", "after put"])
async def test_a_crash_at_a_put_loses_nothing_and_leaves_nothing(bench: Bench, bucket: SimulatedBucket, moment: str) -> None:
    ids = await filled(bench)

    async def crash(at: str) -> None:
        if at.startswith(moment):
            raise asyncio.CancelledError

    bucket.at = crash
    with pytest.raises(asyncio.CancelledError):
        await mover_of(bench).move(TARGET, URL)
    again = crashed(bench)
    try:
        again.simulated.bucket = bucket
        assert states_of_packs(again) == [PUTTING]
        assert await states(again, ids) == EXPECTED

        async def pass_by(_at: str) -> None:
            return

        bucket.at = pass_by
        assert await mover_of(again).tidy() == {}
        assert states_of_packs(again) == []
        assert bucket.names("tiers/") == []
    finally:
        await again.node.stop()


@pytest.mark.parametrize("keep", [0, 1, 2, 3, 4, None])
async def test_a_power_cut_after_the_move_keeps_the_chunks_somewhere(
    bench: Bench, bucket: SimulatedBucket, keep: int | None
) -> None:
    ids = await filled(bench)
    await bench.node._commit.wait_durable(bench.node._commit.written)
    bench.simulated.hold_syncs()
    moving = asyncio.ensure_future(mover_of(bench).move(TARGET, URL))
    for _ in range(20):
        await asyncio.sleep(0)
    bench.simulated.release_syncs()
    await moving
    again = crashed(bench, keep)
    try:
        again.simulated.bucket = bucket
        assert await states(again, ids) == EXPECTED
        await mover_of(again).tidy()
        assert await states(again, ids) == EXPECTED
    finally:
        await again.node.stop()


@pytest.mark.answers("idle-chunks-are-let-go-too-early")
async def test_an_altered_put_moves_nothing(bench: Bench, bucket: SimulatedBucket) -> None:
    ids = await filled(bench)
    before = large(bench)

    async def alter(at: str) -> None:
        if at.startswith("after put"):
            name = at.removeprefix("after put ")
            bucket.objects[name] = bucket.objects[name][:-9] + b"alteredxx"

    bucket.at = alter
    with pytest.raises(BackupDamaged, match="is not what was put there"):
        await mover_of(bench).move(TARGET, URL)
    assert large(bench) == before
    assert await states(bench, ids) == EXPECTED
    await mover_of(bench).tidy()
    assert bucket.names("tiers/") == []


@pytest.mark.parametrize("fault", ["full", "refused"])
async def test_a_bucket_that_fails_changes_nothing(bench: Bench, bucket: SimulatedBucket, fault: str) -> None:
    ids = await filled(bench)
    before = large(bench)
    bucket.room, bucket.refused = (1000, "") if fault == "full" else (None, "403 no permission")
    with pytest.raises(BackupUnreachable):
        await mover_of(bench).move(TARGET, URL)
    assert large(bench) == before
    assert await states(bench, ids) == EXPECTED


async def test_a_chunk_that_is_erased_while_it_is_put_stays_erased(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    gone = next(iter(large(bench)))

    async def erase(at: str) -> None:
        if at.startswith("after put"):
            bench.node._commit.write({gone: None})

    bucket.at = erase
    mover = mover_of(bench)
    assert await mover.move(TARGET, URL) == 0
    assert bench.storage.get(gone) is None
    assert stubs(bench) == {}
    await mover.tidy()
    assert bucket.names("tiers/") == []


async def test_a_bucket_that_is_away_gives_an_error_that_can_be_tried_again(bench: Bench, bucket: SimulatedBucket) -> None:
    ids = await filled(bench)
    await mover_of(bench).move(TARGET, URL)
    before = dict(bench.storage.scan(b"O", b"P"))
    bucket.refused = "503 away"
    with pytest.raises(Cold, match="thread 'a' of space 'crew' has chunks in the object store"):
        await states(bench, ids)
    assert dict(bench.storage.scan(b"O", b"P")) == before
    bucket.refused = ""
    assert await states(bench, ids) == EXPECTED


@pytest.mark.parametrize("what", ["missing", "altered", "another"])
async def test_a_pack_that_is_not_what_was_put_is_never_shown(bench: Bench, bucket: SimulatedBucket, what: str) -> None:
    ids = await filled(bench)
    await mover_of(bench).move(TARGET, URL)
    for name in bucket.names("tiers/"):
        if what == "missing":
            del bucket.objects[name]
        else:
            content = bucket.objects[name]
            bucket.objects[name] = content[:100] + b"!" + content[101:] if what == "altered" else b"of another cluster"
    with pytest.raises(Cold if what == "missing" else StoreCorrupt):
        await states(bench, ids)
    assert len(stubs(bench)) > 0
    assert bench.node._database.chunks.failed > 0


async def test_readers_of_one_pack_fetch_it_once(bench: Bench, bucket: SimulatedBucket) -> None:
    ids = await filled(bench)
    await mover_of(bench).move(TARGET, URL)
    gets = 0
    get = bucket.get

    async def counted(name: str, start: int = 0, stop: int | None = None, /) -> bytes | None:
        nonlocal gets
        gets += 1
        await asyncio.sleep(1)
        return await get(name, start, stop)

    bucket.get = counted  # type: ignore[method-assign]
    forget(bench)
    await asyncio.gather(*(bench.space.thread("a").load(id) for id in ids))
    assert gets == len(bucket.names("tiers/"))


async def test_a_reader_that_waits_too_long_is_told(bench: Bench, bucket: SimulatedBucket) -> None:
    ids = await filled(bench)
    await mover_of(bench).move(TARGET, URL)
    get = bucket.get

    async def slow(name: str, start: int = 0, stop: int | None = None, /) -> bytes | None:
        await asyncio.sleep(45)
        return await get(name, start, stop)

    bucket.get = slow  # type: ignore[method-assign]
    with pytest.raises(Cold, match="still being read"):
        await states(bench, ids[:1])
    assert await states(bench, ids[:1]) == EXPECTED[:1]


async def test_a_deleted_thread_leaves_the_bucket(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    mover = mover_of(bench)
    await mover.move(TARGET, URL)
    await bench.space.thread("a").delete()
    await asyncio.sleep(120)  # Until it was swept.
    await mover.tidy()
    assert bucket.names("tiers/") == []
    assert states_of_packs(bench) == []


async def test_a_pruned_checkpoint_leaves_the_bucket_and_the_rest_stays(bench: Bench, bucket: SimulatedBucket) -> None:
    ids = await filled(bench)
    mover = mover_of(bench)
    await mover.move(TARGET, URL)
    old = bucket.names("tiers/")
    await bench.space.thread("a").prune(keep_last=2)
    await asyncio.sleep(120)  # Until it was swept.
    await mover.tidy()
    await mover.tidy()
    assert not set(old) & set(bucket.names("tiers/"))
    assert await states(bench, ids[-2:]) == EXPECTED[-2:]


async def test_a_pack_that_came_back_is_deleted_once_that_is_durable(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    mover = mover_of(bench)
    await mover.move(TARGET, URL)
    await bench.node._commit.wait_durable(bench.node._commit.written)
    bench.simulated.hold_syncs()
    assert await bench.node._database.chunks.bring_back(TARGET, [key[len(OF) :] for key in stubs(bench)])
    assert set(states_of_packs(bench)) == {GOING}
    tidying = asyncio.ensure_future(mover.tidy())
    await asyncio.sleep(5)
    left = bench.storage.left_by_crash(0)
    assert any(cold.stub_of(key, value) for key, value in left.scan(OF, OF + b"\xff"))
    assert bucket.names("tiers/") != []
    bench.simulated.release_syncs()
    assert await tidying == {}
    assert bucket.names("tiers/") == []


async def test_a_copy_deletes_nothing_of_its_original(bench: Bench, bucket: SimulatedBucket) -> None:
    ids = await filled(bench)
    await mover_of(bench).move(TARGET, URL)
    names = bucket.names("tiers/")
    *_, stored = next(cold.records(bench.storage))
    assert unpacked(stored).state == THERE
    bench.node._context.incarnation.node = type(bench.node._context.incarnation.node)(b"another directory")
    assert await states(bench, ids) == EXPECTED
    assert await mover_of(bench).tidy() == {}
    assert bucket.names("tiers/") == names


async def test_quotas_count_what_is_away(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    await bench.node._usage.ready("crew")
    before = bench.node._usage.of("crew").bytes
    await mover_of(bench).move(TARGET, URL)
    assert bench.node._usage.of("crew").bytes == before


async def test_a_directory_with_cold_threads_is_sound(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    await filled(bench, "b")
    await mover_of(bench).move(TARGET, URL)
    report = verify(bench.storage, config=Config())
    assert report.sound, report.problems


async def test_rows_erased_during_a_fetch_stay_erased(bench: Bench, bucket: SimulatedBucket) -> None:
    ids = await filled(bench)
    await mover_of(bench).move(TARGET, URL)
    gone = [key for key in stubs(bench) if key[len(OF) :][:1] == b"V"]  # Of the file; the checkpoints stay.
    get = bucket.get

    async def erase(name: str, start: int = 0, stop: int | None = None, /) -> bytes | None:
        bench.node._commit.write(dict.fromkeys(gone))
        return await get(name, start, stop)

    bucket.get = erase  # type: ignore[method-assign]
    assert gone
    assert await states(bench, ids) == EXPECTED
    assert not any(bench.storage.get(key) for key in gone)


async def test_small_rows_stay(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    rows = dict(bench.storage.scan(OF, OF + b"\xff"))
    small = {key: value for key, value in rows.items() if len(value) <= cold.NODE_BYTES}
    assert any(key[len(OF) :].startswith(b"D") for key in small)
    await mover_of(bench).move(TARGET, URL)
    assert small.items() <= dict(bench.storage.scan(OF, OF + b"\xff")).items()


async def test_a_thread_with_little_stays(bench: Bench, bucket: SimulatedBucket) -> None:
    await bench.space.thread("a").save({"text": "x" * 30_000})
    assert await mover_of(bench).move(TARGET, URL) == 0
    assert bucket.objects == {}


async def test_swept_chunks_leave_the_bucket(bench: Bench, bucket: SimulatedBucket) -> None:
    """Nothing is written to the thread besides."""
    await filled(bench)
    mover = mover_of(bench)
    await mover.move(TARGET, URL)
    await mover.tidy()
    bench.node._commit.write(dict.fromkeys(stubs(bench)))  # As a sweep does.
    await mover.tidy()
    assert bucket.names("tiers/") != []
    bench.simulated.now_ms += int(LOOK_AGAIN_S * 1000)
    await mover.tidy()
    assert bucket.names("tiers/") == []


async def test_so_many_packs_are_in_memory_at_most(
    bench: Bench, bucket: SimulatedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await filled(bench)
    with altered(pack_bytes=70_000):
        await mover_of(bench).move(TARGET, URL)
    assert len(bucket.names("tiers/")) > FETCHES_MAX + 2
    now = most = 0
    thaw = Chunks._thaw

    async def counted(self: Chunks, of: bytes, pack: bytes, key: bytes) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        try:
            await thaw(self, of, pack, key)
        finally:
            now -= 1

    monkeypatch.setattr(Chunks, "_thaw", counted)
    chunks = bench.node._database.chunks
    assert await chunks.bring_back(TARGET, [key[len(OF) :] for key in stubs(bench)])
    assert most == FETCHES_MAX
    assert await states(bench, ids) == EXPECTED


async def test_a_fetch_that_hangs_holds_nobody_up_for_ever(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    with altered(pack_bytes=70_000):
        await mover_of(bench).move(TARGET, URL)

    async def never(name: str, start: int = 0, stop: int | None = None, /) -> bytes | None:
        await asyncio.sleep(3600)
        return None

    bucket.get = never  # type: ignore[method-assign]
    began = asyncio.get_running_loop().time()
    with pytest.raises(Cold):
        await bench.node._database.chunks.bring_back(TARGET, [key[len(OF) :] for key in stubs(bench)])
    assert asyncio.get_running_loop().time() - began <= 2 * WAIT_S
    warm = bench.space.thread("warm")
    await warm.save({"text": "here"})
    assert (await warm.load()).state == {"text": "here"}


@pytest.mark.parametrize("why", ["503 away", "403 the credentials have expired", "404 no such bucket"])
async def test_without_a_bucket_warm_threads_are_as_ever(bench: Bench, bucket: SimulatedBucket, why: str) -> None:
    ids = await filled(bench)
    await mover_of(bench).move(TARGET, URL)
    bucket.refused = why
    with pytest.raises(Cold, match=why) as told:
        await states(bench, ids)
    assert isinstance(told.value, Retryable)
    assert told.value.written == "no"
    warm = bench.space.thread("warm")
    await warm.save({"text": "x" * 30_000})
    assert (await warm.load()).state == {"text": "x" * 30_000}
    assert [name async for name in bench.space.threads()] == ["a", "warm"]
    bucket.refused = ""
    assert await states(bench, ids) == EXPECTED


async def test_a_pack_that_was_altered_holds_up_no_other(bench: Bench, bucket: SimulatedBucket) -> None:
    await filled(bench)
    mover = mover_of(bench)
    with altered(pack_bytes=400_000):
        await mover.move(TARGET, URL)
    spoilt, gone = bucket.names("tiers/")[:2]
    bucket.objects[spoilt] = b"altered"
    packs: dict[str, list[bytes]] = {}
    for key, stub in stubs(bench).items():
        packs.setdefault(stub.pack.hex(), []).append(key)
    bench.node._commit.write({packs[spoilt[-64:]][0]: None, **dict.fromkeys(packs[gone[-64:]])})
    assert "was altered" in (await mover.tidy())["crew"]
    assert gone not in bucket.objects
