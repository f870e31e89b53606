"""What documents that nobody uses take in memory, beside the same bytes written into documents that are used.

Resident memory holds what RocksDB caches of the bytes that were written, and what the allocator keeps of what was
freed; both grow with bytes, not with documents, up to their bounds. So the same bytes are written into a hundred documents
as well, and what the process has allocated and not freed is counted in another run, without noise.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import tempfile
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import uvloop

import shoal
from benchmarks.figures import Effort, Figure, Target
from shoal.client.store import Space
from shoal.config import Config, KiB, MiB
from simulation.bounds import altered

_MANY, _LIVE = 10_000, 100
_TEXT = "what an agent has found out so far, and where it has it from; " * 64  # 4 KB.
_LOOKS = 40
_KNOWN = 2048  # Small, so that it is forgotten and filled again several times between two looks that are compared.
_ROUNDS = 3  # In which the live ones are read.

METHOD = (
    f"*Memory*: documents of {len(_TEXT) / KiB:.0f} KB, written one after the other through mirrors that are closed again, "
    f"then a hundred of them read {_ROUNDS} times; each measurement in a process of its own, beyond an empty store. At most "
    "1 MiB of documents is kept live. *Resident* counts what RocksDB caches and the allocator keeps, which follows the bytes "
    f"written: so the same are written into {_LIVE} documents, too. *In use* is what is allocated and not freed, the "
    "interpreter's objects and the engines' bytes alike (`mallinfo2`, under `PYTHONMALLOC=malloc`), with 1 MiB for RocksDB's "
    f"memtable, as much for its cache, and {_KNOWN:,} names for `OBJECTS_KNOWN_MAX`; of {_LOOKS} looks the least of the third "
    "quarter and of the last one are compared: by then all that is bounded is as large as it becomes."
)


class _Load(NamedTuple):
    writes: int
    documents: int
    exact: bool = False  # What is in use is counted, rather than what is resident.


class _Marks(NamedTuple):
    """Bytes beyond an empty store."""

    looks: list[int]  # While it was written.
    end: int


def figures(effort: Effort) -> Iterator[Figure]:
    full = effort.repeats > 2
    many = _MANY if full else _MANY // 10
    used, idle, same = (_alone(_Load(*load)) for load in ((_LIVE, _LIVE), (many, many), (many, _LIVE)))
    yield Figure(f"resident with {_LIVE} documents, all of them used", "MiB", (used.end / MiB,))
    yield Figure(f"resident with {many:,} documents, {_LIVE} of them used", "MiB", (idle.end / MiB,))
    yield Figure(f"resident with the same bytes in {_LIVE} documents", "MiB", (same.end / MiB,))
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        return  # Only glibc says what is in use.
    looks = _alone(_Load(many, many, exact=True)).looks
    quarter = len(looks) // 4
    grown = min(looks[-quarter:]) - min(looks[-2 * quarter : -quarter])
    yield Figure(f"in use with {many:,} documents, at the least", "MiB", (min(looks[-quarter:]) / MiB,))
    yield Figure(
        f"in use by each of the last {many // 4:,} idle documents",
        "B",
        (grown / (many // 4),),
        Target("≤", 64) if full else None,
    )


def _alone(load: _Load) -> _Marks:
    """In a process of its own: in one that has measured other things, what they freed is used again."""
    before = os.environ.get("PYTHONMALLOC")
    if load.exact:
        os.environ["PYTHONMALLOC"] = "malloc"
    try:
        with get_context("spawn").Pool(1) as pool:
            return pool.apply(_measured, (load,))
    finally:
        os.environ.pop("PYTHONMALLOC", None)
        if before is not None:
            os.environ["PYTHONMALLOC"] = before


def _measured(load: _Load) -> _Marks:
    return uvloop.run(_carried_out(load))


async def _carried_out(load: _Load) -> _Marks:
    config = Config(document_cache_bytes=MiB)
    if load.exact:
        config = Config(document_cache_bytes=MiB, memtable_bytes=MiB, block_cache_bytes=MiB)
    measure = _in_use if load.exact else _resident
    looks: list[int] = []
    known = {"objects_known_max": _KNOWN} if load.exact else {}
    with altered(**known), tempfile.TemporaryDirectory() as directory:
        async with shoal.open(Path(directory) / "state", config=config, durability="memory") as store:
            space = store.space("s")
            empty = measure()
            for number in range(load.writes):
                await _write(space, f"d{number % load.documents}", number)
                if load.exact and (number + 1) % (load.writes // _LOOKS) == 0:
                    looks.append(measure() - empty)
            for _ in range(_ROUNDS):
                for number in range(_LIVE):
                    async with await space.document(f"d{number}") as document:
                        assert document.map("m")
            return _Marks(looks, measure() - empty)


async def _write(space: Space, name: str, number: int) -> None:
    """All that it holds: what was there before is gone from the document, and its bytes are on disk."""
    async with await space.document(name) as document:
        document.map("m")["found"] = f"{number}: {_TEXT}"
        await document.flush()
    await asyncio.sleep(0)


def _resident() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def _in_use() -> int:
    """Bytes that were allocated and not freed, in all arenas and outside of them."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _MallInfo
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)
