"""Durable saves a second through the group commit, and how late it makes the event loop.

A save is one write of five rows, 700 bytes in all, that is awaited until it is
durable. Lateness is that of a task which sleeps 1 ms at a time beside them.

    python benchmarks/commit.py [SECONDS] [DIRECTORY]
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import uvloop

from shoal.config import Config
from shoal.storage.commit import GroupCommit
from shoal.storage.rocks import RocksStorage

T = TypeVar("T")

ROWS = 5
VALUES = [os.urandom(140) for _ in range(997)]


async def measure(directory: Path, *, tasks: int, seconds: float) -> str:
    config = Config()
    storage = RocksStorage.open(directory, config=config, now_ms=0)
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(2) as pool:

        def run_blocking(call: Callable[[], T], /) -> Awaitable[T]:
            return loop.run_in_executor(pool, call)

        commit = GroupCommit(
            storage,
            run_blocking=run_blocking,
            writes_pending_max=config.writes_pending_max,
            on_durable=None,
            now=loop.time,
        )
        end = loop.time() + seconds
        saves, lateness = await asyncio.gather(
            asyncio.gather(*(save(commit, task=task, end=end) for task in range(tasks))), tick(end)
        )
        cycles = commit.cycles
        await commit.close()
        storage.close()
    waits = sorted(wait for task in saves for wait in task)
    return (
        f"{tasks:4} tasks: {len(waits) / seconds:7,.0f} saves/s, {cycles / seconds:5,.0f} syncs/s, "
        f"{storage.rotations} rotations; save {quantiles(waits)}; loop late {quantiles(sorted(lateness))}"
    )


async def save(commit: GroupCommit, *, task: int, end: float) -> list[float]:
    waits: list[float] = []
    while (began := perf_counter()) and asyncio.get_running_loop().time() < end:
        at = len(waits) * ROWS
        key = b"O%04d%010d" % (task, len(waits))
        await commit.wait_durable(commit.write({key + bytes([row]): VALUES[(at + row) % 997] for row in range(ROWS)}))
        waits.append(perf_counter() - began)
    return waits


async def tick(end: float) -> list[float]:
    late = []
    while asyncio.get_running_loop().time() < end:
        began = perf_counter()
        await asyncio.sleep(0.001)
        late.append(max(0.0, perf_counter() - began - 0.001))
    return late


def quantiles(ordered: list[float]) -> str:
    p50, p99, p999 = (ordered[int(len(ordered) * q)] * 1000 for q in (0.5, 0.99, 0.999))
    return f"p50 {p50:.1f} p99 {p99:.1f} p99.9 {p999:.1f} max {ordered[-1] * 1000:.1f} ms"


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    parent = sys.argv[2] if len(sys.argv) > 2 else None
    for tasks in (1, 16, 64, 256):
        with tempfile.TemporaryDirectory(dir=parent) as directory:
            print(uvloop.run(measure(Path(directory) / "store", tasks=tasks, seconds=seconds)))


if __name__ == "__main__":
    main()
