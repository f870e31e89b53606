"""Three nodes in processes of their own: how soon the others show a write."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, NamedTuple

import uvloop

import shoal
from benchmarks.figures import Effort, Figure, Section, Target, quantile
from benchmarks.states import state
from shoal.client.store import Store
from shoal.protocol.requests import Durability

RATE = 500  # Saves a second, over all three nodes.
AGENTS = 48
_POLL_S = 0.02


def run(effort: Effort) -> Section:
    local: list[Spread] = []
    quorum: list[Spread] = []
    for _ in range(effort.repeats):
        local.append(spread("local", effort.seconds * 2))
        quorum.append(spread("quorum", effort.seconds * 2))
    figures = [
        Figure(
            "`local`: acknowledged → shown by both others, p50", "ms", tuple(each.shown_p50 for each in local), Target("≤", 10)
        ),
        Figure(
            "`local`: acknowledged → shown by both others, p99", "ms", tuple(each.shown_p99 for each in local), Target("≤", 60)
        ),
        Figure("`local`: sent → acknowledged, p50", "ms", tuple(each.saved_p50 for each in local)),
        Figure("`local`: sent → acknowledged, p99", "ms", tuple(each.saved_p99 for each in local)),
        Figure("`quorum`: sent → acknowledged, p50", "ms", tuple(each.saved_p50 for each in quorum), Target("≤", 10)),
        Figure("`quorum`: sent → acknowledged, p99", "ms", tuple(each.saved_p99 for each in quorum), Target("≤", 60)),
        Figure("saves that were made", "1/s", tuple(each.per_s for each in (*local, *quorum))),
    ]
    return Section("Three nodes", _METHOD, figures)


_METHOD = (
    "Three `shoal serve` processes over the loopback interface, each with a RocksDB directory of its own, and one client "
    f"process, all on this machine's cores. {AGENTS} agents, a third at each node, save states of 1 KB, {RATE} a second in all "
    "by a clock that does not wait for answers. A save counts as shown by a node when a watch on it delivers the checkpoint, "
    "which it does once it is durable there."
)


class Spread(NamedTuple):
    """All in milliseconds, but for the rate."""

    saved_p50: float
    saved_p99: float
    shown_p50: float
    shown_p99: float
    per_s: float


# ── how soon ──────────────────────────────────────────────────────────────────


def spread(durability: Durability, seconds: float) -> Spread:
    with tempfile.TemporaryDirectory() as directory, Nodes(Path(directory)) as nodes:
        return uvloop.run(_spread(nodes.urls, durability, seconds))


async def _spread(urls: list[str], durability: Durability, seconds: float) -> Spread:
    seen: list[dict[str, float]] = [{} for _ in urls]
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(shoal.connect(url)) for url in urls]
        watching = [asyncio.create_task(_watch(store, times)) for store, times in zip(stores, seen, strict=True)]
        await _all_watched(stores, seen)
        saves: list[tuple[str, float, float]] = []
        began = perf_counter()
        await _paced(stores, saves, durability=durability, end=began + seconds)
        elapsed = perf_counter() - began
        for times in seen:
            while not all(id in times for id, _, _ in saves):
                await asyncio.sleep(_POLL_S)
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    saved = sorted((answered - sent) * 1000 for _, sent, answered in saves)
    # The node that made it shows it first; what counts is the last of the others.
    shown = sorted(max(0.0, max(times[id] for times in seen) - answered) * 1000 for id, _, answered in saves)
    return Spread(
        quantile(saved, 0.5), quantile(saved, 0.99), quantile(shown, 0.5), quantile(shown, 0.99), len(saves) / elapsed
    )


async def _watch(store: Store, times: dict[str, float]) -> None:
    async with aclosing(store.space("bench").watch()) as changes:
        async for change in changes:
            times[change.id] = perf_counter()


async def _all_watched(stores: list[Store], seen: list[dict[str, float]]) -> None:
    """Return once every watch has delivered something."""
    while not all(seen):
        await stores[0].space("bench").thread("first").save({}, overwrite=True)
        await asyncio.sleep(_POLL_S)


async def _paced(stores: list[Store], saves: list[tuple[str, float, float]], *, durability: Durability, end: float) -> None:
    threads = [stores[agent % len(stores)].space("bench").thread(f"agent-{agent}") for agent in range(AGENTS)]
    await asyncio.gather(*(thread.save(state(agent, 0)) for agent, thread in enumerate(threads)))

    async def save(step: int) -> None:
        agent = step % AGENTS
        sent = perf_counter()
        checkpoint = await threads[agent].save(state(agent, step), durability=durability)
        saves.append((checkpoint.id, sent, perf_counter()))

    async with asyncio.TaskGroup() as group:
        began, step = perf_counter(), 0
        while (now := perf_counter()) < end:
            while step < (now - began) * RATE:
                step += 1
                group.create_task(save(step))
            await asyncio.sleep(0.002)


# ── the nodes ─────────────────────────────────────────────────────────────────


class Nodes:
    """Three nodes that know each other, as a context, or another number; `urls` are theirs. One alone has no peers."""

    def __init__(self, directory: Path, count: int = 3) -> None:
        self._directory = directory
        self._addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
        self.urls = [f"http://{address}" for address in self._addresses]
        self._processes: dict[int, subprocess.Popen[str]] = {}

    def __enter__(self) -> Nodes:
        for number in range(len(self.urls)):
            self.start(number)
        while not all(_linked(url) for url in self.urls):
            sleep(_POLL_S)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            process.wait()

    def start(self, number: int) -> None:
        """Return once it is ready."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        command = [sys.executable, "-m", "shoal", "serve", "--data", str(self._directory / f"n{number}")]
        command += ["--listen", self._addresses[number]]
        if len(self._addresses) > 1:
            command += ["--join", ",".join(self._addresses)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._processes[number] = process
        assert process.stdout is not None
        process.stdout.readline()

    @property
    def pids(self) -> list[int]:
        """Of the nodes that run."""
        return [process.pid for process in self._processes.values()]

    def kill(self, number: int) -> None:
        self._processes[number].kill()
        self._processes.pop(number).wait()


def _linked(url: str) -> bool:
    """Whether the node can send to all others."""
    return all(member["state"] != "unreachable" for member in members(url))


def members(url: str) -> list[dict[str, Any]]:
    """The cluster's members as a node sees them, itself first."""
    with urllib.request.urlopen(url + "/v1/cluster") as answer:
        found: list[dict[str, Any]] = json.load(answer)["members"]
        return found


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens at."""
    with _sockets(count) as sockets:
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def _sockets(count: int) -> Iterator[list[socket.socket]]:
    made = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            each.close()
