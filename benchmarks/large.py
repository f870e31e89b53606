"""A large state of which little changes: what a save writes and computes, and what a load costs."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from random import Random
from time import process_time

import uvloop

import shoal
from benchmarks.figures import Effort, Figure, Section, Target
from shoal.client.store import Store

_MESSAGES = 2000
_AT = {"at the front": 0, "in the middle": _MESSAGES // 2, "at the end": _MESSAGES - 1}


def run(effort: Effort) -> Section:
    with tempfile.TemporaryDirectory() as parent:
        figures = uvloop.run(_measure(Path(parent), max(4, effort.repeats * 4)))
    return Section("Large states", _METHOD, figures)


_METHOD = (
    f"An embedded store. A channel holds a list of {_MESSAGES:,} messages, 1.0 MB in all. Each save replaces one message "
    "by another of 100 bytes, and sends the whole state. *Written* is what the process gave to the kernel meanwhile "
    "(`wchar`): the log of RocksDB. Processor time is that of the process."
)


async def _measure(directory: Path, saves: int) -> list[Figure]:
    figures: list[Figure] = []
    for name, at in _AT.items():
        async with shoal.open(directory / name.replace(" ", "-")) as store:
            written, spent = await _saves(store, at, saves)
        figures.append(Figure(f"100 bytes changed {name} of 1 MB: written", "KB", tuple(written), Target("≤", 64)))
        figures.append(Figure(f"100 bytes changed {name} of 1 MB: processor time", "ms", tuple(spent)))
    return figures


async def _saves(store: Store, at: int, saves: int) -> tuple[list[float], list[float]]:
    thread, random = store.space("bench").thread("agent"), Random(1)
    log = [{"role": "user", "content": random.randbytes(240).hex()} for _ in range(_MESSAGES)]
    await thread.save({"log": log})
    written: list[float] = []
    spent: list[float] = []
    for _ in range(saves):
        log[at] = {"role": "user", "content": random.randbytes(40).hex()}
        await asyncio.sleep(0.05)  # What the last save left to do is no part of this one.
        began, before = process_time(), _written()
        await thread.save({"log": log})
        spent.append((process_time() - began) * 1000)
        written.append((_written() - before) / 1000)
    return written, spent


def _written() -> int:
    """The bytes that the process gave to the kernel since its start."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))
