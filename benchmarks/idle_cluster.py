"""What a cluster costs that nobody uses: five real nodes, and up to fifty simulated ones.

`python -m benchmarks.idle_cluster [SECONDS]` measures three nodes that hold nothing, and one alone.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path
from time import perf_counter, sleep
from typing import NamedTuple

import pytest

import shoal
from benchmarks.cluster import Nodes
from benchmarks.figures import Effort, Figure, Section, Target
from shoal.protocol.requests import Add
from shoal.testing.machines import run as run_in_virtual_time
from simulation.plan import Plan
from simulation.world.client import Client
from simulation.world.cluster import SimulatedCluster
from simulation.world.trace import Trace
from simulation.world.wires import Wire

REAL = 5
ASKED_CPU, ASKED_MB = 1.2, 80  # Of a node: % of a core, and megabytes.
OBJECTS = 500
_HEADER_BYTES = 52  # Of IPv4 and TCP with time stamps, for each segment.
_SETTLED_S = 8.0
_VIRTUAL_S = 20.0
_WRITES = 100


def run(effort: Effort) -> Section:
    full = effort.repeats > 2
    costs = real(30.0 if full else 10.0)
    figures = [
        Figure(
            f"CPU of a node, of {REAL} that hold {OBJECTS} counters",
            "% of a core",
            costs.cpu_percent,
            Target("≤", 1),
            worst=True,
        )
    ]
    if costs.bytes_per_s is not None:
        figures.append(Figure("bytes that a node sends, with headers", "B/s", (costs.bytes_per_s,), Target("≤", 2048)))
    for count in (5, 10, 20, 50) if full else (5, 10):
        costs_there = simulated(count)
        figures += [
            Figure(f"{count} simulated nodes: a node sends", "B/s", (costs_there.idle_bytes_per_s,)),
            Figure(f"{count} simulated nodes: a node sends for each write in the cluster", "B", (costs_there.bytes_per_write,)),
            Figure(f"{count} simulated nodes: a node's memory", "KiB", (costs_there.memory_kib,)),
        ]
    return Section("Idle cluster", _METHOD, figures)


_METHOD = (
    f"{REAL} `shoal serve` processes over the loopback interface, after {OBJECTS} counters were added to, in about as many "
    f"partitions, and {_SETTLED_S:g} s of rest. CPU is that of each process, by the kernel; bytes are what it counts on the "
    f"sockets of the links, with {_HEADER_BYTES} bytes of headers for each segment. Simulated nodes run in one process in "
    "virtual time; bytes are those of messages, without headers and heartbeats; memory is what Python has allocated for a "
    f"cluster that holds {_WRITES} operations, divided by its nodes."
)


class Costs(NamedTuple):
    cpu_percent: tuple[float, ...]  # Of each node.
    bytes_per_s: float | None  # Of one; None where the system does not tell.


def real(seconds: float) -> Costs:
    """Of nodes that are processes."""
    with tempfile.TemporaryDirectory() as directory, Nodes(Path(directory), REAL) as nodes:
        asyncio.run(_fill(nodes.urls[0]))
        sleep(_SETTLED_S)
        ports = {url.rpartition(":")[2] for url in nodes.urls}
        began, sent, used = perf_counter(), _sent_bytes(ports), [_cpu_s(pid) for pid in nodes.pids]
        sleep(seconds)
        passed, sent_then, used_then = perf_counter() - began, _sent_bytes(ports), [_cpu_s(pid) for pid in nodes.pids]
    cpu = tuple(100 * (after - before) / passed for before, after in zip(used, used_then, strict=True))
    return Costs(cpu, None if sent is None or sent_then is None else (sent_then - sent) / passed / REAL)


def at_rest(seconds: float) -> None:
    """Print what nodes take that nobody uses: three of a cluster, and one alone."""
    asked = f"a node may take {ASKED_CPU} % of a core, {ASKED_MB} MB"
    print(f"load {os.getloadavg()[0]:.1f}; {seconds:g} s each, after {_SETTLED_S:g} s; {asked}", flush=True)
    for count in (3, 1):
        with tempfile.TemporaryDirectory() as directory, Nodes(Path(directory), count) as nodes:
            sleep(_SETTLED_S)
            began, used = perf_counter(), [_used_s(pid) for pid in nodes.pids]
            sleep(seconds)
            passed = perf_counter() - began
            cpu = [100 * (_used_s(pid) - before) / passed for pid, before in zip(nodes.pids, used, strict=True)]
            memory = [_resident_bytes(pid) / 1e6 for pid in nodes.pids]
        verdict = "met" if max(cpu) <= ASKED_CPU and max(memory) <= ASKED_MB else "missed"
        shown = "; ".join(f"{share:.2f} % of a core, {size:.1f} MB" for share, size in zip(cpu, memory, strict=True))
        print(f"{count} idle: {shown}: {verdict}", flush=True)


def _used_s(pid: int) -> float:
    """The processor's time of a process: that of its threads, to the nanosecond (Linux)."""
    return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _fill(url: str) -> None:
    async with shoal.connect(url) as store:
        for number in range(OBJECTS):
            await store.space("s").counter(f"n{number}").add(1)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _sent_bytes(ports: set[str]) -> int | None:
    """What was sent so far on the open connections of these ports."""
    if shutil.which("ss") is None:
        return None
    listed = subprocess.run(["ss", "-tinOH"], stdout=subprocess.PIPE, check=True, text=True).stdout
    total = 0
    for line in listed.splitlines():
        ends = re.findall(r":(\d+)\s", line)[:2]
        if not ports.isdisjoint(ends):
            total += _field(line, "bytes_sent") + _HEADER_BYTES * _field(line, "segs_out")
    return total


def _field(line: str, name: str) -> int:
    found = re.search(rf"{name}:(\d+)", line)
    return 0 if found is None else int(found[1])


class SimulatedCosts(NamedTuple):
    """Of one node."""

    idle_bytes_per_s: float
    bytes_per_write: float
    memory_kib: float


def simulated(count: int) -> SimulatedCosts:
    """Of nodes in virtual time."""
    with pytest.MonkeyPatch.context() as patch:
        return run_in_virtual_time(_simulated(count, patch))


async def _simulated(count: int, patch: pytest.MonkeyPatch) -> SimulatedCosts:
    plan = Plan(seed=1, nodes=count, settings={"clock_interval_s": 10.0, "quorum_timeout_s": 30.0, "request_timeout_s": 60.0})
    sent = [0]
    offer = Wire.offer

    def counted(self: Wire, message: bytes, /) -> bool:
        sent[0] += len(message)
        return offer(self, message)

    patch.setattr(Wire, "offer", counted)
    gc.collect()
    tracemalloc.start()
    try:
        async with SimulatedCluster(plan, trace=Trace(asyncio.get_running_loop().time, lines_max=0)) as cluster:
            client = Client(cluster, [plan.names[0]], name="one", random=plan.random_for("one"))
            await asyncio.sleep(10.0)
            before = sent[0]
            for number in range(_WRITES):
                await client.session.call(Add("s", f"n{number}", 1))
            await asyncio.sleep(_VIRTUAL_S)
            written = sent[0] - before
            gc.collect()
            memory = tracemalloc.get_traced_memory()[0]
            before = sent[0]
            await asyncio.sleep(_VIRTUAL_S)
            idle = sent[0] - before
            await client.session.close()
    finally:
        tracemalloc.stop()
    per_s = idle / count / _VIRTUAL_S
    return SimulatedCosts(per_s, (written / count - per_s * _VIRTUAL_S) / _WRITES, memory / count / 1024)


if __name__ == "__main__":
    at_rest(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
