"""Files that stay in the object store: they go as soon as they are put, are read through the node, and are never lost."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from shoal.errors import BackupUnreachable, Cold, InvalidInput, StoreCorrupt
from shoal.kinds.file.flows import Upload
from shoal.kinds.file.state import CHUNK
from shoal.kinds.tiering import state
from shoal.kinds.tiering.state import Rule
from shoal.node.tiering import chunks
from shoal.node.tiering.mover import LOOK_AGAIN_S
from shoal.node.tiering.packs import OpenedPack
from shoal.storage import cold
from simulation.world.bucket import SimulatedBucket
from tests.node.conftest import Bench
from tests.node.tiering.conftest import EXPECTED, OF, URL, crashed, filled, large, states, stubs

SIZE = 6_000_000


def content(seed: int = 5, size: int = SIZE) -> bytes:
    return Random(seed).randbytes(size)


def chunks_here(bench: Bench) -> int:
    """The bytes of files that this node has on its disk."""
    return sum(len(value) for key, value in large(bench).items() if key[len(OF) :].startswith(CHUNK))


async def put(bench: Bench, seed: int = 5, name: str = "a.bin", size: int = SIZE) -> bytes:
    made = content(seed, size)
    await bench.space.thread("a").put_file(name, made)
    return made


async def read(bench: Bench, name: str = "a.bin", start: int = 0, size: int = -1) -> bytes:
    async with bench.space.thread("a").open_file(name) as stream:
        await stream.seek(start)
        return await stream.read(size)


async def test_files_go_at_once_and_stay_when_they_are_read(bench: Bench, bucket: SimulatedBucket) -> None:
    view = await bench.space.tiering.set(URL, files=True)
    assert (view.files, view.idle_ms) == (True, 0)
    made = await put(bench)
    view = await bench.space.tiering.run()
    assert view.away_bytes > SIZE - 64 * 1024
    assert chunks_here(bench) < 64 * 1024
    assert await read(bench) == made
    assert await read(bench, start=2_000_000, size=1000) == made[2_000_000:2_001_000]
    assert chunks_here(bench) < 64 * 1024
    assert stubs(bench)


async def test_states_stay_here_without_a_time(bench: Bench, bucket: SimulatedBucket) -> None:
    ids = await filled(bench)
    await bench.space.tiering.set(URL, files=True)
    bench.simulated.now_ms += 365 * 24 * 3_600_000
    await bench.space.tiering.run()
    assert all(key[len(OF) :].startswith(CHUNK) for key in stubs(bench))
    assert await states(bench, ids) == EXPECTED


async def test_a_part_of_a_file_is_a_bounded_fetch(bench: Bench, bucket: SimulatedBucket) -> None:
    await bench.space.tiering.set(URL, files=True)
    made = await put(bench)
    await bench.space.tiering.run()
    before = bench.node._database.chunks.fetched_bytes
    assert await read(bench, start=3_000_000, size=10) == made[3_000_000:3_000_010]
    assert 0 < bench.node._database.chunks.fetched_bytes - before <= 3 * 4 * 1024 * 1024


async def test_a_file_that_is_deleted_leaves_the_bucket(bench: Bench, bucket: SimulatedBucket) -> None:
    await bench.space.tiering.set(URL, files=True)
    await put(bench)
    await bench.space.tiering.run()
    assert bucket.names("tiers/")
    await bench.space.thread("a").delete_file("a.bin")
    await asyncio.sleep(120)  # Until it was swept.
    bench.simulated.now_ms += int(LOOK_AGAIN_S * 1000)
    await bench.space.tiering.run()
    await bench.space.tiering.run()
    assert bucket.names("tiers/") == []


@pytest.mark.parametrize("fault", ["full", "refused"])
async def test_a_store_that_fails_loses_no_file(bench: Bench, bucket: SimulatedBucket, fault: str) -> None:
    await bench.space.tiering.set(URL, files=True)
    made = await put(bench)
    bucket.room, bucket.refused = (1000, "") if fault == "full" else (None, "403 no permission")
    with pytest.raises(BackupUnreachable):
        await bench.space.tiering.run()
    assert chunks_here(bench) == SIZE
    assert await read(bench) == made
    bucket.room, bucket.refused = None, ""
    await bench.space.tiering.run()
    bench.node._database.chunks._held.clear()
    bucket.refused = "403 no permission"
    with pytest.raises(Cold, match="object store"):
        await read(bench)
    bucket.refused = ""
    assert await read(bench) == made


async def test_a_power_cut_keeps_every_file_somewhere(bench: Bench, bucket: SimulatedBucket) -> None:
    await bench.space.tiering.set(URL, files=True)
    made = await put(bench)
    await bench.space.tiering.run()
    again = crashed(bench)
    try:
        again.simulated.bucket = bucket
        assert await read(again) == made
    finally:
        await again.node.stop()


async def test_chunks_of_an_upload_wait_for_their_file(bench: Bench, bucket: SimulatedBucket) -> None:
    await bench.space.tiering.set(URL, files=True)
    made = content()
    upload = Upload(bench.space._connection, "crew", "a")
    await upload.feed(made)
    await bench.space.tiering.run()
    assert stubs(bench) == {}
    await upload.finish("a.bin", "application/octet-stream")
    await bench.space.tiering.run()
    assert stubs(bench)
    assert await read(bench) == made


async def test_a_second_version_is_built_upon_chunks_that_are_away(bench: Bench, bucket: SimulatedBucket) -> None:
    await bench.space.tiering.set(URL, files=True)
    made = await put(bench)
    await bench.space.tiering.run()
    changed = made[:2_000_000] + b"changed" + made[2_000_000:]
    await bench.space.thread("a").put_file("a.bin", changed)
    await bench.space.tiering.run()
    assert await read(bench) == changed


@pytest.fixture
def one_pack(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pack is in memory at a time; who fetches on and on fails, and does not run for ever."""
    monkeypatch.setattr(chunks, "HELD_BYTES_MAX", 1)
    fetch, fetched = bench.node._database.chunks._fetch, 0

    async def counted(*what: bytes) -> OpenedPack:
        nonlocal fetched
        fetched += 1
        assert fetched < 50, "the same packs are fetched again and again"
        return await fetch(*what)

    monkeypatch.setattr(bench.node._database.chunks, "_fetch", counted)


