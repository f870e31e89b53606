"""A store that is written for a long time while what it holds stays the same: what it takes on disk, and to start again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import perf_counter

import uvloop

import shoal
from benchmarks.figures import Effort, Figure, Section, Target
from shoal.client.store import Space, Store
from shoal.config import Config, MiB

OPERATIONS = 2_000_000
OBJECTS = 1000
LOG_BYTES_MAX = 64 * MiB
_WRITERS = 256
_KINDS = 5
_MEMBERS = 20  # Of each set, and keys of each map.
_VALUE = 1000  # Characters of a register, an item and an entry.
_PATIENCE_S = 300.0


def run(effort: Effort) -> Section:
    operations = OPERATIONS if effort.repeats > 2 else OPERATIONS // 20
    with tempfile.TemporaryDirectory() as parent:
        steady, fresh = Path(parent) / "steady", Path(parent) / "fresh"
        seconds = uvloop.run(_write(steady, operations))
        live = uvloop.run(_copy(steady, fresh))
        disk = _bytes(steady)
        ready = [_ready_s(steady) for _ in range(max(3, effort.repeats))]
    name = f"{operations:,} operations over {OBJECTS:,} objects"
    allowed = 3 * live + LOG_BYTES_MAX
    figures = [
        Figure(
            f"{name}: the directory ÷ (3 × a fresh one with the same content, and log_bytes_max)",
            "×",
            (disk / allowed,),
            Target("≤", 1),
        ),
        Figure("the directory", "MB", (disk / 1e6,)),
        Figure("a fresh directory with the same content", "MB", (live / 1e6,)),
        Figure("start of a process → first read answered", "s", tuple(ready), Target("≤", 2)),
        Figure("operations written, as a hint", "per s", (operations / seconds,)),
    ]
    return Section("Steady load", _METHOD, figures)


_METHOD = (
    f"An embedded store with `log_bytes_max` of {LOG_BYTES_MAX // MiB} MiB and `log_keep_s` of 1. {_WRITERS} tasks overwrite "
    f"registers, items, entries of maps and members of sets, and add to counters, {OBJECTS:,} objects in all, with values "
    f"of {_VALUE} random characters. Then the store is left alone until it does not shrink any more, and is measured. "
    "The fresh directory gets each present value once."
)


def _config() -> Config:
    return Config(log_bytes_max=LOG_BYTES_MAX, log_keep_s=1.0)


async def _write(directory: Path, operations: int) -> float:
    random = Random(1)
    left = iter(range(operations))
    async with shoal.open(directory, config=_config()) as store:
        space = store.space("bench")
        began = perf_counter()
        await asyncio.gather(*(_writer(space, random, left) for _ in range(_WRITERS)))
        took = perf_counter() - began
        await _settled(directory)
        return took


async def _writer(space: Space, random: Random, left: Iterator[int]) -> None:
    for number in left:
        await _one(space, random, number % OBJECTS)


async def _one(space: Space, random: Random, number: int) -> None:
    name = f"object-{number}"
    match number % _KINDS:
        case 0:
            await space.register(name).set(_text(random))
        case 1:
            await space.counter(name).add(1)
        case 2:
            await space.items.put(("bench", name), "key", _text(random))
        case 3:
            await space.map(name).set(f"key-{random.randrange(_MEMBERS)}", _text(random))
        case _:
            member = random.randrange(_MEMBERS)
            names = space.set(name)
            await (names.add(member) if random.random() < 0.5 else names.remove(member))


def _text(random: Random) -> str:
    return random.randbytes(_VALUE // 2).hex()


async def _settled(directory: Path) -> None:
    """Wait until the directory does not shrink any more."""
    until, least, since = perf_counter() + _PATIENCE_S, _bytes(directory), perf_counter()
    while perf_counter() < until and perf_counter() - since < 20:
        await asyncio.sleep(1)
        now = _bytes(directory)
        if now < 0.98 * least:
            least, since = now, perf_counter()


async def _copy(steady: Path, fresh: Path) -> int:
    async with shoal.open(steady, config=_config()) as source, shoal.open(fresh, config=_config()) as target:
        there, here = source.space("bench"), target.space("bench")
        for start in range(0, OBJECTS, _WRITERS):
            numbers = range(start, min(start + _WRITERS, OBJECTS))
            await asyncio.gather(*(_copy_one(there, here, number) for number in numbers))
    async with shoal.open(fresh):  # What was only in the log of RocksDB is in tables now.
        pass
    return _bytes(fresh)


async def _copy_one(there: Space, here: Space, number: int) -> None:
    name = f"object-{number}"
    match number % _KINDS:
        case 0:
            await here.register(name).set(await there.register(name).get())
        case 1:
            await here.counter(name).add(await there.counter(name).value())
        case 2:
            item = await there.items.get(("bench", name), "key")
            assert item is not None
            await here.items.put(("bench", name), "key", item.value)
        case 3:
            entries = await there.map(name).entries()
            await asyncio.gather(*(here.map(name).set(entry.key, entry.value) for entry in entries))
        case _:
            members = await there.set(name).members()
            if members:
                await here.set(name).add(*members)


def _bytes(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue  # RocksDB has removed it meanwhile.
    return total


def _ready_s(directory: Path) -> float:
    command = [sys.executable, "-m", "benchmarks.steady", str(directory)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)


async def _first_read(store: Store) -> None:
    await store.space("bench").register("object-0").get()


async def _main() -> None:
    began = perf_counter()
    async with shoal.open(sys.argv[1], config=_config()) as store:
        await _first_read(store)
        print(perf_counter() - began)


if __name__ == "__main__":
    uvloop.run(_main())
