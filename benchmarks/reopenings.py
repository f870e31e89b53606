"""What a program costs that opens a store, appends one event and closes it, over and over, as a command run by cron does."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import uvloop

import shoal
from benchmarks.figures import Effort, Figure, Section, Target
from shoal.config import Config
from shoal.crdt.rows import successor
from shoal.storage import keys
from shoal.storage.rocks import RocksStorage

STAGES = (100, 1_000, 10_000)  # The costs after so many openings are compared.
STAGES_QUICK = (100, 500)
_SAMPLES = 64  # Openings at each stage: four of them retire the origins of sixteen.
_KEEP_S = 1.0  # As if an hour passed in a second: `log_keep_s` is 3,600 times shorter,
_FORGET_S = 168.0  # and `forget_after_s` as well.
_GROWTH_MAX = 1.2


class _Cost(NamedTuple):
    """Of one opening, in milliseconds of this thread's CPU; and the size of its bookmark."""

    open_ms: float
    append_ms: float
    close_ms: float
    bookmark_bytes: int

    @property
    def all_ms(self) -> float:
        """Of the program's whole run."""
        return self.open_ms + self.append_ms + self.close_ms


class _Stage(NamedTuple):
    """A store after so many openings, closed, and what the next ones cost."""

    openings: int
    costs: list[_Cost]
    bytes: int
    rows: dict[str, int]

    def cost(self, of: Callable[[_Cost], float]) -> float:
        """The median."""
        return median(map(of, self.costs))

    @property
    def all_ms(self) -> float:
        """The mean of the whole runs: one in sixteen retires the origins of the others."""
        return fmean(cost.all_ms for cost in self.costs)

    @property
    def bytes_per_append(self) -> float:
        """On disk."""
        return self.bytes / self.openings


def run(effort: Effort) -> Section:
    stages = STAGES if effort.repeats > 2 else STAGES_QUICK
    with tempfile.TemporaryDirectory() as parent:
        places = {openings: Path(parent) / str(openings) for openings in stages}
        for openings, directory in places.items():
            for number in range(openings):
                uvloop.run(_opened(directory, number))
        sizes = {openings: _size(directory) for openings, directory in places.items()}
        costs: dict[int, list[_Cost]] = {openings: [] for openings in stages}
        for number in range(_SAMPLES):  # In turns: whatever else the machine does meanwhile, it does to all of them.
            for openings, directory in places.items():
                costs[openings].append(uvloop.run(_opened(directory, openings + number)))
    return Section(
        "A program that opens a store for one append",
        _METHOD,
        _figures([_Stage(openings, costs[openings], *sizes[openings]) for openings in stages]),
    )


_METHOD = (
    "Stores that were opened so often before, each time with one append to one journal and a clean close. CPU is that of the "
    f"event loop's thread in {_SAMPLES} openings of each store, in turns: the median of appends, the mean of whole runs. "
    f"`log_keep_s` is {_KEEP_S:g}, for an hour, and `forget_after_s` {_FORGET_S:g}, for a week."
)

_COSTS: dict[str, tuple[str, Callable[[_Stage], float]]] = {
    "CPU of an append": ("ms", lambda stage: stage.cost(lambda cost: cost.append_ms)),
    "CPU of opening, append and close, mean": ("ms", lambda stage: stage.all_ms),
    "the bookmark": ("bytes", lambda stage: stage.cost(lambda cost: cost.bookmark_bytes)),
    "disk per append": ("bytes", lambda stage: stage.bytes_per_append),
}


def _figures(stages: list[_Stage]) -> list[Figure]:
    first, last = stages[0], stages[-1]
    figures = []
    for name, (unit, of) in _COSTS.items():
        figures += [Figure(f"{name} after {stage.openings:,} openings", unit, (of(stage),)) for stage in stages]
        ratio = of(last) / of(first)
        figures.append(Figure(f"{name}: the last ÷ the first", "×", (ratio,), Target("≤", _GROWTH_MAX)))
    return figures + [Figure(f"{name} then", "", (count,)) for name, count in last.rows.items()]


async def _opened(directory: Path, number: int) -> _Cost:
    config = Config(log_keep_s=_KEEP_S, forget_after_s=_FORGET_S)
    began = time.thread_time()
    async with shoal.open(directory, config=config) as store:
        opened = time.thread_time()
        await store.space("cron").thread("journal").journal.append({"run": number})
        appended = time.thread_time()
        bookmark = len(store.bookmark)
    closed = time.thread_time()
    return _Cost((opened - began) * 1000, (appended - opened) * 1000, (closed - appended) * 1000, bookmark)


def _size(directory: Path) -> tuple[int, dict[str, int]]:
    tables = {
        "operations in the log": keys.LOG,
        "keys of requests": keys.KEY,
        "origins in vectors": keys.VECTOR,
        "retired origins that are remembered": keys.RETIRED,
    }
    storage = RocksStorage.open(directory, config=Config(), now_ms=time.time_ns() // 1_000_000)
    try:
        rows = {name: sum(1 for _ in storage.scan(table, successor(table))) for name, table in tables.items()}
        return storage.bytes_on_disk(), rows
    finally:
        storage.close()
