"""Three nodes in processes of their own: items that are claimed and completed, and what leases cost."""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

import uvloop

import shoal
from benchmarks.cluster import Nodes
from benchmarks.figures import Effort, Figure, Section, Target, quantile
from shoal.client.store import Store

WORKERS = 100
LEASES = 1000
_ITEMS_PER_S = 500  # That are put for each second of a measurement.
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def run(effort: Effort) -> Section:
    spread = [claimed(effort.seconds * 4, nodes=3) for _ in range(effort.repeats)]
    single = [claimed(effort.seconds * 4, nodes=1) for _ in range(effort.repeats)]
    held = [leased(max(10.0, effort.seconds * 10)) for _ in range(max(1, effort.repeats // 2))]
    figures = [
        Figure(
            f"claimed and completed by {WORKERS} workers at three nodes",
            "1/s",
            tuple(each.per_s for each in spread),
            Target("≥", 1000),
        ),
        Figure("CPU of all nodes for an item", "ms", tuple(each.nodes_ms for each in spread)),
        Figure("CPU of the client for an item", "ms", tuple(each.client_ms for each in spread)),
        Figure(
            f"claimed and completed by {WORKERS} workers at one of three nodes", "1/s", tuple(each.per_s for each in single)
        ),
        Figure("CPU of all nodes for an item, with all workers at one", "ms", tuple(each.nodes_ms for each in single)),
        Figure("one save through a quorum, p50", "ms", tuple(each.write_ms for each in held)),
        Figure(
            "a lease with a name of its own: acquired, p50",
            "quorum writes",
            tuple(each.acquire_writes for each in held),
            Target("≤", 2),
        ),
        Figure("a thread's lease: acquired, p50", "quorum writes", tuple(each.thread_writes for each in held)),
        Figure(
            f"{LEASES} leases with a ttl of 30 s: CPU of all nodes and the client",
            "% of a core",
            tuple(each.renewal_percent for each in held),
            Target("≤", 1),
        ),
    ]
    return Section("Claims and leases", _METHOD, figures)


_METHOD = (
    "Three `shoal serve` processes over the loopback interface, each with a RocksDB directory of its own, and one client "
    "process, all on this machine's cores. Each worker claims an item with a ttl of 60 s, completes it, and claims the next "
    "one. CPU is that of the processes, by the kernel. A quorum write is a save of 1 KB with durability `quorum`, measured "
    f"beside the leases, one at a time. {LEASES} leases are held by one client; their renewals are measured for at least 10 s, "
    "less what the same processes use without leases."
)


class Claimed(NamedTuple):
    per_s: float
    nodes_ms: float
    client_ms: float


class Leased(NamedTuple):
    write_ms: float
    acquire_writes: float
    thread_writes: float
    renewal_percent: float


# ── claims ────────────────────────────────────────────────────────────────────


def claimed(seconds: float, *, nodes: int) -> Claimed:
    """Items for so many seconds, with the workers at so many of three nodes."""
    with tempfile.TemporaryDirectory() as directory, Nodes(Path(directory)) as cluster:
        return uvloop.run(_claimed(cluster, cluster.urls[:nodes], round(seconds * _ITEMS_PER_S)))


async def _claimed(cluster: Nodes, urls: list[str], items: int) -> Claimed:
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(shoal.connect(url)) for url in urls]
        await _work(stores, "warm", WORKERS * 2)
        worklist = stores[0].space("bench").worklist("pages")
        for first in range(0, items, 500):
            await worklist.add({f"{number:06}": number for number in range(first, min(items, first + 500))}, durability="all")
        before, began_cpu, began = _cpu_s(cluster.pids), process_time(), perf_counter()
        done = await _drain(stores, "pages")
        elapsed, client_s = perf_counter() - began, process_time() - began_cpu
        nodes_s = _cpu_s(cluster.pids) - before
    assert sorted(done) == [f"{number:06}" for number in range(items)], "an item was done twice, or never"
    return Claimed(items / elapsed, nodes_s / items * 1000, client_s / items * 1000)


async def _work(stores: list[Store], name: str, items: int) -> None:
    await stores[0].space("bench").worklist(name).add({f"{number:06}": number for number in range(items)}, durability="all")
    await _drain(stores, name)


async def _drain(stores: list[Store], name: str) -> list[str]:
    """Claim and complete until nothing is left; returns what was done."""
    done: list[str] = []

    async def work(number: int) -> None:
        worklist = stores[number % len(stores)].space("bench").worklist(name)
        while (job := await worklist.claim(ttl=60)) is not None:
            await job.complete({"words": number})
            done.append(job.item)

    await asyncio.gather(*(work(number) for number in range(WORKERS)))
    return done


# ── leases ────────────────────────────────────────────────────────────────────


def leased(seconds: float) -> Leased:
    """What leases cost, renewed for so many seconds."""
    with tempfile.TemporaryDirectory() as directory, Nodes(Path(directory)) as cluster:
        return uvloop.run(_leased(cluster, seconds))


async def _leased(cluster: Nodes, seconds: float) -> Leased:
    async with shoal.connect(cluster.urls[0]) as store:
        space = store.space("bench")
        write_ms: list[float] = []
        acquire_ms: list[float] = []
        thread_ms: list[float] = []
        for number in range(50):
            began = perf_counter()
            await space.thread("agent").save({"text": "x" * 1000, "number": number}, durability="quorum", overwrite=True)
            write_ms.append((perf_counter() - began) * 1000)
            for lease, times in (
                (space.lease(f"own-{number}"), acquire_ms),
                (space.thread(f"t-{number}").lease(ttl=30), thread_ms),
            ):
                began = perf_counter()
                async with lease:
                    times.append((perf_counter() - began) * 1000)
        idle_s = await _cpu_of(cluster, seconds)
        async with AsyncExitStack() as stack:
            for first in range(0, LEASES, 50):
                await asyncio.gather(
                    *(stack.enter_async_context(space.lease(f"held-{number}", ttl=30)) for number in range(first, first + 50))
                )
            await asyncio.sleep(seconds)  # The first renewals come together only by and by.
            busy_s = await _cpu_of(cluster, seconds)
    unit = quantile(sorted(write_ms), 0.5)
    return Leased(
        unit,
        quantile(sorted(acquire_ms), 0.5) / unit,
        quantile(sorted(thread_ms), 0.5) / unit,
        (busy_s - idle_s) / seconds * 100,
    )


async def _cpu_of(cluster: Nodes, seconds: float) -> float:
    """What the nodes and this process use in so many seconds."""
    before, own = _cpu_s(cluster.pids), process_time()
    await asyncio.sleep(seconds)
    return _cpu_s(cluster.pids) - before + process_time() - own


def _cpu_s(pids: list[int]) -> float:
    """The CPU time of these processes, in seconds."""
    return sum(_ticks(pid) for pid in pids) * _TICK_S


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
