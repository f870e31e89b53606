"""How long a request waits beside work on 100,000 things: compactions, trims, prunes, the building of an index."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from time import perf_counter, thread_time
from typing import NamedTuple

import pycrdt
import uvloop

import shoal
from benchmarks.figures import Effort, Figure, Section, Target, quantile
from shoal.client.store import Store
from shoal.protocol import requests

MANY = 100_000
_TEXTS = 100  # Of the document: an edit costs its editor time that grows with its text.
_PIECE = 500  # Writes of one batch.
_PAUSE_S = 0.002  # Between two adds.
_PATIENCE_S = 600.0
_MIRRORS = 5  # Opened one after the other.

_METHOD = (
    f"An embedded store on RocksDB with `local` durability, all in one process: a task adds to a counter, waits "
    f"{_PAUSE_S * 1000:.0f} ms, and adds again, while one thing is done beside it, from its call until the node has swept "
    "what it left behind. "
    f"The document has {_TEXTS} texts and is made of one update for each edit."
)


class Wait(NamedTuple):
    """How long an add took, and how long the loop's thread computed meanwhile: the second is not noisy."""

    wall_ms: float
    cpu_ms: float


class Load(NamedTuple):
    name: str
    fill: Callable[[Store, int], Awaitable[None]]
    work: Callable[[Store], Awaitable[None]]
    share: float = 1.0  # Of `MANY`.


def run(effort: Effort) -> Section:
    share = 1 if effort.repeats > 2 else 10
    return Section("Requests beside long work", _METHOD, [figure for load in LOADS for figure in _figures(load, MANY // share)])


def _figures(load: Load, many: int) -> Iterator[Figure]:
    count = int(many * load.share)
    taken_s, waits = uvloop.run(_beside(load, count))
    ordered, computed = sorted(wait.wall_ms for wait in waits), sorted(wait.cpu_ms for wait in waits)
    name = f"{load.name} {count:,}"
    yield Figure(f"{name}: an add beside it, p50", "ms", (quantile(ordered, 0.5),))
    yield Figure("… p99", "ms", (quantile(ordered, 0.99),), Target("≤", 50))
    yield Figure("… longest", "ms", (ordered[-1],))
    yield Figure("… CPU time of the loop meanwhile, p99", "ms", (quantile(computed, 0.99),))
    yield Figure("… longest", "ms", (computed[-1],))
    yield Figure("… the work itself", "s", (taken_s,))


async def _beside(load: Load, count: int) -> tuple[float, list[Wait]]:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as directory:
        path = Path(directory) / "store"
        async with shoal.open(path, durability="memory") as store:
            await load.fill(store, count)
        async with shoal.open(path) as store, _adding(store) as waits:
            await asyncio.sleep(0.1)  # What opening left to do.
            waits.clear()
            began = perf_counter()
            await load.work(store)
            await _swept(store)
            return perf_counter() - began, list(waits)


@asynccontextmanager
async def _adding(store: Store) -> AsyncIterator[list[Wait]]:
    waits: list[Wait] = []

    async def add() -> None:
        counter = store.space("other").counter("adds")
        while True:
            began, computed = perf_counter(), thread_time()
            await counter.add(1)
            waits.append(Wait((perf_counter() - began) * 1000, (thread_time() - computed) * 1000))
            await asyncio.sleep(_PAUSE_S)

    task = asyncio.get_running_loop().create_task(add())
    try:
        yield waits
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _swept(store: Store) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while (await store.status()).garbage:
            await asyncio.sleep(0.02)


# ── documents ─────────────────────────────────────────────────────────────────


def edits(count: int, seed: int = 1) -> Iterator[bytes]:
    """Updates of texts by one editor: two letters put in anywhere, or taken out."""
    random, made = Random(seed), list[bytes]()
    doc: pycrdt.Doc[pycrdt.Text] = pycrdt.Doc(client_id=1)
    texts = [doc.get(f"t{n}", type=pycrdt.Text) for n in range(_TEXTS)]
    sizes = [0] * _TEXTS
    subscription = doc.observe(lambda event: made.append(event.update))
    for _ in range(count):
        nth = random.randrange(_TEXTS)
        size = sizes[nth]
        if size > 10 and random.random() < 0.1:
            del texts[nth][(at := random.randrange(size - 2)) : at + 2]
            sizes[nth] -= 2
        else:
            texts[nth].insert(size if random.random() < 0.8 else random.randrange(size + 1), "ab")
            sizes[nth] += 2
        yield made.pop()
    doc.unobserve(subscription)


async def _edited(store: Store, count: int) -> None:
    session = store.connection.session
    roots: dict[str, requests.RootKind] = {f"t{n}": "text" for n in range(_TEXTS)}
    for nth, update in enumerate(edits(count)):
        await session.call(requests.Update("bench", "document", update, {} if nth else roots), durability="memory")


async def _compact(store: Store) -> None:
    async with await store.space("bench").document("document") as document:
        await document.compact()


async def _open(store: Store) -> None:
    for _ in range(_MIRRORS):
        async with await store.space("bench").document("document") as document:
            document.text("t0")


# ── journals, threads, items ──────────────────────────────────────────────────


async def _appended(store: Store, count: int) -> None:
    thread = store.space("bench").thread("thread")
    for start in range(0, count, _PIECE):
        async with store.space("bench").batch() as batch:
            for n in range(start, min(start + _PIECE, count)):
                batch.thread(thread.name).journal.append({"n": n})


async def _trim(store: Store) -> None:
    await store.space("bench").thread("thread").journal.trim(keep=1000)


async def _saved(store: Store, count: int) -> None:
    thread = store.space("bench").thread("thread")
    for n in range(count):
        await thread.save({"n": n, "text": f"step {n}"})


async def _prune(store: Store) -> None:
    await store.space("bench").thread("thread").prune(keep_last=10)


async def _put(store: Store, count: int) -> None:
    for start in range(0, count, _PIECE):
        async with store.space("bench").batch() as batch:
            for n in range(start, min(start + _PIECE, count)):
                batch.items.put(("memory", f"user-{n % 100}"), f"{n:07}", {"kind": f"kind-{n % 7}", "text": "found " * 20})


async def _index(store: Store) -> None:
    items = store.space("bench").items
    await items.index(("memory",), "kind")
    while not (await items.indexes(("memory",)))["kind"]:
        await asyncio.sleep(0.02)


LOADS = [
    Load("compacting a document, updates", _edited, _compact, 0.1),
    Load("compacting a document, updates", _edited, _compact),
    Load("opening a mirror five times, updates", _edited, _open),
    Load("trimming a journal, events", _appended, _trim, 2.0),
    Load("pruning a thread, checkpoints", _saved, _prune),
    Load("building an index, items", _put, _index),
]
