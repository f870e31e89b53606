"""What documents cost: 260,000 edits of one, and the memory of many."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import process_time

import pycrdt
import uvloop

import shoal
from benchmarks import idle, traces
from benchmarks.figures import Effort, Figure, Section, Target
from benchmarks.traces import Trace

_PAPER = "automerge-paper"
_DATA = (".sst", ".blob", ".log")  # Of RocksDB; the rest are its settings and what it says of itself.


def run(effort: Effort) -> Section:
    return Section("Documents", _METHOD, [*_paper(effort), *idle.figures(effort)])


_METHOD = (
    f"*One document*: the {_PAPER} trace (B4 of crdt-benchmarks, 259,778 edits), typed into a mirror of an embedded store and "
    "flushed, with `local` durability, against the same edits of a pycrdt document that nobody stores or sends; CPU time of "
    "the process, so that others on the machine count less; the bytes are those of the data files after close, log and all. "
    f"{idle.METHOD}"
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


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.suffix in _DATA)
