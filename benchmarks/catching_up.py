"""A node that was away: how fast it catches up, alone and beside clients that go on writing to all nodes."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter, sleep
from typing import NamedTuple

import uvloop

import shoal
from benchmarks.cluster import Nodes, members
from benchmarks.figures import Effort, Figure, Section, Target, quantile
from benchmarks.states import state
from shoal.client.store import Space

MISSED = 20_000
MISSED_UNDER_LOAD = 36_000
RATE = 300  # Saves a second beside it, over all three nodes.
AGENTS = 48
_WRITERS = 128
_POLL_S = 0.05  # Each look costs the node a millisecond or two.
_PATIENCE_S = 120.0


def run(effort: Effort) -> Section:
    share = 1 if effort.repeats > 2 else 10
    alone: list[float] = []
    beside: list[Beside] = []
    for _ in range(min(3, effort.repeats)):
        alone.append(catching_up(MISSED // share))
        beside.append(catching_up_beside(MISSED_UNDER_LOAD // share))
    load = f"beside {RATE} saves/s"
    figures = [
        Figure(f"a node that missed {MISSED:,} operations: ready → holds them all", "s", tuple(alone), Target("≤", 1.2)),
        Figure(
            f"a node that missed {MISSED_UNDER_LOAD:,}, {load}: ready → holds them all",
            "s",
            tuple(each.seconds for each in beside),
            Target("≤", 6),
        ),
        Figure(f"saves {load} meanwhile: p50", "ms", tuple(each.p50_ms for each in beside)),
        Figure(f"saves {load} meanwhile: p99", "ms", tuple(each.p99_ms for each in beside), Target("≤", 80)),
        Figure(f"saves {load} meanwhile, at the node itself: p99", "ms", tuple(each.own_p99_ms for each in beside)),
    ]
    return Section("Catching up", _METHOD, figures)


_METHOD = (
    "Three `shoal serve` processes over the loopback interface. One is killed, saves of states of 1 KB are made on the others "
    f"by {_WRITERS} writers, and it is started again; the clock runs from its readiness until it holds as many operations as "
    f"they do. Beside clients: from its readiness on, {AGENTS} agents, a third at each node, save {RATE} times a second in "
    "all, by a clock that does not wait for answers; each save waits for its node's disk."
)


class Beside(NamedTuple):
    """How long it took, and the saves of all clients meanwhile."""

    seconds: float
    p50_ms: float
    p99_ms: float
    own_p99_ms: float  # Of the clients of the node that catches up.


def catching_up(operations: int) -> float:
    """The seconds that a node needs for operations that it missed."""
    with tempfile.TemporaryDirectory() as directory, Nodes(Path(directory)) as nodes:
        _miss(nodes, operations)
        began = perf_counter()
        while _held(nodes.urls[2]) < operations:
            sleep(_POLL_S)
        return perf_counter() - began


def catching_up_beside(operations: int) -> Beside:
    """The same while clients write to all three nodes."""
    with tempfile.TemporaryDirectory() as directory, Nodes(Path(directory)) as nodes:
        _miss(nodes, operations)
        return uvloop.run(_beside(nodes.urls, operations))


def _miss(nodes: Nodes, operations: int) -> None:
    nodes.kill(2)
    uvloop.run(_write(nodes.urls[:2], operations))
    nodes.start(2)


async def _write(urls: list[str], operations: int) -> None:
    async with shoal.connect(",".join(urls)) as store:
        space = store.space("bench")
        await asyncio.gather(*(_save_many(space, writer, operations // _WRITERS + 1) for writer in range(_WRITERS)))


async def _save_many(space: Space, writer: int, count: int) -> None:
    thread = space.thread(f"writer-{writer}")
    for step in range(count):
        await thread.save(state(writer, step))


def _held(url: str) -> int:
    return int(members(url)[0]["operations"])


async def _beside(urls: list[str], operations: int) -> Beside:
    saves: list[tuple[int, float]] = []  # The node, and the seconds.
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(shoal.connect(url)) for url in urls]
        threads = [stores[agent % len(stores)].space("bench").thread(f"agent-{agent}") for agent in range(AGENTS)]

        async def save(step: int) -> None:
            agent = step % AGENTS
            sent = perf_counter()
            await threads[agent].save(state(agent, step), overwrite=True)
            saves.append((agent % len(stores), perf_counter() - sent))

        async def load() -> None:
            began, step = perf_counter(), 0
            async with asyncio.TaskGroup() as group:
                while True:
                    while step < (perf_counter() - began) * RATE:
                        step += 1
                        group.create_task(save(step))
                    await asyncio.sleep(0.002)

        began = perf_counter()
        loading = asyncio.create_task(load())
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not await asyncio.to_thread(_has_caught_up, urls, operations):
                    await asyncio.sleep(_POLL_S)
            seconds = perf_counter() - began
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
    took = sorted(each * 1e3 for _, each in saves)
    own = sorted(each * 1e3 for node, each in saves if node == 2)
    return Beside(seconds, quantile(took, 0.5), quantile(took, 0.99), quantile(own, 0.99))


def _has_caught_up(urls: list[str], operations: int) -> bool:
    """Whether the last node holds as many operations as the first one did just before."""
    wanted = _held(urls[0])
    return _held(urls[2]) >= max(wanted, operations)
