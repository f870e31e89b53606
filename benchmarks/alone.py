"""One save at a time by an agent that pauses: beside the least that a process, a socket and a disk take.

`python -m benchmarks.alone` is the bare server: a WebSocket echo that flushes each message to a file.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from time import perf_counter

import aiohttp
import uvloop
from aiohttp import web

import shoal
from benchmarks.cluster import Nodes
from benchmarks.figures import Effort, Figure, Section, Target, quantile
from benchmarks.states import state
from shoal.client.store import Store
from shoal.protocol.requests import Durability

PAUSE_S = 0.004
_TASKS = (1, 16)
_BYTES = 1000
_BESIDE_MS = 0.1  # What an embedded save may take beside its fdatasync, to be as good as the floor.

Act = Callable[[int, int], Awaitable[object]]
"""What a task does in a step."""


def run(effort: Effort) -> Section:
    """Each repetition measures the floors and the store one after the other; ratios are taken within it."""
    found: dict[str, list[float]] = {}
    for _ in range(effort.repeats):
        for name, value in _round(effort.seconds):
            found.setdefault(name, []).append(value)
    figures = [Figure(name, "ms", tuple(values)) for name, values in found.items()]
    for ours, floor, beside, target in _RATIOS:
        ratios = tuple(our / (their + beside) for our, their in zip(found[ours], found[floor], strict=True))
        figures.append(Figure(f"{ours} ÷ {floor}{f' + {beside} ms' if beside else ''}", "×", ratios, Target("≤", target)))
    return Section("One save at a time", _METHOD, figures)


_FSYNC = "a bare fdatasync, p50"
_ECHO = "a bare echo with an fdatasync, p50"
_EMBEDDED = "embedded save, p50"
_LOCAL, _QUORUM = "save through a node, `local`, p50", "save through a node, `quorum`, p50"
_RATIOS = [(_LOCAL, _ECHO, 0.0, 2.0), (_QUORUM, _ECHO, 0.0, 3.0), (_EMBEDDED, _FSYNC, _BESIDE_MS, 2.2)]
_METHOD = (
    f"A state of 1 KB is saved, then the task pauses for {PAUSE_S * 1000:.0f} ms, as agents do; with 16 tasks each has a "
    "thread of its own. Through a node: three `shoal serve` processes over the loopback interface, the client at the first. "
    f"The bare echo is an aiohttp WebSocket server that appends {_BYTES} bytes to a file, calls fdatasync on a thread of its "
    "executor, and answers, with the same pauses. The bare fdatasync comes after as many bytes "
    "appended, on the loop's executor, too."
)


def _round(seconds: float) -> Iterator[tuple[str, float]]:
    yield _FSYNC, uvloop.run(_bare_sync(seconds))
    yield _ECHO, uvloop.run(_echoed(seconds))
    yield _EMBEDDED, uvloop.run(_embedded(seconds))
    with tempfile.TemporaryDirectory() as directory, Nodes(Path(directory)) as nodes:
        durabilities: tuple[Durability, ...] = ("local", "quorum")
        for durability in durabilities:
            for tasks in _TASKS:
                took = uvloop.run(_served(nodes.urls[0], durability, tasks, seconds))
                name = f"save through a node, `{durability}`"
                if tasks > 1:
                    name += f", {tasks} tasks"
                yield f"{name}, p50", quantile(took, 0.5) * 1e3
                yield f"{name}, p99", quantile(took, 0.99) * 1e3


# ── the store ─────────────────────────────────────────────────────────────────


async def _embedded(seconds: float) -> float:
    with tempfile.TemporaryDirectory() as directory:
        async with shoal.open(Path(directory) / "store") as store:
            return quantile(await _paused(_saves(store, "embedded", 1), 1, seconds), 0.5) * 1e3


async def _served(url: str, durability: Durability, tasks: int, seconds: float) -> list[float]:
    async with shoal.connect(url, durability=durability) as store:
        return await _paused(_saves(store, durability, tasks), tasks, seconds)


def _saves(store: Store, name: str, tasks: int) -> Act:
    threads = [store.space("bench").thread(f"{name}-{tasks}-{task}") for task in range(tasks)]

    async def save(task: int, step: int) -> None:
        await threads[task].save(state(task, step))

    return save


# ── the floors ────────────────────────────────────────────────────────────────


async def _bare_sync(seconds: float) -> float:
    with tempfile.TemporaryFile(buffering=0) as file:
        loop = asyncio.get_running_loop()

        async def sync(_: int, __: int) -> None:
            file.write(bytes(_BYTES))
            await loop.run_in_executor(None, os.fdatasync, file.fileno())

        return quantile(await _paused(sync, 1, seconds), 0.5) * 1e3


async def _echoed(seconds: float) -> float:
    with _echo() as url:
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(aiohttp.ClientSession())
            socket = await stack.enter_async_context(http.ws_connect(url))

            async def exchange(_: int, __: int) -> None:
                await socket.send_bytes(bytes(_BYTES))
                await socket.receive()

            return quantile(await _paused(exchange, 1, seconds), 0.5) * 1e3


@contextmanager
def _echo() -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.alone"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGTERM)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryFile(buffering=0) as file:

        async def answer(request: web.Request) -> web.WebSocketResponse:
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            async for message in socket:
                file.write(message.data)
                await loop.run_in_executor(None, os.fdatasync, file.fileno())
                await socket.send_bytes(b"done")
            return socket

        application = web.Application()
        application.router.add_get("/", answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}/", flush=True)
        await asyncio.Event().wait()


# ── the load ──────────────────────────────────────────────────────────────────


async def _paused(act: Act, tasks: int, seconds: float) -> list[float]:
    """The seconds of each act, sorted; the first second's do not count."""
    warm = perf_counter() + min(1.0, seconds / 2)
    took: list[float] = []

    async def task(number: int) -> None:
        step = 0
        while (began := perf_counter()) < warm + seconds:
            await act(number, step)
            if began > warm:
                took.append(perf_counter() - began)
            await asyncio.sleep(PAUSE_S)
            step += 1

    await asyncio.gather(*map(task, range(tasks)))
    return sorted(took)


if __name__ == "__main__":
    uvloop.run(_serve())
