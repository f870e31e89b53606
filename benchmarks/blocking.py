"""How late the event loop is under load, and how much of that is storage.

Two measurements, for a loop is late for two reasons. A ticker, beside the saves,
asks to be woken after 1 ms: what it is late by is all that the loop did
meanwhile, its own Python included. And a storage that times itself tells how
long the loop thread was inside it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import uvloop

from benchmarks.embedded import TASKS, save_for
from benchmarks.figures import Effort, Figure, Section, Target, quantile
from shoal.client.connection import StoreConnection
from shoal.client.store import Store
from shoal.config import Config
from shoal.node.environment import system_environment
from shoal.node.node import Node
from shoal.storage.rocks import RocksStorage

_TICK_S = 0.001
_SECONDS_FACTOR = 5  # Long enough for a rotation of the log in every run.


class TimedStorage:
    """RocksStorage that notes how long each call on the loop's thread takes, in seconds."""

    def __init__(self, storage: RocksStorage) -> None:
        self.calls: list[float] = []
        self._storage = storage
        # These run on the sync thread, or while nothing is measured.
        self.sync, self.write_witness = storage.sync, storage.write_witness
        self.bytes_on_disk, self.reclaim, self.close = storage.bytes_on_disk, storage.reclaim, storage.close

    @property
    def rotations(self) -> int:
        return self._storage.rotations

    def get(self, key: bytes, /) -> bytes | None:
        began = perf_counter()
        value = self._storage.get(key)
        self.calls.append(perf_counter() - began)
        return value

    def scan(
        self, start: bytes, stop: bytes | None, /, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = self._storage.scan(start, stop, reverse=reverse, limit=limit)
        while True:
            began = perf_counter()
            row = next(rows, None)
            self.calls.append(perf_counter() - began)
            if row is None:
                return
            yield row

    def write(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]] = (), /) -> int:
        began = perf_counter()
        number = self._storage.write(rows, ranges)
        self.calls.append(perf_counter() - began)
        return number

    def rotate_if_due(self) -> bool:
        began = perf_counter()
        rotated = self._storage.rotate_if_due()
        self.calls.append(perf_counter() - began)
        return rotated


class Blocked:
    """Of one run, in milliseconds: how late the ticker was, and how long storage calls took on the loop's thread."""

    def __init__(self, lateness_s: list[float], storage: TimedStorage, elapsed_s: float) -> None:
        late, calls = sorted(lateness_s), sorted(storage.calls)
        self.late_ms = {share: quantile(late, share) * 1000 for share in (0.5, 0.99, 0.999, 1)}
        self.storage_ms = {share: quantile(calls, share) * 1000 for share in (0.5, 0.999, 1)}
        self.storage_share = sum(calls) / elapsed_s * 100
        self.rotations = storage.rotations


def run(effort: Effort) -> Section:
    runs = [uvloop.run(_measure(effort.seconds * _SECONDS_FACTOR)) for _ in range(effort.repeats)]

    def late(share: float) -> tuple[float, ...]:
        return tuple(each.late_ms[share] for each in runs)

    def in_storage(share: float) -> tuple[float, ...]:
        return tuple(each.storage_ms[share] for each in runs)

    figures = [
        Figure("loop late, p50", "ms", late(0.5)),
        Figure("loop late, p99", "ms", late(0.99)),
        Figure("loop late, p99.9", "ms", late(0.999), Target("≤", 20)),
        Figure("loop late, greatest of all runs", "ms", late(1), Target("≤", 100), worst=True),
        Figure("one storage call on the loop, p50", "ms", in_storage(0.5)),
        Figure("one storage call on the loop, p99.9", "ms", in_storage(0.999), Target("≤", 20)),
        Figure("one storage call on the loop, greatest of all runs", "ms", in_storage(1), Target("≤", 100), worst=True),
        Figure("the loop's time inside storage", "%", tuple(each.storage_share for each in runs)),
        Figure("rotations of the log meanwhile", "", tuple(float(each.rotations) for each in runs)),
    ]
    return Section("Event loop under load", _METHOD, figures)


_METHOD = (
    f"The embedded store with {TASKS} tasks, as above. A coroutine sleeps 1 ms at a time; it is late by what passes beyond "
    "1 ms, and nothing is subtracted, neither the timer's own grain (1 ms in uvloop) nor the time in which the loop "
    "does the saves' own work. At the same time every call of `get`, `scan`, `write` and `rotate_if_due` that runs on "
    "the loop's thread is timed; fsyncs run on a thread of their own, but for the short one within a rotation."
)


async def _measure(seconds: float) -> Blocked:
    with tempfile.TemporaryDirectory() as directory:
        config, environment = Config(), system_environment()
        storage = TimedStorage(RocksStorage.open(Path(directory) / "store", config=config, now_ms=environment.now_ms()))
        node = Node(storage, config=config, environment=environment)
        connection = StoreConnection(node.session(), config, "local", environment.entropy)
        async with Store(connection, close=node.stop) as store:
            lateness: list[float] = []
            ticker = asyncio.create_task(_tick(lateness))
            began = perf_counter()
            await save_for(store.space("bench"), tasks=TASKS, seconds=seconds)
            elapsed = perf_counter() - began
            ticker.cancel()
            with suppress(asyncio.CancelledError):
                await ticker
            return Blocked(lateness, storage, elapsed)


async def _tick(lateness: list[float]) -> None:
    while True:
        began = perf_counter()
        await asyncio.sleep(_TICK_S)
        lateness.append(max(0.0, perf_counter() - began - _TICK_S))
