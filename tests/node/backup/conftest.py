from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import NamedTuple

import pytest

from shoal.backup.bucket import Bucket, read
from shoal.config import Config
from shoal.node.backup.folding import Restored, folded
from shoal.node.backup.restoring import plan
from shoal.node.backup.shipper import Shipper
from shoal.node.verification.verify import verify
from shoal.protocol.requests import DeclareBackup
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.world.bucket import SimulatedBucket
from simulation.world.environment import SimulatedEnvironment
from tests.node.conftest import Bench

URL = "s3://simulated/prod"


class Made(NamedTuple):
    """The outcome of a restore."""

    storage: MemoryStorage
    restored: Restored


async def declare(bench: Bench, bucket: SimulatedBucket) -> None:
    """Have the bench ship to a bucket. Its own task does not: a test says when."""
    bench.simulated.bucket = bucket
    await bench.node.backups.stop()
    await bench.node.session().call(DeclareBackup(URL))


async def ship(bench: Bench) -> Shipper:
    """Ship what is lacking, now."""
    await bench.node.backups.look()
    assert bench.node.backups.shipper is not None
    return bench.node.backups.shipper


async def restore(
    bucket: SimulatedBucket, *, moment: int | None = None, partitions: Collection[int] | None = None, seed: int = 77
) -> Made:
    """Restore to a new directory in memory, which is sound."""
    environment = SimulatedEnvironment(seed).environment
    storage = MemoryStorage()
    reading = Bucket(bucket, now=environment.monotonic)
    wanted = plan(await read(reading), moment, partitions, now_ms=bucket._now_ms())
    made = await folded(storage, reading, wanted, config=Config(), environment=environment, only=partitions)
    left = MemoryStorage(storage._durable.rows)  # The same directory, opened again.
    report = verify(left, config=Config())
    assert report.sound, report.problems
    return Made(left, made)


def rows_of(storage: MemoryStorage) -> dict[bytes, bytes]:
    """The rows of all partitions, and what follows from them."""
    tables = (*keys.PARTITION_TABLES, keys.CATALOG, keys.STATUS)
    return {key: value for key, value in storage.scan(b"", None) if key[:1] in tables}


def state_of(storage: MemoryStorage) -> dict[bytes, bytes]:
    """The same without the logs, which may have left one of two nodes that hold the same."""
    left_out = (keys.LOG, keys.BASE, keys.KEY)
    return {key: value for key, value in rows_of(storage).items() if key[:1] not in left_out}


@pytest.fixture
def bucket(bench: Bench) -> SimulatedBucket:
    return SimulatedBucket(now_ms=lambda: bench.simulated.now_ms)


async def settled(bench: Bench) -> None:
    """All that was written is durable."""
    await bench.node._commit.wait_durable(bench.node._commit.written)
    await asyncio.sleep(0)
