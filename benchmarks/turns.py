"""The computing of the loop while a quiet space adds beside a busy one, embedded: by the thread's own time.

    python -m benchmarks.turns saves 12     # or batches, searches; without a load: ""

Other work on the machine does not count in it. So it tells on a busy machine, too, whether long turns of the loop or waits for
the disk make an add of the quiet space slow (`benchmarks.fairness` measures how slow).
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import shoal
from benchmarks.fairness import _EMBEDDED_TASKS, _PAUSE_S, _fill, _member
from benchmarks.figures import quantile


class MeasuringLoop(asyncio.SelectorEventLoop):
    """A loop that keeps how long each of its turns computed, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[float] = []

    def _run_once(self) -> None:
        began = thread_time()
        super()._run_once()  # type: ignore[misc]
        self.turns.append(thread_time() - began)


async def measured(load: str, seconds: float) -> str:
    """Lines that tell it."""
    loop: Any = asyncio.get_running_loop()
    took, computed, turns = list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as directory:
        async with shoal.open(Path(directory) / "store") as store:
            await _fill(store)
            done = [0]
            crowd = [asyncio.create_task(_member(store.space("busy"), load, nth, done)) for nth in range(_EMBEDDED_TASKS)]
            await asyncio.sleep(1.0)
            loop.turns.clear()
            counter, ends = store.space("quiet").counter("adds"), perf_counter() + seconds
            while perf_counter() < ends:
                before, began, thread_began = len(loop.turns), perf_counter(), thread_time()
                await counter.add(1, durability="local")
                took.append(perf_counter() - began)
                computed.append(thread_time() - thread_began)
                turns.append(len(loop.turns) - before)
                await asyncio.sleep(_PAUSE_S)
            for member in crowd:
                member.cancel()
            await asyncio.gather(*crowd, return_exceptions=True)
    lines = [
        _line("an add, ms", [each * 1000 for each in took]),
        _line("computing of the loop meanwhile, ms", [each * 1000 for each in computed]),
        _line("turns of the loop meanwhile", turns),
        _line("computing in one turn, ms", [each * 1000 for each in loop.turns]),
    ]
    return "\n".join(lines)


def _line(name: str, found: list[float]) -> str:
    found = sorted(found)
    return f"{name:36} p50 {quantile(found, 0.5):7.2f}  p99 {quantile(found, 0.99):7.2f}  most {found[-1]:7.2f}"


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=MeasuringLoop) as runner:
        print(runner.run(measured(sys.argv[1], float(sys.argv[2]))))
