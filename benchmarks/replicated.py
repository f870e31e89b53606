"""Durable writes through three nodes, in a closed loop: Shoal's beside those of etcd and Redis, where these are installed."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import aiohttp
import uvloop

import shoal
from benchmarks.cluster import Nodes, free_ports
from benchmarks.figures import Effort, Figure, Section, Target, quantile
from benchmarks.states import state

TASKS = 64
NODES = 3

_WARM_UP_S = 1.0
_PATIENCE_S = 30.0
_POLL_S = 0.05
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ETCD = "etcd"
_REDIS = "redis-server"

Write = Callable[[int, int], Awaitable[None]]
"""Writes the state of a task's step, and returns once the system has acknowledged it."""


class Load(NamedTuple):
    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float  # Of all three nodes, by write.


class System(NamedTuple):
    """A system that was started: how a client writes to it, and the processes of its nodes."""

    clients: Callable[[], AsyncIterator[Write]]
    pids: Sequence[int]


def run(effort: Effort) -> Section:
    """Measure each system in turn, `effort.repeats` times."""
    loads: dict[str, list[Load]] = {}
    for _ in range(effort.repeats):
        for name, start in _SYSTEMS.items():
            with tempfile.TemporaryDirectory() as directory, start(Path(directory)) as system:
                if system is not None:
                    loads.setdefault(name, []).append(uvloop.run(_measured(system, effort.seconds * 2)))
    missing = [name for name in _SYSTEMS if name not in loads]
    method = _METHOD + (f" Not installed here, so not measured: {', '.join(missing)}." if missing else "")
    return Section("Replicated writes", method, _figures(loads))


def _figures(loads: dict[str, list[Load]]) -> list[Figure]:
    figures: list[Figure] = []
    for name, found in loads.items():
        target = Target("≤", _CPU_US[name]) if name in _CPU_US else None
        figures += [
            Figure(f"{name}: writes", "1/s", tuple(load.per_s for load in found)),
            Figure(f"{name}: p50", "ms", tuple(load.p50_ms for load in found)),
            Figure(f"{name}: p99", "ms", tuple(load.p99_ms for load in found)),
            Figure(f"{name}: CPU of all nodes by write", "µs", tuple(load.cpu_us for load in found), target),
        ]
    if "etcd" in loads:
        pairs = list(zip(loads[_SAVES], loads["etcd"], strict=True))
        rates = tuple(ours.per_s / theirs.per_s for ours, theirs in pairs)
        figures.append(Figure(f"{_SAVES} ÷ etcd: writes", "×", rates, Target("≥", 2)))
        figures.append(
            Figure(f"{_SAVES} ÷ etcd: CPU by write", "×", tuple(ours.cpu_us / theirs.cpu_us for ours, theirs in pairs))
        )
    return figures


_SAVES = "Shoal, thread.save"
_SETS = "Shoal, register.set"
_CPU_US = {_SAVES: 350.0, _SETS: 250.0}
_METHOD = (
    f"Three nodes of each system over the loopback interface, each with a directory of its own, and one client process with "
    f"{TASKS} tasks, each of which writes a state of 1 KB and waits until it is acknowledged; a third of the tasks uses each "
    'node. A write is acknowledged once it is fsynced on two of three nodes: Shoal with `durability="quorum"`; etcd through '
    "its JSON gateway; Redis with `appendfsync always` and `SET` with `WAIT 1`, all on its primary."
)


# ── the load ──────────────────────────────────────────────────────────────────


async def _measured(system: System, seconds: float) -> Load:
    async with asynccontextmanager(system.clients)() as write:
        await _loop(write, _WARM_UP_S)
        before = _cpu_s(system.pids)
        took, elapsed = await _loop(write, seconds)
        used = _cpu_s(system.pids) - before
    return Load(len(took) / elapsed, quantile(took, 0.5) * 1e3, quantile(took, 0.99) * 1e3, used / len(took) * 1e6)


async def _loop(write: Write, seconds: float) -> tuple[list[float], float]:
    """The seconds of each write, sorted, and of all."""
    took: list[float] = []
    began = perf_counter()

    async def task(number: int) -> None:
        step = 0
        while (sent := perf_counter()) < began + seconds:
            await write(number, step)
            took.append(perf_counter() - sent)
            step += 1

    await asyncio.gather(*map(task, range(TASKS)))
    return sorted(took), perf_counter() - began


