"""Durable writes through three nodes, in a closed loop: Shoal's beside those of etcd, Redis and PostgreSQL, where installed."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import uvloop

import shoal
from benchmarks import systems
from benchmarks.cluster import Nodes
from benchmarks.figures import Effort, Figure, Section, Target, quantile
from benchmarks.states import state
from benchmarks.systems import NODES, System, Write

MANY = 64

_WARM_UP_S = 1.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Load(NamedTuple):
    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float  # Of all three nodes, by write.


Loads = dict[str, dict[int, list[Load]]]
"""By system and number of tasks; one for each repetition."""


def run(effort: Effort) -> Section:
    """Measure each system in turn, `effort.repeats` times."""
    loads: Loads = {}
    for _ in range(effort.repeats):
        for name, start in _SYSTEMS.items():
            with tempfile.TemporaryDirectory() as directory, start(Path(directory)) as system:
                if system is not None:
                    for tasks in (MANY, 1):
                        load = uvloop.run(_measured(system, tasks, effort.seconds * 2))
                        loads.setdefault(name, {}).setdefault(tasks, []).append(load)
    missing = [name for name in _SYSTEMS if name not in loads]
    method = _METHOD + (f" Not installed here, so not measured: {', '.join(missing)}." if missing else "")
    return Section("Replicated writes", method, [*_figures(loads), *_ratios(loads)])


def _figures(loads: Loads) -> Iterator[Figure]:
    for name, found in loads.items():
        yield Figure(f"{name}: writes", "1/s", tuple(load.per_s for load in found[MANY]))
        yield Figure(f"{name}: p50", "ms", tuple(load.p50_ms for load in found[MANY]))
        yield Figure(f"{name}: p99", "ms", tuple(load.p99_ms for load in found[MANY]))
        yield Figure(f"{name}: CPU of all nodes by write", "µs", tuple(load.cpu_us for load in found[MANY]))
        yield Figure(f"{name}: one at a time, p50", "ms", tuple(load.p50_ms for load in found[1]))


def _ratios(loads: Loads) -> Iterator[Figure]:
    """Within a repetition."""
    for ours, (rate, cpu) in _TARGETS.items():
        for theirs in (name for name in loads if name not in _TARGETS):
            pairs = list(zip(loads[ours][MANY], loads[theirs][MANY], strict=True))
            alone = zip(loads[ours][1], loads[theirs][1], strict=True)
            of_etcd = theirs == _ETCD
            yield Figure(
                f"{ours} ÷ {theirs}: writes",
                "×",
                tuple(our.per_s / their.per_s for our, their in pairs),
                Target("≥", rate) if of_etcd else None,
            )
            yield Figure(
                f"{ours} ÷ {theirs}: CPU by write",
                "×",
                tuple(our.cpu_us / their.cpu_us for our, their in pairs),
                Target("≤", cpu) if of_etcd else None,
            )
            yield Figure(
                f"{ours} ÷ {theirs}: one at a time, p50", "×", tuple(our.p50_ms / their.p50_ms for our, their in alone)
            )


_SAVES = "Shoal, thread.save"
_SETS = "Shoal, register.set"
_ETCD = "etcd"
_TARGETS = {_SAVES: (1.3, 1.1), _SETS: (1.6, 0.9)}  # Beside etcd: the rate at least, the processor's time at most.
_METHOD = (
    f"Three nodes of each system over the loopback interface, each with a directory of its own, and one client process with "
    f"{MANY} tasks (then with one), each of which writes a state of 1 KB and waits until it is acknowledged; a third of the "
    "tasks uses each node where any node takes writes. A write is acknowledged once it is fsynced on two of three nodes: Shoal "
    'with `durability="quorum"`; etcd through its JSON gateway; Redis with `appendfsync always` and `SET` with `WAIT 1`, all '
    "on its primary; PostgreSQL with `synchronous_commit = on` and `ANY 1` of two standbys, an autocommitted INSERT of the "
    "state as JSON on a connection for each task, all on its primary. The systems take turns within a repetition, and the "
    "ratios are taken within it. The processor's time is that of all nodes' processes, not the client's."
)


# ── the load ──────────────────────────────────────────────────────────────────


async def _measured(system: System, tasks: int, seconds: float) -> Load:
    async with asynccontextmanager(system.clients)(max(tasks, NODES)) as write:
        await _loop(write, tasks, _WARM_UP_S)
        pids = system.pids()
        before = _cpu_s(pids)
        took, elapsed = await _loop(write, tasks, seconds)
        used = _cpu_s(pids) - before
    return Load(len(took) / elapsed, quantile(took, 0.5) * 1e3, quantile(took, 0.99) * 1e3, used / len(took) * 1e6)


async def _loop(write: Write, tasks: int, seconds: float) -> tuple[list[float], float]:
    """The seconds of each write, sorted, and of all."""
    took: list[float] = []
    began = perf_counter()

    async def task(number: int) -> None:
        step = 0
        while (sent := perf_counter()) < began + seconds:
            await write(number, step)
            took.append(perf_counter() - sent)
            step += 1

    await asyncio.gather(*map(task, range(tasks)))
    return sorted(took), perf_counter() - began


def _cpu_s(pids: Sequence[int]) -> float:
    fields = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields) / _TICKS_PER_S


# ── Shoal ─────────────────────────────────────────────────────────────────────


@contextmanager
def _shoal_saves(directory: Path) -> Iterator[System]:
    with Nodes(directory) as nodes:

        async def clients(tasks: int) -> AsyncIterator[Write]:
            async with AsyncExitStack() as stack:
                stores = [await stack.enter_async_context(shoal.connect(url, durability="quorum")) for url in nodes.urls]
                threads = [stores[task % NODES].space("bench").thread(f"t{task}") for task in range(tasks)]

                async def write(task: int, step: int) -> None:
                    await threads[task].save(state(task, step))

                await asyncio.gather(*(thread.save({}, overwrite=True) for thread in threads))
                yield write

        yield System(clients, lambda: nodes.pids)


@contextmanager
def _shoal_sets(directory: Path) -> Iterator[System]:
    with Nodes(directory) as nodes:

        async def clients(tasks: int) -> AsyncIterator[Write]:
            async with AsyncExitStack() as stack:
                stores = [await stack.enter_async_context(shoal.connect(url, durability="quorum")) for url in nodes.urls]
                registers = [stores[task % NODES].space("bench").register(f"r{task}") for task in range(tasks)]

                async def write(task: int, step: int) -> None:
                    await registers[task].set(state(task, step))

                yield write

        yield System(clients, lambda: nodes.pids)


_SYSTEMS: dict[str, Callable[[Path], AbstractContextManager[System | None]]] = {
    _SAVES: _shoal_saves,
    _SETS: _shoal_sets,
    _ETCD: systems.etcd,
    "Redis": systems.redis,
    "PostgreSQL": systems.postgres,
}
