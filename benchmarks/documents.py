"""What documents cost: 260,000 edits of one, and the memory of ten thousand of which a hundred are used."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from time import process_time

import pycrdt
import uvloop

import shoal
from benchmarks import traces
from benchmarks.figures import Effort, Figure, Section, Target
from benchmarks.traces import Trace
from shoal.client.store import Space
from shoal.config import Config, MiB

_PAPER = "automerge-paper"
_IDLE, _LIVE = 10_000, 100
_DATA = (".sst", ".blob", ".log")  # Of RocksDB; the rest are its settings and what it says of itself.
_TEXT = "what an agent has found out so far, and where it has it from; " * 64  # 4 KB.


def run(effort: Effort) -> Section:
    many = _IDLE if effort.repeats > 2 else _IDLE // 10
    few_bytes, many_bytes = _alone(_LIVE), _alone(many)
    return Section(
        "Documents",
        _METHOD,
        [
            *_paper(effort),
            Figure(f"memory with {_LIVE} documents, all of them used", "MiB", (few_bytes / MiB,)),
            Figure(f"memory with {many:,} documents, {_LIVE} of them used", "MiB", (many_bytes / MiB,)),
        ],
    )


_METHOD = (
    f"*One document*: the {_PAPER} trace (B4 of crdt-benchmarks, 259,778 edits), typed into a mirror of an embedded store and "
    "flushed, with `local` durability, against the same edits of a pycrdt document that nobody stores or sends; CPU time of "
    "the process, so that others on the machine count less; the bytes are those of the data files after close, log and all. "
    f"*Memory*: what a process of its own has resident beyond an empty store, with documents of {len(_TEXT) / 1024:.0f} KB, "
    "written one after the other, then a hundred of them read again and again; at most 1 MiB of them is kept live."
)


def _paper(effort: Effort) -> Iterator[Figure]:
    source = traces.directory()
    if source is None:
        return
    trace = traces.read(source, _PAPER)
    plain_s, ours_s, sizes = [], [], []
    for _ in range(max(1, effort.repeats // 2)):
        plain_s.append(_plain(trace))
        with tempfile.TemporaryDirectory() as directory:
            ours_s.append(uvloop.run(_typed(trace, Path(directory) / "state")))
            sizes.append(_size(Path(directory)) / 1000)
    yield Figure("259,778 edits, CPU ÷ plain pycrdt's", "×", tuple(map(_ratio, ours_s, plain_s)), Target("≤", 1.5))
    yield Figure("259,778 edits, CPU", "s", tuple(ours_s))
    yield Figure("259,778 edits, on disk", "KB", tuple(sizes), Target("≤", 200))


def _ratio(ours_s: float, plain_s: float) -> float:
    return ours_s / plain_s


def _plain(trace: Trace) -> float:
    doc: pycrdt.Doc[pycrdt.Text] = pycrdt.Doc(client_id=1)
    text, shown = doc.get("t", type=pycrdt.Text), bytearray()
    began = process_time()
    for transaction in trace.transactions:
        traces.type_in(text, shown, transaction)
    taken = process_time() - began
    assert str(text) == trace.end
    return taken


async def _typed(trace: Trace, directory: Path) -> float:
    async with shoal.open(directory) as store, await store.space("s").document("paper") as document:
        text, shown = document.text("t"), bytearray()
        began = process_time()
        for transaction in trace.transactions:
            traces.type_in(text, shown, transaction)
        await document.flush()
        taken = process_time() - began
    async with shoal.open(directory) as store, await store.space("s").document("paper") as document:
        assert document.to_py() == {"t": trace.end}
    return taken


def _alone(count: int) -> float:
    """`_memory` in a process of its own: in one that has measured other things, what they freed is used again."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_resident_with, (count,))


def _resident_with(count: int) -> float:
    return uvloop.run(_memory(count))


async def _memory(count: int) -> float:
    """Bytes that are resident beyond those of an empty store."""
    config = Config(document_cache_bytes=MiB)
    with tempfile.TemporaryDirectory() as directory:
        async with shoal.open(Path(directory) / "state", config=config, durability="memory") as store:
            space = store.space("s")
            before = _resident()
            for number in range(count):
                await _write(space, number)
            for _ in range(3):
                for number in range(_LIVE):
                    async with await space.document(f"d{number}") as document:
                        assert document.text("t")
            gc.collect()
            return _resident() - before


async def _write(space: Space, number: int) -> None:
    async with await space.document(f"d{number}") as document:
        document.text("t").insert(0, f"{number}: {_TEXT}")
        await document.flush()
    await asyncio.sleep(0)


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.suffix in _DATA)
