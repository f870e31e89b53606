"""Searches of memory items: by a filter with an index and without, and by vectors, in an embedded store on RocksDB."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import uvloop

import shoal
from benchmarks.figures import Effort, Figure, Section, Target
from shoal.client.store import Space
from shoal.kinds.items.handle.items import Items

ITEMS = 100_000
RARE = 10  # Of them match.
VECTORS, DIMS = 50_000, 384
_PIECE = 500
_USERS = 100

_METHOD = (
    f"An embedded store on RocksDB with {ITEMS:,} items of about 200 bytes under {_USERS} namespaces below one label, of which "
    f"{RARE} match `{{'kind': 'rare'}}`; then the same with the field indexed. Rows are what "
    f" `items.explain` counts. Vectors: {VECTORS:,} of {DIMS} random numbers each, below another label; the first search "
    "reads them, the next have them in memory. Building is from the declaration until the node has built the index, with "
    "nothing else to do."
)


def run(effort: Effort) -> Section:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as directory:
        return Section("Memory items", _METHOD, uvloop.run(_measured(Path(directory), effort)))


async def _measured(directory: Path, effort: Effort) -> list[Figure]:
    share = 1 if effort.repeats > 2 else 10
    async with shoal.open(directory / "store", durability="memory") as store:
        space = store.space("bench")
        items = space.items
        plain = await _filled(space, ITEMS // share, indexed=False)
        scanned = [await _timed(lambda: _rare(items)) for _ in range(effort.repeats)]
        before = await items.explain(("memory",), filter={"kind": "rare"})
        began = perf_counter()
        await items.index(("memory",), "kind")
        while not (await items.indexes(("memory",)))["kind"]:
            await asyncio.sleep(0.001)
        building_s = perf_counter() - began
        found = [await _timed(lambda: _rare(items)) for _ in range(effort.repeats * 10)]
        after = await items.explain(("memory",), filter={"kind": "rare"})
        indexed = await _filled(space, ITEMS // share // 10, indexed=True)
        near = await _vectors(space, VECTORS // share, effort.repeats)
    rows = f"of {ITEMS // share:,} items"
    return [
        Figure(f"a search that finds {RARE} {rows}, scanning: rows read", "", (before.index_rows + before.item_rows,)),
        Figure("the same with an index: rows read", "", (after.index_rows + after.item_rows,), Target("≤", 300)),
        Figure("a search that scans", "ms", tuple(scanned)),
        Figure("the same with an index", "ms", tuple(found), Target("≤", 5)),
        Figure("the building of the index", "s", (building_s,)),
        Figure(f"CPU time of a put without an index, {_PIECE} in a batch", "µs", (plain,)),
        Figure("… with one", "µs", (indexed,)),
        *near,
    ]


async def _filled(space: Space, count: int, *, indexed: bool) -> float:
    """Put items, ten of which are rare unless there are some; the CPU time of each in microseconds."""
    began = process_time()
    for start in range(0, count, _PIECE):
        async with space.batch() as batch:
            for n in range(start, min(start + _PIECE, count)):
                kind = "rare" if not indexed and n % (count // RARE) == 0 else f"kind-{n % 7}"
                value = {"kind": kind, "n": n, "text": f"what was found in step {n}, and how it was found. " * 3}
                batch.items.put(("memory", f"user-{n % _USERS}"), f"{n:07}{'-again' if indexed else ''}", value)
    return (process_time() - began) / count * 1e6


async def _rare(items: Items) -> None:
    assert len(await items.search(("memory",), filter={"kind": "rare"})) == RARE


async def _vectors(space: Space, count: int, repeats: int) -> list[Figure]:
    random, items = np.random.default_rng(7), space.items
    for start in range(0, count, _PIECE):
        made = random.standard_normal((min(_PIECE, count - start), DIMS), np.float32).tolist()
        async with space.batch() as batch:
            for n, vector in enumerate(made, start):
                batch.items.put(("vectors",), f"{n:07}", n, vectors=[vector])
    queries = random.standard_normal((repeats * 5, DIMS), np.float32).tolist()
    first = await _timed(lambda: items.search(("vectors",), vector=queries[0], limit=10))
    others = [await _timed(partial(items.search, ("vectors",), vector=query, limit=10)) for query in queries]
    return [
        Figure(f"the nearest 10 of {count:,} vectors of {DIMS} numbers, the first time", "ms", (first,)),
        Figure("… once they are in memory", "ms", tuple(others)),
    ]


async def _timed(call: Callable[[], Awaitable[object]]) -> float:
    """In milliseconds."""
    began = perf_counter()
    await call()
    return (perf_counter() - began) * 1000
