"""Restores into directories: what they refuse, what interrupts them, and what is said of a backup that is damaged."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import shoal
from shoal.backup import clouds
from shoal.backup.bucket import Bucket
from shoal.backup.format import BASES, SEGMENTS, VERIFIED, Entry, Manifest, Pack, Packing, encode, manifest_name, read_entries
from shoal.cluster.operation import partition_of
from shoal.config import Config
from shoal.errors import BackupDamaged, BackupUnreachable, InvalidInput, MomentMissing, StorageError
from shoal.node.backup import folding, restoring
from shoal.node.backup.restoring import verified
from shoal.node.incarnation import Incarnation
from shoal.storage.opening import open_storage
from simulation.bounds import altered
from simulation.world.bucket import SimulatedBucket
from simulation.world.environment import START_MS, SimulatedEnvironment
from tests.node.backup.conftest import declare, restore, rows_of, ship
from tests.node.backup.test_shipping import fill, truncate
from tests.node.conftest import Bench, Opener

CREW = partition_of("crew", "n")


@pytest.fixture
async def shipped(bench: Bench, bucket: SimulatedBucket) -> SimulatedBucket:
    """A bucket with operations and with rows."""
    await fill(bench)
    await truncate(bench)
    await fill(bench)
    await declare(bench, bucket)
    await ship(bench)
    await bench.space.counter("n").add(1)
    await ship(bench)
    assert bucket.names(BASES)
    return bucket


async def made(bucket: SimulatedBucket, directory: Path) -> folding.Restored:
    return await restoring.restore("s3://x", directory, open_store=lambda _: bucket)


async def counted(directory: Path) -> int:
    async with shoal.open(directory) as store:
        return await store.space("crew").counter("n").value()


@pytest.mark.real_time("it uses files and threads")
async def test_a_directory_is_made_that_opens(shipped: SimulatedBucket, tmp_path: Path) -> None:
    restored = await made(shipped, tmp_path / "new" / "state")
    assert restored.partitions > 1
    opened = open_storage(tmp_path / "new" / "state", config=Config(), now_ms=lambda: START_MS, entropy=os.urandom)
    assert not Incarnation(opened, os.urandom).copied
    opened.close()
    assert await counted(tmp_path / "new" / "state") == 11
    assert "restoring" not in os.listdir(tmp_path / "new" / "state")


async def test_a_restored_rule_waits_until_it_is_set_once_more(
    bench: Bench, bucket: SimulatedBucket, open_bench: Opener
) -> None:
    for thread in (bench.space.thread("a"), bench.space.thread("b")):
        for nth in range(3):
            await thread.save({"n": nth})
    await bench.space.retention.set(prefix="a", keep_last=2)
    await bench.space.retention.set(prefix="b", threads_older_than=timedelta(milliseconds=1), yes=True)
    await declare(bench, bucket)
    await ship(bench)
    new = open_bench((await restore(bucket)).storage, seed=5)
    new.simulated.now_ms = bench.simulated.now_ms + 60_000
    await new.node.service.keeper.look()
    assert [len([_ async for _ in new.space.thread(name).history()]) for name in "ab"] == [3, 3]
    view = await new.space.retention.get()
    assert [("restored" in rule.trouble) for rule in view.rules] == [True, True]
    await new.space.retention.set(prefix="a", keep_last=2)
    await new.node.service.keeper.look()
    assert [len([_ async for _ in new.space.thread(name).history()]) for name in "ab"] == [2, 3]
    assert [rule.prefix for rule in (await new.space.retention.get()).rules if rule.trouble] == ["b"]


@pytest.mark.real_time("it uses files and threads")
@pytest.mark.parametrize("name", ["FORMAT", "notes.txt"])
async def test_a_directory_that_holds_something_is_refused(shipped: SimulatedBucket, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(InvalidInput, match="is not empty"):
        await made(shipped, tmp_path)
    assert os.listdir(tmp_path) == [name]
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidInput, match="is no directory"):
        await made(shipped, tmp_path / "file")
    with pytest.raises(InvalidInput, match=r"cannot be made, or not be written: .* Nothing was written"):
        await made(shipped, tmp_path / "file" / "below")


@pytest.mark.real_time("it uses files and threads")
@pytest.mark.real_time("it uses files and threads")
async def test_a_moment_in_the_future_makes_no_directory(shipped: SimulatedBucket, tmp_path: Path) -> None:
    tomorrow_ms = round(datetime.now(UTC).timestamp() * 1000) + 86_400_000
    with pytest.raises(MomentMissing, match="has not come yet"):
        await restoring.restore("s3://x", tmp_path / "state", moment=tomorrow_ms, open_store=lambda _: shipped)
    assert not (tmp_path / "state").exists()


async def test_an_empty_volume_is_used_as_it_is(shipped: SimulatedBucket, tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    await made(shipped, tmp_path)
    assert await counted(tmp_path) == 11


class Killed(BaseException):
    """The process ended here, without a clean-up."""


@pytest.mark.real_time("it uses files and threads")
async def test_a_restore_that_was_killed_at_any_step_is_mended(
    shipped: SimulatedBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps that change the directory: each rename, and what came before them."""
    rename, rmtree = os.rename, shutil.rmtree
    for nth in range(1, 9):
        left, directory = nth, tmp_path / str(nth)

        def renames(source: Path, target: Path) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            rename(source, target)

        monkeypatch.setattr(os, "rename", renames)
        monkeypatch.setattr(shutil, "rmtree", _none if left else rmtree)
        is_killed = False
        try:
            await made(shipped, directory)
        except Killed:
            is_killed = True
        monkeypatch.setattr(os, "rename", rename)
        monkeypatch.setattr(shutil, "rmtree", rmtree)
        if not is_killed:
            assert nth > 3
            return
        assert not (directory / "FORMAT").exists()
        with pytest.raises(StorageError):
            async with shoal.open(directory):
                pass
        await made(shipped, directory)
        assert await counted(directory) == 11


