"""One process that builds a store of many threads, or opens one and loads from it: `python -m benchmarks.population`.

It prints what it found as a line of JSON. A process of its own, so that what is resident is the node's. No thread is
loaded twice: every load is a cold one, in a small store as in a large one.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import perf_counter

import uvloop

import shoal
from benchmarks.figures import quantile
from shoal.client.store import Space

CHECKPOINTS = 10  # Of each thread.
LOADS = 2000  # Of as many threads; a store has no fewer.
_TASKS = 64


def built(directory: Path, threads: int) -> dict[str, float]:
    """Build a store of so many threads; what was resident at most."""
    return _run("build", directory, threads)


def loaded(directory: Path, threads: int) -> dict[str, float]:
    """Open a store of so many threads and load some at random: what was resident at most, and how long a load took."""
    return _run("load", directory, threads)


def _run(what: str, directory: Path, threads: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.population", what, str(directory), str(threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


async def _build(directory: Path, threads: int) -> dict[str, float]:
    async with shoal.open(directory) as store:
        space = store.space("bench")
        numbers = iter(range(threads))
        await asyncio.gather(*(_fill(space, numbers) for _ in range(_TASKS)))
        return {"resident_mb": _resident_mb()}


async def _fill(space: Space, numbers: Iterator[int]) -> None:
    for number in numbers:
        thread = space.thread(f"thread-{number}")
        for step in range(CHECKPOINTS):
            message = {"role": "user", "content": f"message {step} of agent {number}: " + "and so on " * 20}
            await thread.update({"step": step}, append={"messages": [message]}, durability="memory")


async def _load(directory: Path, threads: int) -> dict[str, float]:
    random, took = Random(threads), []
    async with shoal.open(directory) as store:
        space = store.space("bench")
        for number in random.sample(range(threads), LOADS):
            thread = space.thread(f"thread-{number}")
            began = perf_counter()
            state = (await thread.load()).state
            took.append(perf_counter() - began)
            assert len(state["messages"]) == CHECKPOINTS
        return {"resident_mb": _resident_mb(), "p99_ms": quantile(sorted(took), 0.99) * 1000}


def _resident_mb() -> float:
    """The most that this process has had in memory at once."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    what, directory, threads = sys.argv[1:]
    act = _build if what == "build" else _load
    print(json.dumps(uvloop.run(act(Path(directory), int(threads)))))


if __name__ == "__main__":
    main()
