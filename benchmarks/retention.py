"""Many checkpoints pruned by a standing rule, beside saves at a steady rate: how much longer those take, and the bytes that go.

`python -m benchmarks.retention [CHECKPOINTS]` runs it alone, with so many checkpoints. With `--within S` it ends S seconds
after the rule was set, whether or not all have gone, and says how many went a second: of 1,000,000, which take some minutes to
make, enough go in a minute to tell how long saves take beside it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import perf_counter
from typing import NamedTuple

import uvloop

import shoal
from benchmarks.figures import Effort, Figure, Section, Target, quantile
from shoal.client.store import Store
from shoal.kinds.retention.serving import keeper

_CHECKPOINTS = 100_000
_THREADS = 200
_KEPT = 10  # Of each thread.
_WRITERS = 8  # Tasks at once while the checkpoints are made,
_TOGETHER = 100  # so many in one operation each time: some 0.13 ms of a processor for a checkpoint, instead of 0.34.
_SAVES_PER_S = 300
_LOOK_S = 0.5
_STEADY = 40  # Looks at the size, every 2 s, within which the space of what went is given back.
_FREED_S_MAX = 180.0  # Until the bytes are gone from the files.


class Pruned(NamedTuple):
    """One run."""

    alone_ms: tuple[float, float]  # p50 and p99 of a save, without a rule,
    beside_ms: tuple[float, float]  # and while the rule prunes.
    pruned: int
    pruned_s: float
    before_bytes: int  # Of the files,
    after_bytes: int  # and once all is swept.


def run(effort: Effort) -> Section:
    """Each repetition fills a directory of its own."""
    return _section([uvloop.run(_measure(_CHECKPOINTS // (10 if effort.seconds < 2 else 1))) for _ in range(effort.repeats)])


def _section(runs: list[Pruned]) -> Section:
    return Section("Checkpoints pruned by a rule", _METHOD, list(_figures(runs)))


def _figures(runs: list[Pruned]) -> Iterator[Figure]:
    yield Figure("a save without a rule, p50", "ms", tuple(each.alone_ms[0] for each in runs))
    yield Figure("… p99", "ms", tuple(each.alone_ms[1] for each in runs))
    yield Figure("… while the rule prunes, p50", "ms", tuple(each.beside_ms[0] for each in runs))
    yield Figure("… p99", "ms", tuple(each.beside_ms[1] for each in runs))
    yield Figure("… ÷ without, p99", "×", tuple(each.beside_ms[1] / each.alone_ms[1] for each in runs), Target("≤", 2))
    yield Figure("checkpoints pruned", "", tuple(each.pruned for each in runs))
    yield Figure("… in", "s", tuple(each.pruned_s for each in runs))
    yield Figure("… a second", "", tuple(each.pruned / each.pruned_s for each in runs))
    yield Figure("bytes of the files before", "MB", tuple(each.before_bytes / 1e6 for each in runs))
    yield Figure("… after", "MB", tuple(each.after_bytes / 1e6 for each in runs))
    yield Figure("… that stay of those", "×", tuple(each.after_bytes / each.before_bytes for each in runs), Target("≤", 0.5))


_METHOD = (
    f"An embedded store with {_THREADS} threads; each checkpoint has 400 random bytes. {_SAVES_PER_S} saves a second "
    f"go to other threads, first without a rule, then while one keeps the last {_KEPT} of each thread: it looks every "
    f"{_LOOK_S:g} s here. The run ends once nothing is due and all is swept."
)


async def _measure(checkpoints: int, within_s: float | None = None) -> Pruned:
    keeper.RETENTION_LOOK_S = 1e6
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as name:
        directory = Path(name) / "store"
        async with shoal.open(directory) as store:
            await _fill(store, checkpoints)
        keeper.RETENTION_LOOK_S = _LOOK_S
        async with shoal.open(directory) as store:
            before = _size(directory)
            _say(f"{checkpoints} checkpoints are made, {before / 1e6:.0f} MB")
            stop = asyncio.Event()
            asyncio.get_running_loop().call_later(10, stop.set)
            alone = await _saves(store, stop)
            await store.space("crew").retention.set(prefix="many-", keep_last=_KEPT)
            began, stop = perf_counter(), asyncio.Event()
            saves = asyncio.create_task(_saves(store, stop))
            pruned = await _until_pruned(store, within_s)
            pruned_s = perf_counter() - began
            stop.set()
            beside = await saves
            _say(f"{pruned} are pruned, in {pruned_s:.1f} s")
            after = await _until_freed(store, directory) if within_s is None else _size(directory)
        return Pruned(_of(alone), _of(beside), pruned, pruned_s, before, after)


async def _fill(store: Store, checkpoints: int) -> None:
    each, random = checkpoints // _THREADS, Random(1)

    async def fill(numbers: range) -> None:
        for number in numbers:
            for begin in range(0, each, _TOGETHER):
                async with store.space("crew").batch(durability="memory") as batch:
                    thread = batch.thread(f"many-{number:03}")
                    for n in range(begin, min(begin + _TOGETHER, each)):
                        thread.save({"n": n, "text": random.randbytes(400)}, overwrite=True)

    await asyncio.gather(*(fill(range(nth, _THREADS, _WRITERS)) for nth in range(_WRITERS)))


async def _saves(store: Store, stop: asyncio.Event) -> list[float]:
    """Save at a steady rate; a save that is late delays no other."""
    took, under_way = list[float](), set[asyncio.Task[None]]()
    threads = [store.space("busy").thread(f"agent-{nth}") for nth in range(_SAVES_PER_S)]

    async def save(due: float, nth: int) -> None:
        await threads[nth].save({"n": due, "text": "step " * 40}, overwrite=True)
        took.append((perf_counter() - due) * 1000)

    began, count = perf_counter(), 0
    while not stop.is_set():
        due = began + count / _SAVES_PER_S
        if (wait := due - perf_counter()) > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(save(due, count % len(threads)))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        count += 1
    await asyncio.gather(*under_way)
    return took


async def _until_pruned(store: Store, within_s: float | None = None) -> int:
    """Return how many went, once a look has ended, and what it pruned is swept; or so many seconds have passed."""
    ends = perf_counter() + (within_s or float("inf"))
    while not (status := await store.status()).retention_last_ms or status.retention_due or status.garbage:
        if perf_counter() > ends:
            break
        await asyncio.sleep(0.2)
    return status.retention_checkpoints


async def _until_freed(store: Store, directory: Path) -> int:
    """The size of the files once they shrink no more."""
    sizes = [_size(directory)]
    ends = perf_counter() + _FREED_S_MAX
    while perf_counter() < ends:
        await asyncio.sleep(2)
        sizes.append(_size(directory))
        if len(sizes) > _STEADY and min(sizes[-_STEADY:]) > 0.98 * max(sizes[-_STEADY:]):
            break
    return sizes[-1]


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def _of(took: list[float]) -> tuple[float, float]:
    took.sort()
    return quantile(took, 0.5), quantile(took, 0.99)


if __name__ == "__main__":
    import argparse

    from rich.console import Console

    from benchmarks.report import show

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoints", type=int, nargs="?", default=_CHECKPOINTS)
    parser.add_argument("--within", type=float, metavar="S")
    given = parser.parse_args()
    show(Console(), _section([uvloop.run(_measure(given.checkpoints, given.within))]))
