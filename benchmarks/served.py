"""One node in a process of its own, and one client: pipelined, and one request at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

import shoal
from benchmarks.embedded import Run, save_for
from benchmarks.figures import Effort, Figure, Section, Target

TASKS = (64, 256)


def run(effort: Effort) -> Section:
    pipelined: dict[int, list[float]] = {tasks: [] for tasks in TASKS}
    alone: list[Run] = []
    for _ in range(effort.repeats):
        alone.append(measured(1, effort.seconds))
        for tasks in TASKS:
            pipelined[tasks].append(measured(tasks, effort.seconds).per_s)
    figures = [
        Figure("durable saves, 64 tasks on one connection", "1/s", tuple(pipelined[64]), Target("≥", 3000)),
        Figure("durable saves, 256 tasks on one connection", "1/s", tuple(pipelined[256])),
        Figure("one save at a time, p50", "ms", tuple(each.p50_ms for each in alone), Target("≤", 4)),
        Figure("one save at a time, p99", "ms", tuple(each.p99_ms for each in alone)),
        Figure("one save at a time", "1/s", tuple(each.per_s for each in alone)),
    ]
    return Section("One node, one client", _METHOD, figures)


_METHOD = (
    "`shoal serve` in one process and `shoal.connect` in another, both under uvloop, over the loopback interface; the "
    "client has one connection. States and threads as above. Each save is acknowledged after an fsync."
)


def measured(tasks: int, seconds: float) -> Run:
    async def measure(url: str) -> Run:
        async with shoal.connect(url) as store:
            return await save_for(store.space("bench"), tasks=tasks, seconds=seconds)

    with tempfile.TemporaryDirectory() as directory, served(Path(directory) / "store") as url:
        return uvloop.run(measure(url))


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """`shoal serve` on a port that the system chooses, by its URL."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    command = [sys.executable, "-m", "shoal", "serve", "--data", str(directory), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGTERM)
