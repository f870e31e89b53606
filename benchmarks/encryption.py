"""The cost of encryption at rest: the processor's time for one save, with and without, in alternating pairs."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import uvloop

import shoal
from benchmarks.figures import Effort, Figure, Section, Target
from benchmarks.tls import served, used_s

TASKS = 64
SAVES = 100  # By each task in one measurement.
STATE = {"messages": ["x" * 1000], "step": 0}
PAIRS_MIN = 5


class Cost(NamedTuple):
    """Of one save: the processor's time in microseconds, and the bytes of the directory after a stop."""

    served: float  # Node and client.
    embedded: float
    disk_bytes: float


def run(effort: Effort) -> Section:
    pairs = []
    with tempfile.TemporaryDirectory() as directory:
        key = Path(directory) / "master.key"
        key.write_text(os.urandom(32).hex())
        for number in range(max(PAIRS_MIN, effort.repeats)):
            order = ("", f"file:{key}") if number % 2 else (f"file:{key}", "")
            found = {each: measured(Path(directory) / f"{number}-{bool(each)}", each) for each in order}
            pairs.append((found[f"file:{key}"], found[""]))
    figures = [
        Figure("a save's processor time at node and client, plain", "µs", tuple(plain.served for _, plain in pairs)),
        Figure("the same, encrypted", "µs", tuple(sealed.served for sealed, _ in pairs)),
        Figure("encrypted ÷ plain", "", tuple(sealed.served / plain.served for sealed, plain in pairs), Target("≤", 1.15)),
        Figure("a save's processor time, embedded, plain", "µs", tuple(plain.embedded for _, plain in pairs)),
        Figure("the same, encrypted", "µs", tuple(sealed.embedded for sealed, _ in pairs)),
        Figure("encrypted ÷ plain, embedded", "", tuple(sealed.embedded / plain.embedded for sealed, plain in pairs)),
        Figure("the files of a stopped store for each save, plain", "bytes", tuple(plain.disk_bytes for _, plain in pairs)),
        Figure("the same, encrypted", "bytes", tuple(sealed.disk_bytes for sealed, _ in pairs)),
    ]
    return Section("Encryption at rest", _METHOD, figures)


_METHOD = (
    f"`shoal serve` in one process and `shoal.connect` in another, under uvloop, then an embedded store; {TASKS} tasks save "
    "states of 1 KB, each save after an fsync. Processor time of all processes and threads, user and system, in alternating "
    "pairs."
)


def measured(directory: Path, encryption: str) -> Cost:
    options = ("--encryption-key", encryption) if encryption else ()
    with served(directory / "served", *options) as (pid, url):
        of_served = uvloop.run(_connected(pid, url))
    embedded = directory / "embedded"
    of_embedded = uvloop.run(_embedded(embedded, encryption))
    size = sum(file.stat().st_size for file in (embedded / "db").iterdir())
    return Cost(of_served, of_embedded, size / (TASKS * (SAVES + 3)))


async def _connected(pid: int, url: str) -> float:
    async with shoal.connect(url) as store:
        return await _measure(store, lambda: used_s(pid) + time.process_time())


async def _embedded(directory: Path, encryption: str) -> float:
    async with shoal.open(directory, encryption=encryption) as store:
        return await _measure(store, time.process_time)


async def _measure(store: shoal.Store, used: Callable[[], float]) -> float:
    space = store.space("bench")

    async def save(number: int, count: int) -> None:
        thread = space.thread(f"t{number}")
        for step in range(count):
            await thread.save({**STATE, "step": step})

    async def all_save(first: int, count: int) -> None:
        await asyncio.gather(*(save(first + number, count) for number in range(TASKS)))

    await all_save(0, 3)  # Warm.
    began = used()
    await all_save(TASKS, SAVES)
    return (used() - began) / (TASKS * SAVES) * 1e6