@pytest.mark.usefixtures("one_pack")
async def test_a_file_above_what_is_held_is_one_fetch_a_pack(bench: Bench, bucket: SimulatedBucket) -> None:
    await bench.space.tiering.set(URL, files=True)
    made = await put(bench)
    packs = (await bench.space.tiering.run()).packs
    assert packs > 2
    assert await read(bench) == made
    assert bench.node._database.chunks.fetched == packs


@pytest.mark.usefixtures("one_pack")
async def test_chunks_of_several_packs_are_read_by_one_pack(bench: Bench, bucket: SimulatedBucket) -> None:
    await bench.space.tiering.set(URL, files=True)
    one, other = await put(bench, 5, "a.bin"), await put(bench, 6, "b.bin")
    await bench.space.tiering.run()
    mixed = b"".join(each[at : at + 1_500_000] for at in range(0, SIZE, 1_500_000) for each in (one, other))
    await bench.space.thread("a").put_file("mixed.bin", mixed)
    await bench.space.tiering.run()
    assert await read(bench, "mixed.bin") == mixed


@pytest.mark.usefixtures("one_pack")
async def test_a_version_of_a_file_above_what_is_held_in_memory(bench: Bench, bucket: SimulatedBucket) -> None:
    """Its proof reads each pack once, although none of them stays."""
    await bench.space.tiering.set(URL, files=True)
    made = await put(bench)
    packs = (await bench.space.tiering.run()).packs
    changed = made[:2_000_000] + b"changed" + made[2_000_000:]
    await bench.space.thread("a").put_file("a.bin", changed)
    assert bench.node._database.chunks.fetched <= packs
    assert await read(bench) == changed


async def test_a_version_is_put_while_the_store_is_away(bench: Bench, bucket: SimulatedBucket) -> None:
    """The chunks that it shares with a file that is away are sent once more."""
    await bench.space.tiering.set(URL, files=True)
    made = await put(bench)
    await bench.space.tiering.run()
    bench.node._database.chunks._held.clear()
    bucket.refused = "403 no permission"
    changed = made[:2_000_000] + b"changed" + made[2_000_000:]
    await bench.space.thread("a").put_file("b.bin", changed)
    assert await read(bench, "b.bin") == changed
    bucket.refused = ""
    for _ in range(3):
        await bench.space.tiering.run()
    assert chunks_here(bench) < 64 * 1024
    assert (await read(bench), await read(bench, "b.bin")) == (made, changed)


async def test_a_version_is_put_although_the_store_lost_what_it_shares(bench: Bench, bucket: SimulatedBucket) -> None:
    await bench.space.tiering.set(URL, files=True)
    made = await put(bench)
    await bench.space.tiering.run()
    bench.node._database.chunks._held.clear()
    bucket.objects.clear()
    await bench.space.thread("a").put_file("b.bin", made + b"more")
    assert await read(bench, "b.bin") == made + b"more"


async def test_an_altered_pack_is_never_shown(bench: Bench, bucket: SimulatedBucket) -> None:
    await bench.space.tiering.set(URL, files=True)
    await put(bench)
    await bench.space.tiering.run()
    for name in list(bucket.objects):
        bucket.objects[name] = bucket.objects[name][:-10] + b"x" * 10
    with pytest.raises(StoreCorrupt):
        await read(bench)


async def test_neither_a_time_nor_files_is_refused(bench: Bench, bucket: SimulatedBucket) -> None:
    with pytest.raises(InvalidInput, match="files alone"):
        await bench.space.tiering.set(URL)


def test_a_rule_without_files_is_recorded_as_before() -> None:
    plain = Rule("crew", URL, 60_000)
    assert b"files" not in state.packed(plain)
    for rule in (plain, plain._replace(files=True)):
        assert state.read(state.key_of("crew"), [(state.packed(rule), 0)]) == rule


def test_a_chunk_of_a_file_is_told_from_one_of_a_state() -> None:
    digest = b"d" * 32
    assert cold.is_of_file(b"Vc" + digest)
    assert cold.is_of_file(b"\x00\x00\x00\x00\x01Vc" + digest)
    assert not cold.is_of_file(b"D" + digest)
