"""What a program costs that opens a store, appends one event and closes it, over and over, as a command run by cron does."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import uvloop

import shoal
from benchmarks.figures import Effort, Figure, Section, Target
from shoal.config import Config
from shoal.crdt.rows import successor
from shoal.storage import keys
from shoal.storage.rocks import RocksStorage

OPENINGS = 10_000
OPENINGS_QUICK = 500
EARLY = 100  # The costs after so many openings are those to compare with.
_SAMPLES = 50
_KEEP_S = 1.0  # As if an hour passed in a second: `log_keep_s` is 3,600 times shorter.
_GROWTH_MAX = 1.2


class _Cost(NamedTuple):
    """Of one opening, in milliseconds of this thread's CPU."""

    open_ms: float
    append_ms: float
    close_ms: float


class _Size(NamedTuple):
    """Of the store, once it is closed."""

    bytes: int
    logged: int  # Operations.
    keys: int  # Of requests.


def run(effort: Effort) -> Section:
    openings = OPENINGS if effort.repeats > 2 else OPENINGS_QUICK
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent) / "store"
        costs = [uvloop.run(_opened(directory, number)) for number in range(EARLY + _SAMPLES)]
        early, before = costs[EARLY:], _size(directory)
        costs = [uvloop.run(_opened(directory, number)) for number in range(EARLY + _SAMPLES, openings)]
        late, after = costs[-_SAMPLES:], _size(directory)
    figures = [
        Figure(
            f"CPU of an append after {openings:,} openings ÷ after {EARLY}",
            "",
            (median(cost.append_ms for cost in late) / median(cost.append_ms for cost in early),),
            Target("≤", _GROWTH_MAX),
        ),
        Figure("CPU of an append then", "ms", (median(cost.append_ms for cost in late),)),
        Figure("CPU of opening and closing, the same ratio", "", (_opening(late) / _opening(early),)),
        Figure("CPU of opening and closing then", "ms", (_opening(late),)),
        Figure(
            "disk per append, the same ratio",
            "",
            (after.bytes / openings / (before.bytes / (EARLY + _SAMPLES)),),
            Target("≤", _GROWTH_MAX),
        ),
        Figure("disk then", "KB", (after.bytes / 1000,)),
        Figure("operations in the log then", "", (after.logged,)),
        Figure("keys of requests then", "", (after.keys,)),
    ]
    return Section(
        "A program that opens a store for one append",
        f"{openings:,} openings of one store in a process, each with one append to one journal, and a clean close. CPU is that "
        f"of the event loop's thread, the median of {_SAMPLES} openings. `log_keep_s` is {_KEEP_S:g}, for an hour.",
        figures,
    )


def _opening(costs: list[_Cost]) -> float:
    return median(cost.open_ms + cost.close_ms for cost in costs)


async def _opened(directory: Path, number: int) -> _Cost:
    began = time.thread_time()
    async with shoal.open(directory, config=Config(log_keep_s=_KEEP_S)) as store:
        opened = time.thread_time()
        await store.space("cron").thread("journal").journal.append({"run": number})
        appended = time.thread_time()
    closed = time.thread_time()
    return _Cost((opened - began) * 1000, (appended - opened) * 1000, (closed - appended) * 1000)


def _size(directory: Path) -> _Size:
    storage = RocksStorage.open(directory, config=Config(), now_ms=time.time_ns() // 1_000_000)
    try:
        counts = [sum(1 for _ in storage.scan(table, successor(table))) for table in (keys.LOG, keys.KEY)]
        return _Size(storage.bytes_on_disk(), *counts)
    finally:
        storage.close()
