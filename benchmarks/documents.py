"""What documents cost: 260,000 edits of one, thousands of openings and replacements of one, and the memory of many."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from time import process_time

import pycrdt
import uvloop

import shoal
from benchmarks import edits, idle
from benchmarks.edits import Trace
from benchmarks.figures import Effort, Figure, Section, Target
from shoal.client.store import Space
from shoal.protocol.requests import Replace

_PAPER = "automerge-paper"
_EDITS = 4000  # Openings with one edit each, and replacements.
_COMPARED = 200  # Of these, at the beginning and at the end.
_TEXT_MAX = 100  # The text is cut to half of this beyond it.
_GROWTH_MAX = 1.2
_DATA = (".sst", ".blob", ".log")  # Of RocksDB; the rest are its settings and what it says of itself.


def run(effort: Effort) -> Section:
    return Section("Documents", _METHOD, [*_paper(effort), *_again(effort), *idle.figures(effort)])


_METHOD = (
    f"*One document*: the {_PAPER} trace (B4 of crdt-benchmarks, 259,778 edits), typed into a mirror of an embedded store and "
    "flushed, with `local` durability, against the same edits of a pycrdt document that nobody stores or sends; CPU time of "
    "the process, so that others on the machine count less; the bytes are those of the data files after close, log and all. "
    f"*Edited again*: a document of an embedded store is opened, edited and closed {_EDITS:,} times, or replaced in place as "
    f"often, and its text stays short; CPU time of the process for the last {_COMPARED} ÷ for the first, and the bytes of the "
    "whole document as one Yjs update at the end. "
    f"{idle.METHOD}"
)


def _paper(effort: Effort) -> Iterator[Figure]:
    source = edits.directory()
    if source is None:
        return
    trace = edits.read(source, _PAPER)
    plain_s, ours_s, sizes = [], [], []
    for _ in range(max(1, effort.repeats // 2)):
        plain_s.append(_plain(trace))
        with tempfile.TemporaryDirectory() as directory:
            ours_s.append(uvloop.run(_typed(trace, Path(directory) / "state")))
            sizes.append(_size(Path(directory)) / 1000)
    yield Figure("259,778 edits, CPU ÷ plain pycrdt's", "×", tuple(map(_ratio, ours_s, plain_s)), Target("≤", 1.5))
    yield Figure("259,778 edits, CPU", "s", tuple(ours_s))
    yield Figure("259,778 edits, on disk", "KB", tuple(sizes), Target("≤", 200))


def _again(effort: Effort) -> Iterator[Figure]:
    for name, edit in (("openings with one edit", _opened), ("replacements", _replaced)):
        runs = [uvloop.run(_edited(edit)) for _ in range(max(1, effort.repeats // 2))]
        ratios, sizes = zip(*runs, strict=True)
        yield Figure(f"{_EDITS:,} {name}: CPU of the last ÷ of the first", "×", ratios, Target("≤", _GROWTH_MAX))
        yield Figure("the whole document then", "bytes", sizes)


async def _edited(edit: Callable[[Space, int], Awaitable[None]]) -> tuple[float, int]:
    """The CPU time of the last edits ÷ of the first, and the bytes of the document."""
    with tempfile.TemporaryDirectory() as directory:
        async with shoal.open(Path(directory) / "state", durability="memory") as store:
            space, times = store.space("s"), [process_time()]
            for number in range(_EDITS):
                await edit(space, number)
                times.append(process_time())
            async with await space.document("again") as document:
                size = len(document._mirror.content.doc.get_update())
    return (times[-1] - times[-1 - _COMPARED]) / (times[_COMPARED] - times[0]), size


async def _opened(space: Space, number: int) -> None:
    async with await space.document("again") as document:
        text = document.text("t")
        text += f"{number:06} "
        if len(text) > _TEXT_MAX:
            del text[: _TEXT_MAX // 2]


async def _replaced(space: Space, number: int) -> None:
    content = {"t": " ".join(f"{each:06}" for each in range(number, number + 10))}
    await space._connection.write(Replace(space.name, "again", json.dumps(content).encode()), key=None, durability=None)


def _ratio(ours_s: float, plain_s: float) -> float:
    return ours_s / plain_s


def _plain(trace: Trace) -> float:
    doc: pycrdt.Doc[pycrdt.Text] = pycrdt.Doc(client_id=1)
    text, shown = doc.get("t", type=pycrdt.Text), bytearray()
    began = process_time()
    for transaction in trace.transactions:
        edits.type_in(text, shown, transaction)
    taken = process_time() - began
    assert str(text) == trace.end
    return taken


async def _typed(trace: Trace, directory: Path) -> float:
    async with shoal.open(directory) as store, await store.space("s").document("paper") as document:
        text = document.text("t")
        began = process_time()
        for transaction in trace.transactions:
            edits.type_characters(text, transaction)
        await document.flush()
        taken = process_time() - began
    async with shoal.open(directory) as store, await store.space("s").document("paper") as document:
        assert document.to_py() == {"t": trace.end}
    return taken


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.suffix in _DATA)