def _none(*_: object, **__: object) -> None:
    """Nothing is removed: the process was killed."""


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from shoal.backup import clouds
from shoal.node.backup import folding, restoring

nth, url, directory = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
get, rename = clouds.CloudStore.get, os.rename

def step():
    global nth
    nth -= 1
    if nth == 0:
        os.kill(os.getpid(), signal.SIGKILL)

async def counted(self, name, *span):
    if not name.startswith("manifests/"):
        step()
    return await get(self, name, *span)

def moved(*paths):
    step()
    rename(*paths)

clouds.CloudStore.get, os.rename = counted, moved
folding.AT_ONCE = 1
asyncio.run(restoring.restore(url, directory))
"""


@pytest.mark.real_time("it uses files and processes")
async def test_a_killed_restore_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL at each read of the bucket and each rename: the next one goes on there, and reads less."""
    url = f"file://{tmp_path}/bucket"
    with altered(pack_bytes=3000, base_after_bytes=3000):
        async with shoal.open(tmp_path / "source") as store:
            await store.backup.init(url)
            for nth in range(8):
                for name in "abcn":
                    await store.space("crew").counter(name).add(1)
                    await store.space("crew").thread(name).save({"text": "x" * 900, "nth": nth}, overwrite=True)
                while (await store.backup.status()).state != "current":
                    await asyncio.sleep(0.02)
    reads = 0
    get = clouds.CloudStore.get

    async def counted(self: clouds.CloudStore, name: str, *span: int) -> bytes | None:
        nonlocal reads
        reads += not name.startswith("manifests/")
        return await get(self, name, *span)

    monkeypatch.setattr(clouds.CloudStore, "get", counted)
    await restoring.restore(url, tmp_path / "all")
    whole = reads
    assert whole > 10  # Bases among them, and operations after these.
    for nth in range(1, whole + 5, 2):
        directory = tmp_path / f"killed{nth}"
        made = subprocess.run([sys.executable, "-c", KILLED, str(nth), url, str(directory)], check=False)
        assert made.returncode == -9, nth
        reads = 0
        await restoring.restore(url, directory)
        assert reads == max(0, whole - nth + 1), f"killed at step {nth}"
        async with shoal.open(directory) as store:
            for name in "abcn":
                assert await store.space("crew").counter(name).value() == 8
                assert (await store.space("crew").thread(name).load()).state["nth"] == 7
        assert "restoring" not in os.listdir(directory)


