"""A bucket that several nodes extend at once, and that is not what it should be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.backup import bucket as module
from shoal.backup.bucket import Bucket, read
from shoal.backup.format import (
    MANIFESTS,
    SEGMENTS,
    WHOLE_EVERY,
    Catalogue,
    Entry,
    Manifest,
    Pack,
    Packing,
    encode,
    manifest_name,
)
from shoal.errors import BackupConflict, BackupDamaged, BackupUnreachable
from simulation.world.bucket import SimulatedBucket

CLUSTER = b"c" * 16
DAY_MS = 24 * 3600 * 1000


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


class Node:
    """One that ships packs of one operation."""

    def __init__(self, store: SimulatedBucket, name: bytes = b"n", *, cluster: bytes = CLUSTER, now: Any = None) -> None:
        self.bucket = Bucket(store, cluster=cluster, now=now or Clock())
        self.name = name
        self.sequence = 0

    async def put(self) -> Pack:
        self.sequence += 1
        packing = Packing(SEGMENTS)
        packing.add_operations(1, [Entry(self.name * 16, self.sequence, self.sequence, b"h" * 32, b"x")])
        pack, content = packing.finish(made_ms=1)
        await self.bucket.put(pack, content)
        return pack

    async def name_it(self, pack: Pack) -> Manifest | None:
        def made(_catalogue: Catalogue) -> Manifest:
            return msgspec.structs.replace(self.bucket.next(node=self.name, made_ms=1, through_ms=1), segments=[pack])

        return await self.bucket.commit(made)

    async def ship(self) -> Manifest | None:
        return await self.name_it(await self.put())


@pytest.fixture
def store() -> SimulatedBucket:
    return SimulatedBucket()


async def test_two_nodes_that_ship_at_once_spoil_nothing(store: SimulatedBucket) -> None:
    one, two = Node(store, b"1"), Node(store, b"2")
    await one.bucket.refresh()
    await two.bucket.refresh()
    for _ in range(5):
        packs = [await one.put(), await two.put()]
        assert await one.name_it(packs[0])
        assert await two.name_it(packs[1])
    assert len((await Bucket(store, now=Clock()).refresh()).segments) == 10
    assert len(store.names(MANIFESTS)) == 10


async def test_a_put_whose_answer_was_lost_is_this_nodes(store: SimulatedBucket) -> None:
    node = Node(store)
    await node.bucket.refresh()
    pack = await node.put()
    store.share, store.faults = 1.0, ("lost",)
    with pytest.raises(BackupUnreachable):
        await node.name_it(pack)
    store.share = 0.0
    assert await node.name_it(pack)
    assert len(store.names(MANIFESTS)) == 1


async def test_a_reader_begins_with_the_last_manifest_that_says_everything(store: SimulatedBucket) -> None:
    node = Node(store)
    await node.bucket.refresh()
    for _ in range(WHOLE_EVERY + 3):
        assert await node.ship()
    for number in range(1, WHOLE_EVERY + 1):
        del store.objects[manifest_name(number)]
    assert len((await Bucket(store, now=Clock()).refresh()).segments) == WHOLE_EVERY + 3


async def test_a_missing_manifest_is_told(store: SimulatedBucket) -> None:
    node = Node(store)
    await node.bucket.refresh()
    for _ in range(4):
        await node.ship()
    del store.objects[manifest_name(2)]
    with pytest.raises(BackupDamaged, match="manifest 2 is missing"):
        await Bucket(store, now=Clock()).refresh()


async def test_a_forged_manifest_is_told(store: SimulatedBucket) -> None:
    node = Node(store)
    await node.bucket.refresh()
    for _ in range(3):
        await node.ship()
    forged = msgspec.msgpack.decode(store.objects[manifest_name(2)], type=Manifest)
    store.objects[manifest_name(2)] = encode(msgspec.structs.replace(forged, segments=[]))
    with pytest.raises(BackupDamaged, match="manifest 3 does not follow"):
        await Bucket(store, now=Clock()).refresh()


async def test_the_backup_of_another_cluster_is_left_alone(store: SimulatedBucket) -> None:
    node = Node(store)
    await node.bucket.refresh()
    await node.ship()
    with pytest.raises(BackupConflict, match="another cluster"):
        await Node(store, cluster=b"d" * 16).bucket.refresh()
    assert len(store.names(MANIFESTS)) == 1


async def test_an_empty_place_holds_no_backup(store: SimulatedBucket) -> None:
    with pytest.raises(BackupDamaged, match="holds no backup"):
        await read(Bucket(store, now=Clock()))


async def test_a_pack_that_is_missing_altered_or_short_is_told(store: SimulatedBucket) -> None:
    node = Node(store)
    await node.bucket.refresh()
    pack = await node.put()
    content = store.objects[pack.name]
    [part] = await node.bucket.index(pack)
    assert await node.bucket.part(pack, part)
    store.objects[pack.name] = b"\xff" + content[1:]
    with pytest.raises(BackupDamaged, match="does not match its hash"):
        await node.bucket.whole(pack)
    with pytest.raises(BackupDamaged, match="does not match its hash"):
        await node.bucket.part(pack, part)
    store.objects[pack.name] = content[:-1]
    with pytest.raises(BackupDamaged, match="is shorter"):
        await node.bucket.whole(pack)
    del store.objects[pack.name]
    with pytest.raises(BackupDamaged, match="is missing"):
        await node.bucket.index(pack)


async def test_a_node_that_slept_reads_anew_before_it_puts() -> None:
    """The manifests after its last one were swept meanwhile, so the next number looks free."""
    store, clock = SimulatedBucket(), Clock()
    sleeper, worker = Node(store, b"s", now=clock), Node(store, b"w", now=clock)
    await sleeper.bucket.refresh()
    await sleeper.ship()
    await worker.bucket.refresh()
    for _ in range(3 * WHOLE_EVERY):
        await worker.ship()
    clock.s += module.TRUST_S + 1
    await worker.bucket.refresh()
    assert await worker.bucket.sweep(10 * DAY_MS)
    assert manifest_name(2) not in store.objects
    assert await sleeper.ship()
    assert manifest_name(2) not in store.objects
    assert len((await Bucket(store, now=clock).refresh()).segments) == 3 * WHOLE_EVERY + 2


async def test_only_old_orphans_are_swept() -> None:
    now_ms = 0
    store = SimulatedBucket(now_ms=lambda: now_ms)
    node = Node(store)
    await node.bucket.refresh()
    named = await node.put()
    await node.name_it(named)
    orphan = await node.put()
    assert await node.bucket.sweep(module.ORPHANS_KEEP_MS) == 0
    assert await node.bucket.sweep(module.ORPHANS_KEEP_MS + 1) == 1
    assert store.names(SEGMENTS) == [named.name]
    assert orphan.name not in store.objects


async def test_a_manifest_that_was_read_and_is_gone_is_told(store: SimulatedBucket) -> None:
    clock = Clock()
    node = Node(store, now=clock)
    await node.bucket.refresh()
    await node.ship()
    await node.ship()
    store.objects.clear()
    clock.s += module.TRUST_S + 1
    with pytest.raises(BackupDamaged, match="is gone"):
        await node.bucket.refresh()
