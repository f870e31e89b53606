"""What tiering frees and what it costs: `python -m benchmarks.tiering [THREADS]`.

Threads of 256 KiB each, which nothing compresses, go to a directory. Measured are the bytes of the store's files before and
after, reads of threads that are away and of the same threads once they are back, and durable saves of another thread while
nothing moves and while threads move. A cloud's own delay comes on top of each read of a thread that is away.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from statistics import quantiles
from time import perf_counter

import shoal
from shoal.client.store import Store
from shoal.kinds.tiering import flows

THREAD_BYTES = 256 * 1024
SAVES = 300
FREED_S = 60.0  # For the storage engine to give the bytes back.


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def _told(name: str, took: list[float]) -> None:
    cuts = quantiles(took, n=100)
    print(f"{name}: p50 {1000 * cuts[49]:.2f} ms, p99 {1000 * cuts[98]:.2f} ms ({len(took):,})")


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    began = perf_counter()
    await work()
    return perf_counter() - began


async def _saves(store: Store) -> AsyncIterator[float]:
    """One durable save of 1 KB after the other."""
    thread = store.space("warm").thread("t")
    nth = 0
    while True:
        nth += 1
        state = {"text": "x" * 1000, "nth": nth}
        yield await _timed(lambda state=state: thread.save(state, overwrite=True))  # type: ignore[misc]


async def _reads(store: Store, count: int) -> list[float]:
    crew = store.space("crew")
    return [await _timed(crew.thread(f"t{nth}").load) for nth in range(count)]


async def measure(threads: int) -> None:
    flows.IDLE_MS_MIN = 1
    random = Random(1)
    with tempfile.TemporaryDirectory() as directory:
        state, bucket = Path(directory, "state"), Path(directory, "bucket")
        async with shoal.open(state) as store:
            for nth in range(threads):
                await store.space("crew").thread(f"t{nth}").save({"text": random.randbytes(THREAD_BYTES // 2).hex()})
        before = _size(state)
        async with shoal.open(state) as store:
            saves = _saves(store)
            still = [await anext(saves) for _ in range(SAVES)]
            await store.space("crew").tiering.set(f"file://{bucket}", idle=0.001)
            moving = asyncio.ensure_future(store.space("crew").tiering.run())
            beside = [await anext(saves)]
            while not moving.done():
                beside.append(await anext(saves))
            view = await moving
            print(f"{view.away_bytes:,} bytes of {threads:,} threads moved, in {view.packs:,} objects")
            _told("saves while nothing moves", still)
            _told("saves while threads move", beside)
        async with shoal.open(state) as store:
            for _ in range(int(FREED_S)):
                await asyncio.sleep(1)
                if _size(state) < before / 4:
                    break
        print(f"files of the store: {before:,} bytes before, {_size(state):,} after; the bucket has {_size(bucket):,}")
        async with shoal.open(state) as store:
            _told("reads of threads that are away", await _reads(store, threads))
            _told("reads of the same threads, which are back", await _reads(store, threads))


if __name__ == "__main__":
    asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 400))
