"""How long it takes to open a store of one long thread and to load its newest checkpoint.

`python -m benchmarks.openings DIRECTORY` is a process that does it once, and prints the milliseconds without its imports:
the first opening of a process touches its code and memory for the first time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import uvloop

import shoal
from benchmarks.figures import Effort, Figure, Target, quantile

CHECKPOINTS = 10_000
OPENINGS = 200  # In a repetition, all in one process.
FIRST = 10  # In a repetition, each in a process of its own.


def figures(effort: Effort) -> list[Figure]:
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent) / "store"
        uvloop.run(_build(directory))
        p99, first = [], []
        for _ in range(effort.repeats):
            p99.append(quantile(sorted(uvloop.run(_opened_ms(directory)) for _ in range(OPENINGS)), 0.99))
            first.append(quantile(sorted(_first_ms(directory) for _ in range(FIRST)), 0.5))
    name = f"open a store and load the newest of {CHECKPOINTS:,} checkpoints of a thread"
    return [
        Figure(f"{name}, p99", "ms", tuple(p99), Target("≤", 20)),
        Figure("the same, the first of a process, median", "ms", tuple(first)),
    ]


async def _build(directory: Path) -> None:
    async with shoal.open(directory, durability="memory") as store:
        thread = store.space("bench").thread("long")
        for number in range(CHECKPOINTS):
            await thread.update({"step": number}, append={"messages": [f"message {number}: " + "and so on " * 10]})


async def _opened_ms(directory: Path) -> float:
    began = perf_counter()
    async with shoal.open(directory) as store:
        state = (await store.space("bench").thread("long").load()).state
        took = perf_counter() - began
        assert len(state["messages"]) == CHECKPOINTS
    return took * 1000


def _first_ms(directory: Path) -> float:
    command = [sys.executable, "-m", "benchmarks.openings", str(directory)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)


if __name__ == "__main__":
    print(uvloop.run(_opened_ms(Path(sys.argv[1]))))