@pytest.mark.real_time("it uses files and threads")
async def test_a_restore_that_cannot_read_goes_on_later(shipped: SimulatedBucket, tmp_path: Path) -> None:
    """Credentials expire in the middle; of another moment nothing is used."""
    get, left = shipped.get, 4

    async def expiring(*arguments: Any) -> bytes | None:
        nonlocal left
        left -= 1
        if left < 0:
            raise BackupUnreachable("the backup cannot be read: ExpiredToken.")
        return await get(*arguments)

    shipped.get = expiring  # type: ignore[method-assign]
    with pytest.raises(BackupUnreachable, match="the same command goes on"):
        await made(shipped, tmp_path / "state")
    assert os.listdir(tmp_path / "state") == ["restoring"]
    shipped.get = get  # type: ignore[method-assign]
    await made(shipped, tmp_path / "state")
    assert await counted(tmp_path / "state") == 11


@pytest.mark.real_time("it uses files and threads")
async def test_a_restore_that_goes_on_promises_no_more_than_it_began_with(
    bench: Bench, shipped: SimulatedBucket, tmp_path: Path
) -> None:
    """What was shipped meanwhile is not in it, and it does not say so."""
    whole = await made(shipped, tmp_path / "whole")
    get, left = shipped.get, 4

    async def expiring(*arguments: Any) -> bytes | None:
        nonlocal left
        left -= 1
        if left < 0:
            raise BackupUnreachable("the backup cannot be read: ExpiredToken.")
        return await get(*arguments)

    shipped.get = expiring  # type: ignore[method-assign]
    with pytest.raises(BackupUnreachable):
        await made(shipped, tmp_path / "state")
    shipped.get = get  # type: ignore[method-assign]
    bench.simulated.now_ms += 3_600_000
    await bench.space.counter("n").add(1)
    await ship(bench)
    assert (await made(shipped, tmp_path / "newest")).through_ms > whole.through_ms
    assert (await made(shipped, tmp_path / "state")).through_ms == whole.through_ms
    assert await counted(tmp_path / "state") == 11


@pytest.mark.real_time("it uses files and threads")
async def test_a_restore_that_fails_leaves_nothing(shipped: SimulatedBucket, tmp_path: Path) -> None:
    del shipped.objects[shipped.names(SEGMENTS)[0]]
    with pytest.raises(BackupDamaged, match="is missing"):
        await made(shipped, tmp_path / "state")
    assert os.listdir(tmp_path / "state") == []


async def test_some_partitions_are_restored_alone(bench: Bench, shipped: SimulatedBucket) -> None:
    only = await restore(shipped, partitions=[CREW])
    whole = rows_of(bench.storage)
    number = CREW.to_bytes(2, "big")
    expected = {key: value for key, value in whole.items() if key[1:3] == number and key[:1] not in (b"C", b"T")}
    found = {key: value for key, value in rows_of(only.storage).items() if key[:1] not in (b"C", b"T")}
    assert found == expected


# ── what is not as it was ─────────────────────────────────────────────────────


