"""Two real nodes on real disks: what one has lost of a checkpoint, it fetches from the other."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import shoal
from chaos.processes import running
from shoal.cluster.operation import partition_of
from shoal.config import Config
from shoal.kinds.thread.state import dag
from shoal.node.verification.verify import verify
from shoal.storage import keys
from shoal.storage.rocks import RocksStorage

STATE = {"messages": [f"message {n} " * 40 for n in range(100)]}


def lost_chunks(directory: Path) -> int:
    """Take a thread's chunks out of a stopped node's store."""
    storage = RocksStorage.open(directory, config=Config(), now_ms=0)
    prefix = keys.object_rows(partition_of("crew", "t"), keys.Kind.THREAD, "crew", "t") + dag.CHUNK
    lost = [key for key, _ in storage.scan(prefix, prefix + b"\xff" * 33)]
    storage.write(dict.fromkeys(lost))
    storage.sync()
    storage.close()
    return len(lost)


async def test_a_node_that_lost_chunks_on_its_disk_has_them_again_after_a_load(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=2, now_s=time.monotonic) as cluster:
        first, second = cluster.nodes
        async with shoal.connect(first.url) as store:
            await store.space("crew").thread("t").save(STATE, durability="all")
        await cluster.stop(second)
        lost = lost_chunks(second.directory)
        assert lost > 0
        await cluster.start(second)
        assert await cluster.caught_up(20) is not None
        async with shoal.connect(second.url) as store:
            while any(member.state == "unreachable" for member in (await store.cluster()).members):
                await asyncio.sleep(0.05)  # It may have caught up by the other's link, before its own is there.
            assert (await store.space("crew").thread("t").load()).state == STATE
            assert (await store.status()).repaired == lost
        assert "were fetched again from a peer" in second.log.read_text()
        await cluster.stop(second)
        storage = RocksStorage.open(second.directory, config=Config(), now_ms=0)
        problems = verify(storage, config=Config()).problems
        storage.close()
        assert problems == []
