"""What is left of retired origins is forgotten, and all that would be misread without it goes too."""

from __future__ import annotations

from shoal.cluster.operation import Tip, partition_of
from shoal.cluster.truncation import Holding
from shoal.config import Config
from shoal.crdt.dot import HORIZON, Dot, HybridClock, Origin, VersionVector
from shoal.node.collection.retiring import Forgetting
from shoal.node.partitions import Partition, Partitions
from shoal.node.retired import Retirement, Summary
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from tests.node.collection.test_retiring import append, opened, reopened, retired, same
from tests.node.conftest import Opener

_PEER, _OTHER = b"p" * 16, b"q" * 16
_NEVER_HELD = Origin(b"n" * 16)


async def test_no_mark_in_storage_names_an_origin_that_is_forgotten(open_bench: Opener) -> None:
    """A node that retires and forgets between two records of its marks would be told of the origin as of one it never had."""
    bench = await opened(open_bench, 20, append)
    number = partition_of("crew", "t")
    known = retired(bench.storage)
    assert len(known) > 10
    bench = await reopened(bench.storage, open_bench, 99, retired_origins_max=4)
    for peer in (_PEER, _OTHER):
        named = {keys.entry(peer, number, origin): bytes(8) for origin in (*known, _NEVER_HELD)}
        bench.storage.write({keys.address(peer): b"p:1", **named})
    await append(bench, 99)
    await bench.node.stop()
    storage = same(bench.storage)
    left = set(retired(storage))
    assert 0 < len(left) < len(known)
    for peer in (_PEER, _OTHER):
        marked = {Origin(key[-16:]) for key, _ in storage.scan(*keys.entries(peer))}
        assert _NEVER_HELD in marked
        assert marked & set(known) == left & set(known)


DAY_MS = 24 * 3_600_000


def partition_with(*ages: int, is_logged: bool = False) -> tuple[Forgetting, Partition, list[Origin]]:
    """A partition whose origins were retired at these times, in the order of their names."""
    origins = [Origin(bytes([97 + nth]) * 16) for nth in range(len(ages))]
    dot = Dot(Origin(b"r" * 16), 1)
    rows = {
        keys.retired(3, origin): Retirement(Tip(1, 1, bytes(32)), wall_ms, wall_ms, is_logged).pack()
        for origin, wall_ms in zip(origins, ages, strict=True)
    }
    summary = Summary(max(ages), remembered=len(ages), oldest_ms=min(ages), floor=VersionVector.of(dot))
    rows |= {keys.retired(3, HORIZON): summary.pack(), keys.vector(3, dot.origin): Tip(1, 1, bytes(32)).pack()}
    storage = MemoryStorage(rows)
    forgetting = Forgetting(storage, Config(forget_after_s=DAY_MS / 1000, retired_origins_max=3))
    return forgetting, Partitions(storage, HybridClock()).load(3), origins


def forgotten_of(rows: dict[bytes, bytes | None]) -> set[Origin]:
    return {Origin(key[3:]) for key, value in rows.items() if value is None}


def holding(partition: Partition) -> Holding:
    return Holding(partition.vector, partition.vector)


def test_old_and_surplus_origins_are_forgotten_the_oldest_first() -> None:
    forgetting, partition, origins = partition_with(1, 2, 3, 4, 5)
    assert forgotten_of(forgetting.forget(partition, [holding(partition)], now_ms=10)) == set(origins[:2])
    forgetting, partition, origins = partition_with(1, 2, 10 * DAY_MS)
    assert forgotten_of(forgetting.forget(partition, [holding(partition)], now_ms=10 * DAY_MS)) == set(origins[:2])
    forgetting, partition, _ = partition_with(1, 2, 3)
    assert forgetting.forget(partition, [holding(partition)], now_ms=10) == {}


def test_nothing_is_forgotten_before_all_hold_it() -> None:
    forgetting, partition, _ = partition_with(1, 2, 3, 4, 5)
    away = Holding(VersionVector(), None)
    assert forgetting.forget(partition, [holding(partition), away], now_ms=10) == {}
    forgetting, partition, _ = partition_with(1, 2, 3, 4, 5, is_logged=True)
    assert forgetting.forget(partition, [holding(partition)], now_ms=10) == {}
