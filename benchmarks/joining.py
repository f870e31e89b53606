"""A node with an empty directory joins: how fast it takes snapshots, alone and beside clients that go on writing."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import urllib.request
from contextlib import AsyncExitStack
from os import urandom
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, NamedTuple

import uvloop

import shoal
from benchmarks.cluster import Nodes
from benchmarks.figures import Effort, Figure, Section, Target
from benchmarks.states import state
from shoal.client.store import Space

HELD_BYTES = 500_000_000
_SAVE_BYTES = 4 * 1024
_WRITERS = 64
_SPREAD = 4096
_PARTITION_BYTES = 600_000  # Of the saves in one partition; so they are more than `SNAPSHOT_OPERATIONS_MIN`.
_BESIDE = 16  # Clients that save one state after the other.
_BEFORE_S = 3.0
_POLL_S = 0.1
_LOOK_S = 0.5  # Each look takes two nodes 10 ms, because each counts its spaces.


def run(effort: Effort) -> Section:
    held = HELD_BYTES if effort.repeats > 2 else HELD_BYTES // 10
    repeats = min(3, effort.repeats)
    alone = [joining(held) for _ in range(repeats)]
    beside = [joining(held, writes=True) for _ in range(repeats)]
    figures = [
        Figure("a new node: snapshots taken", "MB/s", tuple(each.mb_per_s for each in alone), Target("≥", 40)),
        Figure("a new node: ready → holds everything", "s", tuple(each.seconds for each in alone)),
        Figure("the same beside writes", "MB/s", tuple(each.mb_per_s for each in beside)),
        Figure("saves during ÷ before", "", tuple(each.rate for each in beside), Target("≥", 0.5)),
    ]
    return Section("Joining", _METHOD, figures)


_METHOD = (
    "Three `shoal serve` processes over the loopback interface, on this machine's cores. Two hold "
    f"{HELD_BYTES / 1e6:,.0f} MB of saves of {_SAVE_BYTES // 1024} KB, no two alike, {_PARTITION_BYTES / 1e6:g} MB in a "
    "partition. The third starts with an empty directory; the clock runs from its readiness until it holds all operations. "
    f"Beside writes: {_BESIDE} clients of the other two save states of 1 KB, each one after the other."
)


class Joined(NamedTuple):
    """How long it took, the bytes of the snapshots a second, and the rate of saves meanwhile, as a share of that before."""

    seconds: float
    mb_per_s: float
    rate: float


def joining(held: int, *, writes: bool = False) -> Joined:
    """Fill two nodes, then let the third one join with an empty directory."""
    with tempfile.TemporaryDirectory() as directory, Nodes(Path(directory)) as nodes:
        nodes.kill(2)
        shutil.rmtree(Path(directory) / "n2")
        uvloop.run(_fill(nodes.urls[:2], held))
        while len({_view(url)["digest"] for url in nodes.urls[:2]}) > 1:
            sleep(_POLL_S)
        return uvloop.run(_join(nodes, writes=writes))


async def _fill(urls: list[str], held: int) -> None:
    left, spaces = iter(range(held // _SAVE_BYTES)), held // _PARTITION_BYTES
    async with shoal.connect(",".join(urls)) as store:

        async def save() -> None:
            for nth in left:
                space = store.space(f"{{bench-{nth % spaces}}}")
                await space.thread(f"t-{nth % _SPREAD}").save({"blob": urandom(_SAVE_BYTES)}, overwrite=True)

        await asyncio.gather(*(save() for _ in range(_WRITERS)))


async def _join(nodes: Nodes, *, writes: bool) -> Joined:
    saved = 0

    async def save(space: Space, writer: int) -> None:
        nonlocal saved
        step = 0
        while True:
            await space.thread(f"beside-{writer}").save(state(writer, step), overwrite=True)
            saved, step = saved + 1, step + 1

    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(shoal.connect(url)) for url in nodes.urls[:2]]
        writers = [
            asyncio.create_task(save(stores[writer % 2].space("bench"), writer)) for writer in range(_BESIDE if writes else 0)
        ]
        try:
            await asyncio.sleep(_BEFORE_S)
            before = saved / _BEFORE_S
            await asyncio.to_thread(nodes.start, 2)
            began, already = perf_counter(), saved
            while not await asyncio.to_thread(_has_joined, nodes.urls):
                await asyncio.sleep(_LOOK_S)
            seconds = perf_counter() - began
            during = (saved - already) / seconds
        finally:
            for writer in writers:
                writer.cancel()
            await asyncio.gather(*writers, return_exceptions=True)
    brought = _view(nodes.urls[2])["snapshot_bytes"]
    return Joined(seconds, brought / 1e6 / seconds, during / before if before else 0.0)


def _has_joined(urls: list[str]) -> bool:
    """Whether the last node holds as many operations as the first one did just before, and takes no more snapshots."""
    wanted = _view(urls[0])["members"][0]["operations"]
    view = _view(urls[2])
    return bool(view["members"][0]["operations"] >= wanted and not view["snapshots_due"] and view["snapshots_taken"])


def _view(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url + "/v1/cluster") as answer:
        found: dict[str, Any] = json.load(answer)
        return found
