"""What threads cost as they grow: one more save, an append, an opening, many threads, real trajectories."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import uvloop

import shoal
from benchmarks import openings, population, trajectories
from benchmarks.figures import Effort, Figure, Section, Target, quantile
from shoal import values
from shoal.client.store import Space

_FEW, _MANY, _LONG = 10, 2000, 10_000  # Messages.
_SAVES = 40  # Of each kind in a repetition.


def run(effort: Effort) -> Section:
    unchanged = tuple(uvloop.run(_unchanged_us()) for _ in range(effort.repeats))
    appends = tuple(uvloop.run(_append_ratio()) for _ in range(effort.repeats))
    figures = [
        Figure(
            f"one more save of a list of {_MANY:,} messages of 1 KB, per unchanged message", "µs", unchanged, Target("≤", 2)
        ),
        Figure(f"an append to a list of {_LONG:,} messages ÷ to one of {_FEW}", "×", appends, Target("≤", 1.3)),
        *openings.figures(effort),
        *_populations(effort),
        *_trajectories(),
    ]
    return Section("Threads as they grow", _METHOD, figures)


_METHOD = (
    "The embedded store. *One more save*: `thread.save` of a state with one list, with `memory` durability; what it takes "
    f"beyond the same save of {_FEW} messages and beyond the serialiser's own time, divided by the messages that did not "
    f"change; medians of {_SAVES} saves. *An append*: `thread.append` of one message, the two lists in turn; the ratio of the "
    f"medians. *An opening*: a new opening of a store with one thread of {openings.CHECKPOINTS:,} checkpoints, and a load of "
    f"the newest; {openings.OPENINGS} in one process; then those of new processes, which touch code and memory for the first "
    f"time, without their imports. *Many threads*: {population.CHECKPOINTS} checkpoints each, built in one process and loaded "
    f"in another, {population.LOADS:,} random threads, each once; a process's resident memory at its most; the small store has "
    f"{population.LOADS:,} threads. *Trajectories*: every message of every real trajectory is a checkpoint, by turns as a "
    "whole list and as an append; each is loaded back and compared at once, and again by id after the store was opened anew; "
    "the bytes are those after close, against the messages as JSON."
)


def _message(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"{number}: " + "the quick brown fox jumps over the lazy dog, " * 22}


@asynccontextmanager
async def _space() -> AsyncIterator[Space]:
    with tempfile.TemporaryDirectory() as directory:
        async with shoal.open(Path(directory) / "store", durability="memory") as store:
            yield store.space("bench")


async def _median_s(act: Callable[[int], Awaitable[object]], times: int) -> float:
    took = []
    for number in range(times):
        began = perf_counter()
        await act(number)
        took.append(perf_counter() - began)
    return quantile(sorted(took), 0.5)


async def _unchanged_us() -> float:
    """What an unchanged message costs a save beyond its serialising."""

    async def beyond_serialising(space: Space, size: int) -> float:
        thread = space.thread(f"of-{size}")
        messages = [_message(number) for number in range(size)]
        await thread.save({"messages": messages})

        async def save(number: int) -> None:
            messages.append(_message(number))
            await thread.save({"messages": messages})

        async def serialise(_: int) -> None:
            values.encode(messages)

        return await _median_s(save, _SAVES) - await _median_s(serialise, _SAVES)

    async with _space() as space:
        few = await beyond_serialising(space, _FEW)
        return (await beyond_serialising(space, _MANY) - few) / (_MANY - _FEW) * 1e6


async def _append_ratio() -> float:
    async with _space() as space:
        long, took = space.thread("long"), {"long": list[float](), "short": list[float]()}
        await long.save({"messages": [_message(number) for number in range(_LONG)]})
        for turn in range(_SAVES):
            short = space.thread(f"short-{turn}")
            await short.save({"messages": [_message(number) for number in range(_FEW)]})
            for name, thread in (("long", long), ("short", short)):
                for number in range(5):
                    message = _message(number)
                    began = perf_counter()
                    await thread.append("messages", message)
                    took[name].append(perf_counter() - began)
        return quantile(sorted(took["long"]), 0.5) / quantile(sorted(took["short"]), 0.5)


def _populations(effort: Effort) -> list[Figure]:
    with tempfile.TemporaryDirectory() as parent:
        small, large = Path(parent) / "small", Path(parent) / "large"
        population.built(small, population.LOADS)
        built = population.built(large, effort.threads)
        pairs = [
            (population.loaded(small, population.LOADS), population.loaded(large, effort.threads))
            for _ in range(effort.repeats)
        ]
    of = f"{effort.threads:,} threads of {population.CHECKPOINTS} checkpoints"
    resident = (built["resident_mb"], *(ours["resident_mb"] for _, ours in pairs))
    ratios = tuple(ours["p99_ms"] / its["p99_ms"] for its, ours in pairs)
    return [
        Figure(f"{of}: resident memory of the node, at most", "MB", resident, Target("≤", 400), worst=True),
        Figure(f"{of}: load p99", "ms", tuple(ours["p99_ms"] for _, ours in pairs)),
        Figure("the same ÷ in the small store", "×", ratios, Target("≤", 2)),
    ]


def _trajectories() -> list[Figure]:
    source = trajectories.directory()
    if source is None:
        print(f"trajectories: skipped, for they are not there; say where with {trajectories.VARIABLE}")
        return []

    async def replay(directory: Path, data: Path) -> tuple[int, int]:
        everything = list(trajectories.read(data))
        async with shoal.open(directory, durability="memory") as store:
            space = store.space("bench")
            replayed = await asyncio.gather(
                *(trajectories.replay(space, name, messages, whole=n % 2 == 0) for n, (name, messages) in enumerate(everything))
            )
        async with shoal.open(directory) as store:
            space = store.space("bench")
            for (name, messages), done in zip(everything, replayed, strict=True):
                await trajectories.check(space, name, messages, done.checkpoints)
        return sum(len(done.checkpoints) for done in replayed), sum(done.raw_bytes for done in replayed)

    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent) / "store"
        checkpoints, raw_bytes = uvloop.run(replay(directory, source))
        used = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    return [
        Figure("checkpoints of real trajectories, each loaded and compared twice", "", (float(checkpoints),)),
        Figure("their bytes on disk ÷ the messages as JSON", "×", (used / raw_bytes,), Target("≤", 1)),
    ]