async def test_any_altered_byte_is_found(shipped: SimulatedBucket) -> None:
    for name in [*shipped.names(SEGMENTS), *shipped.names(BASES)]:
        content = shipped.objects[name]
        for at in (0, len(content) // 2, len(content) - 1):
            shipped.objects[name] = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
            with pytest.raises(BackupDamaged, match="does not match its hash"):
                await restore(shipped)
        del shipped.objects[name]
        with pytest.raises(BackupDamaged, match="is missing"):
            await restore(shipped)
        shipped.objects[name] = content
    await restore(shipped)


def forge(bucket: SimulatedBucket, change: Callable[[Manifest, Pack, list[Entry]], list[Entry]]) -> None:
    """Replace the last segment and its manifest by ones of somebody who can write to the bucket, hashes and all."""
    number = len(bucket.names("manifests/"))
    manifest = msgspec.msgpack.decode(bucket.objects[manifest_name(number)], type=Manifest)
    [pack] = manifest.segments
    content = bucket.objects[pack.name]
    [part] = msgspec.msgpack.decode(content[pack.index :])
    entries = read_entries(content[part[1] : part[1] + part[2]], "")
    packing = Packing(SEGMENTS)
    packing.add_operations(part[0], change(manifest, pack, entries))
    forged, packed = packing.finish(made_ms=1)
    bucket.objects[forged.name] = packed
    bucket.objects[manifest_name(number)] = encode(msgspec.structs.replace(manifest, segments=[forged]))


async def test_a_forged_operation_is_refused(shipped: SimulatedBucket) -> None:
    def alter(_manifest: Manifest, _pack: Pack, entries: list[Entry]) -> list[Entry]:
        packed, beside = msgspec.msgpack.decode(entries[0].content)
        return [msgspec.structs.replace(entries[0], content=encode((packed.replace(b"n", b"m"), beside)))]

    forge(shipped, alter)
    with pytest.raises(BackupDamaged, match=r"chain hash|cannot be"):
        await restore(shipped)


async def test_a_missing_operation_is_told_by_name(bench: Bench, shipped: SimulatedBucket) -> None:
    await bench.space.counter("n").add(1)
    await bench.space.counter("n").add(1)
    await ship(bench)
    forge(shipped, lambda _manifest, _pack, entries: entries[1:])
    with pytest.raises(BackupDamaged, match=f"an operation of partition {CREW} is missing"):
        await restore(shipped)


async def test_an_operation_with_another_time_is_refused(shipped: SimulatedBucket) -> None:
    def later(_manifest: Manifest, _pack: Pack, entries: list[Entry]) -> list[Entry]:
        return [msgspec.structs.replace(entries[0], hlc=entries[0].hlc + 1)]

    forge(shipped, later)
    with pytest.raises(BackupDamaged, match="another time"):
        await restore(shipped)


async def test_a_base_that_lacks_rows_is_refused(bench: Bench, shipped: SimulatedBucket) -> None:
    manifest = msgspec.msgpack.decode(shipped.objects[manifest_name(1)], type=Manifest)
    bases = [msgspec.structs.replace(base, vector=b"o" * 16 + (1).to_bytes(8, "big")) for base in manifest.bases]
    for number in range(2, len(shipped.names("manifests/")) + 1):
        del shipped.objects[manifest_name(number)]
    shipped.objects[manifest_name(1)] = encode(msgspec.structs.replace(manifest, bases=bases))
    with pytest.raises(BackupDamaged, match="other operations than its manifest says"):
        await restore(shipped)


# ── verification ──────────────────────────────────────────────────────────────


@pytest.mark.real_time("it uses files and threads")
async def test_a_sound_backup_is_noted_as_verified(bench: Bench, shipped: SimulatedBucket, tmp_path: Path) -> None:
    reading = Bucket(shipped, now=lambda: 0.0)
    outcome = await verified(reading, tmp_path / "state", config=Config(), environment=SimulatedEnvironment(5).environment)
    assert outcome.report is not None
    assert outcome.report.sound
    assert shipped.names(VERIFIED) == [f"{VERIFIED}{START_MS:015d}"]
    bench.simulated.now_ms += 3_600_000
    await ship(bench)
    assert (await bench.store.backup.status()).verified_ms == START_MS


@pytest.mark.real_time("it uses files and threads")
async def test_damage_that_no_restore_needs_is_found_all_the_same(
    bench: Bench, bucket: SimulatedBucket, tmp_path: Path
) -> None:
    await declare(bench, bucket)
    for _ in range(2):
        await fill(bench)
        await truncate(bench)
        await ship(bench)
    first = msgspec.msgpack.decode(bucket.objects[manifest_name(1)], type=Manifest).packs[0].name
    bucket.objects[first] = b"damaged"
    await restore(bucket)
    with pytest.raises(BackupDamaged):
        await verified(
            Bucket(bucket, now=lambda: 0.0),
            tmp_path / "state",
            config=Config(),
            environment=SimulatedEnvironment(5).environment,
        )
    assert bucket.names(VERIFIED) == []