def _cpu_s(pids: Sequence[int]) -> float:
    fields = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields) / _TICKS_PER_S


# ── the systems ───────────────────────────────────────────────────────────────


@contextmanager
def _shoal_saves(directory: Path) -> Iterator[System]:
    with Nodes(directory) as nodes:

        async def clients() -> AsyncIterator[Write]:
            async with AsyncExitStack() as stack:
                stores = [await stack.enter_async_context(shoal.connect(url, durability="quorum")) for url in nodes.urls]
                threads = [stores[task % NODES].space("bench").thread(f"t{task}") for task in range(TASKS)]

                async def write(task: int, step: int) -> None:
                    await threads[task].save(state(task, step))

                await asyncio.gather(*(thread.save({}, overwrite=True) for thread in threads))
                yield write

        yield System(clients, nodes.pids)


@contextmanager
def _shoal_sets(directory: Path) -> Iterator[System]:
    with Nodes(directory) as nodes:

        async def clients() -> AsyncIterator[Write]:
            async with AsyncExitStack() as stack:
                stores = [await stack.enter_async_context(shoal.connect(url, durability="quorum")) for url in nodes.urls]
                registers = [stores[task % NODES].space("bench").register(f"r{task}") for task in range(TASKS)]

                async def write(task: int, step: int) -> None:
                    await registers[task].set(state(task, step))

                yield write

        yield System(clients, nodes.pids)


@contextmanager
def _etcd(directory: Path) -> Iterator[System | None]:
    if shutil.which(_ETCD) is None:
        yield None
        return
    ports = free_ports(2 * NODES)
    clients_at, peers_at = ([f"http://127.0.0.1:{port}" for port in some] for some in (ports[:NODES], ports[NODES:]))
    cluster = ",".join(f"n{number}={url}" for number, url in enumerate(peers_at))
    commands = []
    for number, (client, peer) in enumerate(zip(clients_at, peers_at, strict=True)):
        command = [_ETCD, "--name", f"n{number}", "--data-dir", str(directory / f"n{number}"), "--log-level", "error"]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster]
        commands.append(command)
    with _processes(commands) as pids:

        async def clients() -> AsyncIterator[Write]:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=TASKS)) as http:

                async def write(task: int, step: int) -> None:
                    body = {"key": _base64(f"t{task}"), "value": _base64(json.dumps(state(task, step)))}
                    async with http.post(f"{clients_at[task % NODES]}/v3/kv/put", json=body) as answer:
                        assert answer.status == 200, await answer.text()

                await _patiently(write)
                yield write

        yield System(clients, pids)


@contextmanager
def _redis(directory: Path) -> Iterator[System | None]:
    if shutil.which(_REDIS) is None:
        yield None
        return
    from redis.asyncio import Redis

    ports = free_ports(NODES)
    commands = []
    for port in ports:
        (directory / str(port)).mkdir()
        command = [_REDIS, "--port", str(port), "--dir", str(directory / str(port)), "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "always"]
        commands.append(command + ([] if port == ports[0] else ["--replicaof", "127.0.0.1", str(ports[0])]))
    with _processes(commands) as pids:

        async def clients() -> AsyncIterator[Write]:
            connections = [Redis(port=ports[0]) for _ in range(TASKS)]

            async def write(task: int, step: int) -> None:
                pipeline = connections[task].pipeline(transaction=False)
                pipeline.set(f"t{task}", json.dumps(state(task, step)))
                pipeline.execute_command("WAIT", 1, 1000)
                _, copies = await pipeline.execute()
                assert copies >= 1

            await _patiently(write)
            yield write
            await asyncio.gather(*(connection.aclose() for connection in connections))

        yield System(clients, pids)


_SYSTEMS: dict[str, Callable[[Path], AbstractContextManager[System | None]]] = {
    _SAVES: _shoal_saves,
    _SETS: _shoal_sets,
    "etcd": _etcd,
    "Redis": _redis,
}


@contextmanager
def _processes(commands: list[list[str]]) -> Iterator[list[int]]:
    with ExitStack() as stack:
        running = []
        for command in commands:
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            stack.callback(process.terminate)
            running.append(process.pid)
        yield running


async def _patiently(write: Write) -> None:
    """Write once through each node, as soon as they take it."""
    async with asyncio.timeout(_PATIENCE_S):
        for task in range(NODES):
            while True:
                try:
                    await write(task, 0)
                    break
                except Exception:
                    await asyncio.sleep(_POLL_S)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
