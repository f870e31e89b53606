"""A busy space beside a quiet one: how much longer the quiet one's adds take, embedded, at one node, and over three nodes.

`python -m benchmarks.fairness LOAD SECONDS URL …` is the crowd of a busy space, in a process of its own.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import uvloop

import shoal
from benchmarks import twin
from benchmarks.cluster import Nodes
from benchmarks.figures import Effort, Figure, Section, Target, quantile
from benchmarks.served import served
from benchmarks.states import state
from shoal.client.store import Space, Store
from shoal.protocol.requests import Durability

_PAUSE_S = 0.005  # Between two adds of the quiet space.
_ITEMS = 2000
_CONNECTIONS = 4  # Of the crowd, to each node.
_TASKS = 64  # On each of its connections.
_EMBEDDED_TASKS = 256
_BATCH = 16

Act = Callable[[Space, int, int], Awaitable[object]]
"""What a task of the crowd does in a step."""


class Beside(NamedTuple):
    """How long an add of the quiet space took, in milliseconds, and what the crowd did meanwhile."""

    p50_ms: float
    p99_ms: float
    busy_per_s: float = 0.0


def run(effort: Effort) -> Section:
    """Each repetition measures a place without a crowd and then with one of each kind, one after the other."""
    figures: list[Figure] = []
    for place, measure in _PLACES.items():
        pairs: dict[str, list[tuple[Beside, Beside]]] = {load: [] for load in _ACTS}
        bare: list[tuple[Beside, Beside]] = []
        for _ in range(effort.repeats):
            alone = measure("", effort.seconds)
            for load in _ACTS:
                pairs[load].append((alone, measure(load, effort.seconds)))
            if place == _THREE:
                bare.append((_bare("", effort.seconds), _bare("any", effort.seconds)))
        for load, found in pairs.items():
            figures += _figures(f"{place}, {load}", found)
            if place == _THREE:
                figures += _beside_bare(found, bare)
    return Section("A busy space beside a quiet one", _METHOD, figures)


def _figures(name: str, pairs: Sequence[tuple[Beside, Beside]]) -> Iterator[Figure]:
    yield Figure(f"{name}: an add alone, p50", "ms", tuple(alone.p50_ms for alone, _ in pairs))
    yield Figure("… p99", "ms", tuple(alone.p99_ms for alone, _ in pairs))
    yield Figure("… beside the busy space, p50", "ms", tuple(beside.p50_ms for _, beside in pairs))
    yield Figure("… p99", "ms", tuple(beside.p99_ms for _, beside in pairs))
    yield Figure("… ÷ alone, p50", "×", tuple(b.p50_ms / a.p50_ms for a, b in pairs), Target("≤", 3))
    yield Figure("… p99", "×", tuple(b.p99_ms / a.p99_ms for a, b in pairs), Target("≤", 5))
    yield Figure("… requests of the busy space", "1/s", tuple(beside.busy_per_s for _, beside in pairs))


def _beside_bare(pairs: Sequence[tuple[Beside, Beside]], bare: Sequence[tuple[Beside, Beside]]) -> Iterator[Figure]:
    """What is left of a ratio beside that of bare nodes, which lose what any node loses on this machine."""
    yield Figure("… bare nodes: beside ÷ alone, p50", "×", tuple(b.p50_ms / a.p50_ms for a, b in bare))
    yield Figure("… p99", "×", tuple(b.p99_ms / a.p99_ms for a, b in bare))
    for name, at in (("… ÷ alone, as a part of what bare nodes lose, p50", 0), ("… p99", 1)):
        ratios = [
            (beside[at] / alone[at]) / (lost[at] / least[at])
            for (alone, beside), (least, lost) in zip(pairs, bare, strict=True)
        ]
        yield Figure(name, "×", tuple(ratios), Target("≤", 1.5))


_METHOD = (
    f"One task adds to a counter of a quiet space, waits {_PAUSE_S * 1000:.0f} ms, and adds again; beside it a crowd uses "
    f"another space as fast as it is answered. Embedded: {_EMBEDDED_TASKS} tasks in the same process. One node: a process of "
    f"its own with {_CONNECTIONS} connections of {_TASKS} tasks each. Three nodes: the same at each node, and both spaces "
    f"write with `quorum`. `saves`: states of 1 KB; `batches`: {_BATCH} registers of 1 KB in one write; `searches`: "
    f"of {_ITEMS} items for one that is not there. Three nodes, their crowd and the quiet client are five processes, which "
    "wait for each other's processors where there are fewer than five; so beside them stand three *bare nodes* "
    "(`benchmarks/twin.py`), which only append, push, call fdatasync and answer, and compute in steps of 1 ms when the quiet "
    "add leaves them the time."
)


# ── the quiet space ───────────────────────────────────────────────────────────


async def _adds(store: Store, seconds: float, durability: Durability) -> Beside:
    counter, took = store.space("quiet").counter("adds"), list[float]()
    await counter.add(1, durability=durability)
    ends = perf_counter() + seconds
    while (began := perf_counter()) < ends:
        await counter.add(1, durability=durability)
        took.append((perf_counter() - began) * 1000)
        await asyncio.sleep(_PAUSE_S)
    took.sort()
    return Beside(quantile(took, 0.5), quantile(took, 0.99))


async def _fill(store: Store) -> None:
    """The items that are searched."""
    for start in range(0, _ITEMS, 500):
        async with store.space("busy").batch() as batch:
            for n in range(start, start + 500):
                batch.items.put(("memory", "all"), f"{n:07}", {"kind": f"kind-{n % 7}", "text": "found " * 20})


def _embedded(load: str, seconds: float) -> Beside:
    async def measure() -> Beside:
        with tempfile.TemporaryDirectory(prefix="shoal-bench-") as directory:
            async with shoal.open(Path(directory) / "store") as store:
                await _fill(store)
                done = [0]
                crowd = [asyncio.create_task(_member(store.space("busy"), load, nth, done)) for nth in range(_EMBEDDED_TASKS)]
                await asyncio.sleep(0.5 if load else 0)
                before, began = done[0], perf_counter()
                beside = await _adds(store, seconds, "local")
                beside = beside._replace(busy_per_s=(done[0] - before) / (perf_counter() - began))
                for member in crowd:
                    member.cancel()
                await asyncio.gather(*crowd, return_exceptions=True)
                return beside

    return uvloop.run(measure())


def _at_one_node(load: str, seconds: float) -> Beside:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as directory, served(Path(directory) / "store") as url:
        return _served([url], load, seconds, "local")


def _at_three_nodes(load: str, seconds: float) -> Beside:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as directory, Nodes(Path(directory)) as nodes:
        return _served(nodes.urls, load, seconds, "quorum")


def _bare(load: str, seconds: float) -> Beside:
    with (
        tempfile.TemporaryDirectory(prefix="shoal-bench-") as directory,
        twin.nodes(Path(directory), is_busy=bool(load)) as port,
    ):
        return Beside(*uvloop.run(twin.adds(port, seconds, _PAUSE_S)))


def _served(urls: Sequence[str], load: str, seconds: float, durability: Durability) -> Beside:
    async def measure() -> Beside:
        async with shoal.connect(urls[0]) as store:
            return await _adds(store, seconds, durability)

    async def fill() -> None:
        async with shoal.connect(urls[0]) as store:
            await _fill(store)

    uvloop.run(fill())
    with _crowd(urls, load, seconds, durability) as crowd:
        beside = uvloop.run(measure())
        if crowd is None:
            return beside
        told, _ = crowd.communicate()
        return beside._replace(busy_per_s=float(told))


# ── the busy space ────────────────────────────────────────────────────────────


async def _save(space: Space, nth: int, step: int) -> None:
    await space.thread(f"thread-{nth}").save(state(nth, step), overwrite=True)


async def _batch(space: Space, nth: int, step: int) -> None:
    async with space.batch() as batch:
        for n in range(_BATCH):
            batch.register(f"{{task-{nth}}}/{n}").set(state(nth, step))


async def _search(space: Space, _nth: int, _step: int) -> None:
    await space.items.search(("memory",), filter={"kind": "no such kind"})


_ACTS: dict[str, Act] = {"saves": _save, "batches": _batch, "searches": _search}
_THREE = "three nodes"
_PLACES = {"embedded": _embedded, "one node": _at_one_node, _THREE: _at_three_nodes}


async def _member(space: Space, load: str, nth: int, done: list[int]) -> None:
    act = _ACTS.get(load)
    for step in count():
        if act is None:
            return
        await act(space, nth, step)
        done[0] += 1


@contextmanager
def _crowd(urls: Sequence[str], load: str, seconds: float, durability: Durability) -> Iterator[subprocess.Popen[str] | None]:
    """The process of a crowd that is busy by now, for so long and a little longer."""
    if not load:
        yield None
        return
    command = [sys.executable, "-m", "benchmarks.fairness", load, str(seconds), durability, *urls]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.terminate()


async def _be_busy(load: str, seconds: float, durability: Durability, urls: Sequence[str]) -> None:
    async with AsyncExitStack() as stack:
        connections = [shoal.connect(url, durability=durability) for url in urls for _ in range(_CONNECTIONS)]
        spaces = [(await stack.enter_async_context(each)).space("busy") for each in connections]
        done = [0]
        tasks = [
            asyncio.create_task(_member(space, load, nth * _TASKS + task, done))
            for nth, space in enumerate(spaces)
            for task in range(_TASKS)
        ]
        await asyncio.sleep(1.0)
        print("busy", flush=True)
        before = done[0]
        await asyncio.sleep(seconds)
        print((done[0] - before) / seconds, flush=True)
        await asyncio.sleep(0.5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    uvloop.run(_be_busy(sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4:]))  # type: ignore[arg-type]
