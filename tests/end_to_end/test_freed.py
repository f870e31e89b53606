"""Erasing on a real disk: the directory shrinks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import shoal
from shoal.client.store import Store
from simulation.bounds import altered

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def bounds() -> Iterator[None]:
    with altered(reclaim_interval_s=0.01):
        yield


async def shrunk(store: Store, to: int) -> None:
    """Return once nothing waits to be swept, and the store has at most so many bytes on disk."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            status = await store.status()
            if status.garbage == 0 and status.bytes_on_disk <= to:
                return
            # The compaction is RocksDB's own, and its end is seen with the next commit.
            await store.space("crew").counter("looks").add(1)
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("checkpoints", [300, pytest.param(1000, marks=pytest.mark.thorough)])
async def test_pruning_many_checkpoints_frees_their_disk(tmp_path: Path, checkpoints: int) -> None:
    random = Random(1)
    async with shoal.open(tmp_path / "state") as store:
        thread = store.space("crew").thread("agent")
        for n in range(checkpoints):
            await thread.save({"n": n, "blob": random.randbytes(20_000)})
        before = (await store.status()).bytes_on_disk
        assert before > checkpoints * 20_000
        report = await thread.prune(keep_last=10)
        assert report.count == checkpoints - 10
        await shrunk(store, before // 4)
        assert len([found async for found in thread.history(states=True)]) == 10


async def test_deleting_a_thread_frees_its_disk(tmp_path: Path) -> None:
    random = Random(1)
    async with shoal.open(tmp_path / "state") as store:
        thread = store.space("crew").thread("agent")
        for n in range(300):
            await thread.save({"n": n, "blob": random.randbytes(50_000)})
        before = (await store.status()).bytes_on_disk
        assert await thread.delete()
        await shrunk(store, before // 4)
