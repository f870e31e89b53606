"""Durable saves of an embedded store, beside SQLite and beside a bare RocksDB."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from time import perf_counter, thread_time

import msgspec
import uvloop
from rocksdict import Options, Rdict

import shoal
from benchmarks import prototype
from benchmarks.figures import Effort, Figure, Section, Target, quantile
from benchmarks.states import state
from shoal.client.store import Space
from shoal.kinds.thread.handle.thread import Thread

TASKS = 64
_ADDITIONS = 2_000_000


def run(effort: Effort) -> Section:
    """The figure and its baselines alternate, so that both meet the same machine."""
    saves, sqlite, rocks, bare, syncs, additions = [], [], [], [], [], []
    for _ in range(effort.repeats):
        sqlite.append(sqlite_transactions_per_s(effort.seconds))
        saves.append(saves_per_s(TASKS, effort.seconds))
        bare.append(prototype.saves_per_s(TASKS, effort.seconds / 2))
        rocks.append(rocks_puts_per_s(effort.seconds / 2))
        syncs.append(sync_ms(effort.seconds / 4))
        additions.append(additions_per_us())
    one = [saves_per_s(1, effort.seconds) for _ in range(effort.repeats)]
    others = {tasks: [saves_per_s(tasks, effort.seconds).per_s for _ in range(effort.repeats)] for tasks in (16, 256)}
    ratios = [ours.per_s / theirs for ours, theirs in zip(saves, sqlite, strict=True)]
    figures = [
        Figure(f"durable saves, {TASKS} tasks", "1/s", tuple(run.per_s for run in saves), Target("≥", 8000)),
        Figure("the same ÷ one SQLite transaction per save", "×", tuple(ratios), Target("≥", 8)),
        Figure("SQLite, one transaction per save", "1/s", tuple(sqlite)),
        Figure(f"the design's bare prototype, {TASKS} tasks", "1/s", tuple(bare)),
        Figure("the store ÷ the bare prototype", "×", tuple(run.per_s / its for run, its in zip(saves, bare, strict=True))),
        Figure("bare RocksDB, one put and one fsync per save", "1/s", tuple(rocks)),
        Figure("one fdatasync after 1 KB appended to a file, p50", "ms", tuple(syncs)),
        Figure("the processor: additions in a plain Python loop", "1/µs", tuple(additions)),
        Figure(f"computing per save on the loop's thread, {TASKS} tasks", "µs", tuple(run.cpu_us for run in saves)),
        Figure("durable saves, 1 task", "1/s", tuple(run.per_s for run in one)),
        Figure("one save, 1 task, p50", "ms", tuple(run.p50_ms for run in one)),
        Figure("one save, 1 task, p99", "ms", tuple(run.p99_ms for run in one)),
        *(Figure(f"durable saves, {tasks} tasks", "1/s", tuple(runs)) for tasks, runs in others.items()),
    ]
    return Section("Embedded store", _METHOD, figures)


_METHOD = (
    f"`shoal.open` in one process under uvloop; each task saves a state of {len(msgspec.msgpack.encode(state(7, 1000)))} bytes "
    "(packed) to a thread of its own, and awaits each save: it is acknowledged after an fsync that covers it. Nearly all "
    "of the state changes with every save. SQLite: the `sqlite3` module, WAL, `synchronous=FULL`, one connection, one "
    "autocommitted INSERT of the packed state per save into a table without an index, which is its fastest honest form. "
    "The prototype is the design's forty lines of group commit over RocksDB (`benchmarks/prototype.py`), which did 13,000 "
    "saves/s on the machine that the targets were set on. RocksDB: one put of the packed state and one `flush_wal(True)`, in "
    "turn. Each repetition measures SQLite, the store, the prototype and RocksDB one after the other; the ratio is taken "
    "within a repetition. What the ratio can be is decided by the disk: SQLite pays one fsync per save, the store shares one "
    "among all tasks and pays for its computing. The "
    "processor is measured, too, for a shared one has good hours and bad ones."
)


class Run:
    """What one measurement of saves gave; `cpu_us` is what the loop's thread computed per save."""

    def __init__(self, latencies_s: list[float], *, elapsed_s: float, cpu_s: float) -> None:
        ordered = sorted(latencies_s)
        self.per_s = len(ordered) / elapsed_s
        self.cpu_us = cpu_s / len(ordered) * 1e6
        self.p50_ms = quantile(ordered, 0.5) * 1000
        self.p99_ms = quantile(ordered, 0.99) * 1000


def saves_per_s(tasks: int, seconds: float) -> Run:
    async def measure() -> Run:
        with tempfile.TemporaryDirectory() as directory:
            async with shoal.open(Path(directory) / "store") as store:
                return await save_for(store.space("bench"), tasks=tasks, seconds=seconds)

    return uvloop.run(measure())


async def save_for(space: Space, *, tasks: int, seconds: float) -> Run:
    """Let `tasks` tasks save, each to a thread of its own."""
    agents = [(task, space.thread(f"agent-{task}")) for task in range(tasks)]
    await asyncio.gather(*(thread.save(state(task, 0)) for task, thread in agents))
    began, computed = perf_counter(), thread_time()
    runs = await asyncio.gather(*(_saves(thread, task, end=began + seconds) for task, thread in agents))
    elapsed, cpu = perf_counter() - began, thread_time() - computed
    return Run([latency for latencies in runs for latency in latencies], elapsed_s=elapsed, cpu_s=cpu)


async def _saves(thread: Thread, task: int, *, end: float) -> list[float]:
    latencies: list[float] = []
    while (began := perf_counter()) < end:
        await thread.save(state(task, len(latencies) + 1))
        latencies.append(perf_counter() - began)
    return latencies


def sqlite_transactions_per_s(seconds: float) -> float:
    with tempfile.TemporaryDirectory() as directory, closing(_sqlite(Path(directory) / "store.db")) as database:
        began, step = perf_counter(), 0
        while perf_counter() - began < seconds:
            task = step % TASKS
            database.execute(
                "INSERT INTO checkpoints VALUES (?, ?, ?)", (f"agent-{task}", step, msgspec.msgpack.encode(state(task, step)))
            )
            step += 1
        return step / (perf_counter() - began)


def _sqlite(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE checkpoints (thread TEXT, step INTEGER, state BLOB)")
    return database


def rocks_puts_per_s(seconds: float) -> float:
    with tempfile.TemporaryDirectory() as directory:
        database = Rdict(str(Path(directory) / "db"), Options(raw_mode=True))
        began, step = perf_counter(), 0
        while perf_counter() - began < seconds:
            task = step % TASKS
            database.put(b"%04d%012d" % (task, step), msgspec.msgpack.encode(state(task, step)))
            database.flush_wal(True)
            step += 1
        elapsed = perf_counter() - began
        database.close()
        return step / elapsed


def sync_ms(seconds: float) -> float:
    """What the disk itself takes."""
    with tempfile.TemporaryFile(buffering=0) as file:
        took, began = [], perf_counter()
        while perf_counter() - began < seconds:
            file.write(bytes(1024))
            before = perf_counter()
            os.fdatasync(file.fileno())
            took.append(perf_counter() - before)
        return quantile(sorted(took), 0.5) * 1000


def additions_per_us() -> float:
    """What the processor is worth at the moment: a current one makes 15 to 30."""
    total, before = 0, thread_time()
    for number in range(_ADDITIONS):
        total += number
    return _ADDITIONS / (thread_time() - before) / 1e6
