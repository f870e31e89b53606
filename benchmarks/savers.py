"""LangGraph's savers: Shoal's on three nodes, and embedded, beside PostgreSQL's with a synchronous standby."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import shoal
from benchmarks import systems
from benchmarks.checkpointers import Saver, converse, messages_of_trajectories
from benchmarks.cluster import Nodes
from benchmarks.figures import Effort, Figure, Section, Target, quantile
from shoal.integrations.langgraph import ShoalSaver

MANY = 16
_STEPS = 60

Savers = AsyncIterator[list[Saver]]
"""As many as there are places to write at; threads take them by turns."""


def run(effort: Effort) -> Section:
    messages = messages_of_trajectories()[:_STEPS]
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(effort.repeats):
        for name, (per_s, p50_ms) in _round(messages).items():
            found.setdefault(name, []).append((per_s, p50_ms))
    figures = []
    for name, trials in found.items():
        figures.append(Figure(f"{name}: puts, {MANY} threads", "1/s", tuple(per_s for per_s, _ in trials)))
        figures.append(Figure(f"{name}: one put at a time, p50", "ms", tuple(p50_ms for _, p50_ms in trials)))
    for ours, least, most in ((_REPLICATED, 6.0, 0.75), (_EMBEDDED, 12.0, None)):
        if _POSTGRES not in found:
            break
        pairs = list(zip(found[ours], found[_POSTGRES], strict=True))
        rates, alone = tuple(our[0] / their[0] for our, their in pairs), tuple(our[1] / their[1] for our, their in pairs)
        figures.append(Figure(f"{ours} ÷ {_POSTGRES}: puts, {MANY} threads", "×", rates, Target("≥", least)))
        bound = Target("≤", most) if most is not None else None
        figures.append(Figure(f"{ours} ÷ {_POSTGRES}: one put at a time, p50", "×", alone, bound))
    missing = "" if _POSTGRES in found else " PostgreSQL is not installed here, so not measured."
    return Section("LangGraph's savers on three nodes", _METHOD + missing, figures)


_REPLICATED, _EMBEDDED = "Shoal, `quorum`", "Shoal, embedded"
_POSTGRES = "PostgreSQL, `ANY 1`"
_METHOD = (
    f"{MANY} threads, then one, each put {_STEPS} checkpoints with a list that grows by one message of real trajectories. "
    'Shoal: three `shoal serve` processes, a third of the threads at each, `durability="quorum"`; and a store in the same '
    "process. PostgreSQL: `AsyncPostgresSaver` with a pool of a connection for each thread at the primary of three nodes, "
    "`synchronous_commit = on`, `ANY 1` of two standbys. The systems take turns within a repetition."
)


def _round(messages: list[Any]) -> dict[str, tuple[float, float]]:
    """By system: puts a second of many threads, and the median milliseconds of one put at a time."""
    found = {}
    with tempfile.TemporaryDirectory() as directory, Nodes(Path(directory)) as nodes:
        found[_REPLICATED] = asyncio.run(_trial(_shoals(nodes.urls), messages))
    with tempfile.TemporaryDirectory() as directory:
        found[_EMBEDDED] = asyncio.run(_trial(_embedded(Path(directory)), messages))
    with tempfile.TemporaryDirectory() as directory, systems.postgres_cluster(Path(directory)) as cluster:
        if cluster is not None:
            found[_POSTGRES] = asyncio.run(_trial(_postgres(cluster.url), messages))
    return found


async def _trial(opened: Savers, messages: list[Any]) -> tuple[float, float]:
    async with asynccontextmanager(lambda: opened)() as savers:
        await _conversations(savers, "warm", messages[:5], 1)
        began = perf_counter()
        await _conversations(savers, "many", messages, MANY)
        per_s = MANY * len(messages) / (perf_counter() - began)
        took = await _conversations(savers, "alone", messages, 1)
    return per_s, quantile(sorted(took), 0.5) * 1e3


async def _conversations(savers: Sequence[Saver], name: str, messages: list[Any], threads: int) -> list[float]:
    """The seconds of each put."""
    took: list[float] = []
    await asyncio.gather(
        *(converse(savers[number % len(savers)], f"{name}-{number}", messages, took) for number in range(threads))
    )
    return took


async def _shoals(urls: Sequence[str]) -> Savers:
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(shoal.connect(url, durability="quorum")) for url in urls]
        yield [ShoalSaver(store) for store in stores]


async def _embedded(directory: Path) -> Savers:
    async with ShoalSaver.open(directory / "store") as saver:
        yield [saver]


async def _postgres(url: str) -> Savers:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(url, min_size=MANY, max_size=MANY, kwargs=settings) as pool:
        saver = AsyncPostgresSaver(pool)  # type: ignore[arg-type]
        await saver.setup()
        yield [saver]
