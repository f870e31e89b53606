"""Small shared values through one client on a node of its own: how many durable operations a second, and what they leave."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

import uvloop

import shoal
from benchmarks.figures import Effort, Figure, Section, Target
from benchmarks.served import served
from shoal.client.store import Space
from shoal.cluster.operation import partition_of
from shoal.config import Config
from shoal.crdt.rows import successor
from shoal.storage import keys
from shoal.storage.keys import Kind
from shoal.storage.rocks import RocksStorage

TASKS = 512
HOT_KEYS = 10
HOT_SETS = 20_000

Operation = Callable[[Space, int, int], Awaitable[object]]
"""The `n`-th operation of a task."""


async def _add(space: Space, task: int, n: int) -> object:
    return await space.counter(f"counter-{task % 64}").add(n + 1)


async def _set(space: Space, task: int, n: int) -> object:
    return await space.register(f"register-{task % 64}").set(n)


async def _add_to_set(space: Space, task: int, n: int) -> object:
    return await space.set(f"set-{task % 64}").add(f"https://example.org/{task}/{n}")


async def _spend(space: Space, task: int, n: int) -> object:
    return await space.budget(f"budget-{task % 64}").spend(1)


OPERATIONS: dict[str, tuple[Operation, Target | None]] = {
    "counter adds": (_add, Target("≥", 8000)),
    "register sets": (_set, Target("≥", 8000)),
    "adds to sets": (_add_to_set, None),
    "spends of budgets": (_spend, None),
}


class Measured(NamedTuple):
    per_s: float
    client_us: float  # Of the client's processor, per operation.


def run(effort: Effort) -> Section:
    runs: dict[str, list[Measured]] = {name: [] for name in OPERATIONS}
    for _ in range(effort.repeats):
        for name, (operation, _) in OPERATIONS.items():
            runs[name].append(measured(operation, effort.seconds))
    figures = [
        Figure(f"{name}, {TASKS} tasks on one connection", "1/s", tuple(each.per_s for each in runs[name]), target)
        for name, (_, target) in OPERATIONS.items()
    ]
    figures += [
        Figure(f"the client's computing per operation: {name}", "µs", tuple(each.client_us for each in runs[name]))
        for name in OPERATIONS
    ]
    left = f"live state after {HOT_SETS:,} sets over {HOT_KEYS} registers"
    figures.append(Figure(left, "KiB", (hot_bytes() / 1024,), Target("≤", 4)))
    return Section("Small shared values", _METHOD, figures)


_METHOD = (
    "`shoal serve` in one process and `shoal.connect` in another, both under uvloop, over the loopback interface; the "
    f"client has one connection, and {TASKS} tasks that each await their own operation: it is acknowledged after an fsync "
    "that covers it. They share 64 objects of each kind. Live state is the rows of the objects, keys and values, as they "
    "are stored; the operation log is not counted, which is kept until folding comes."
)


def measured(operation: Operation, seconds: float) -> Measured:
    async def measure(url: str) -> Measured:
        async with shoal.connect(url) as store:
            space = store.space("bench")
            for n in range(64):
                await space.budget(f"budget-{n}").grant(10**12)

            async def work(task: int, end: float) -> int:
                done = 0
                while perf_counter() < end:
                    await operation(space, task, done)
                    done += 1
                return done

            began, computed = perf_counter(), process_time()
            done = sum(await asyncio.gather(*(work(task, began + seconds) for task in range(TASKS))))
            return Measured(done / (perf_counter() - began), (process_time() - computed) / done * 1e6)

    with tempfile.TemporaryDirectory() as directory, served(Path(directory) / "store") as url:
        return uvloop.run(measure(url))


def hot_bytes() -> int:
    """The bytes of all live rows, once the sets are done."""

    async def write(directory: Path) -> None:
        async with shoal.open(directory) as store:
            registers = [store.space("bench").register(f"hot-{n}") for n in range(HOT_KEYS)]
            for start in range(0, HOT_SETS, 1000):
                await asyncio.gather(*(registers[n % HOT_KEYS].set(n) for n in range(start, start + 1000)))

    with tempfile.TemporaryDirectory() as directory:
        uvloop.run(write(Path(directory) / "store"))
        storage = RocksStorage.open(Path(directory) / "store", config=Config(), now_ms=0)
        try:
            size = 0
            for n in range(HOT_KEYS):
                name = f"hot-{n}"
                prefix = keys.object_rows(partition_of("bench", name), Kind.REGISTER, "bench", name)
                size += sum(len(key) + len(value) for key, value in storage.scan(prefix, successor(prefix)))
            return size
        finally:
            storage.close()
