"""`python -m benchmarks.files`: a file through a node, beside the same file through a bare aiohttp server in the same run.

Each server and each client is a process of its own, so that its memory can be read: how far its peak is above what it held
before. A copy is in and out again; what comes out is compared by its hash. The bare server writes to a file and syncs it.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import aiohttp
from aiohttp import web

from benchmarks.figures import Figure, Target
from shoal import connect

MiB = 1024 * 1024
_PORTS = (17931, 17932)


def resident(pid: int | str = "self", *, peak: bool = False) -> int:
    """Bytes that a process holds in memory of its own, or held at most; without pages of files."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    if peak:
        return int(fields["VmHWM"].split()[0]) * 1024
    return int(fields["VmRSS"].split()[0]) * 1024


def forget_peak(pid: int | str) -> None:
    """From now on the peak is that of later."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def serve_bare(directory: Path, port: int) -> None:
    """The bare server."""

    async def put(request: web.Request) -> web.Response:
        with (directory / "file").open("wb") as file:
            async for piece in request.content.iter_chunked(MiB):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        return web.Response()

    async def get(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = (directory / "file").stat().st_size
        await response.prepare(request)
        with (directory / "file").open("rb") as file:
            while piece := file.read(MiB):
                await response.write(piece)
        return response

    (directory / "file").touch()
    app = web.Application()
    app.router.add_put("/file", put)
    app.router.add_get("/file", get)
    web.run_app(app, host="127.0.0.1", port=port, print=None)


async def over_http(url: str, source: Path, copy: Path) -> tuple[float, float]:
    """Seconds in, and out."""

    async def pieces() -> AsyncIterator[bytes]:
        with source.open("rb") as file:
            while piece := file.read(MiB):
                yield piece

    async with aiohttp.ClientSession() as http:
        began = time.perf_counter()
        async with http.put(url, data=pieces()) as answer:
            assert answer.status < 300, await answer.text()
        between = time.perf_counter()
        async with http.get(url) as answer:
            with copy.open("wb") as file:
                async for piece in answer.content.iter_chunked(MiB):
                    file.write(piece)
        return between - began, time.perf_counter() - between


async def by_handle(url: str, source: Path, copy: Path) -> tuple[float, float]:
    """The same with `put_file` and `open_file`."""
    async with connect(url) as store:
        thread = store.space("files").thread("handle")
        began = time.perf_counter()
        await thread.put_file("file", source)
        between = time.perf_counter()
        async with thread.open_file("file") as stream:
            with copy.open("wb") as file:
                async for piece in stream:
                    file.write(piece)
        return between - began, time.perf_counter() - between


def _client(way: str, url: str, source: Path, copy: Path, told: multiprocessing.SimpleQueue[tuple[float, float, int]]) -> None:
    before = resident()
    took = asyncio.run(by_handle(url, source, copy) if way == "handle" else over_http(url, source, copy))
    told.put((*took, resident(peak=True) - before))


def copied(way: str, url: str, source: Path, copy: Path) -> tuple[float, float, int]:
    """Seconds in and out, and by how many bytes the client grew."""
    context = multiprocessing.get_context("spawn")
    told: multiprocessing.SimpleQueue[tuple[float, float, int]] = context.SimpleQueue()
    client = context.Process(target=_client, args=(way, url, source, copy, told))
    client.start()
    found = told.get()
    client.join()
    assert _hash(copy) == _hash(source), "what came out is not what went in"
    copy.unlink()
    return found


def _hash(file: Path) -> str:
    hash = sha256()
    with file.open("rb") as source:
        while piece := source.read(MiB):
            hash.update(piece)
    return hash.hexdigest()


def _served(directory: Path, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "shoal", "serve", "--data", str(directory / "state"), "--listen", f"127.0.0.1:{port}"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def _ready(url: str) -> None:
    async with aiohttp.ClientSession() as http:
        for _ in range(600):
            try:
                async with http.head(url):
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)


def measured(size: int, directory: Path) -> list[Figure]:
    """All figures of one file."""
    source, copy = directory / "source", directory / "copy"
    made = random.Random(1)
    with source.open("wb") as file:
        for _ in range(size // MiB):
            file.write(made.randbytes(MiB))
    bare = multiprocessing.Process(target=serve_bare, args=(directory, _PORTS[0]), daemon=True)
    bare.start()
    asyncio.run(_ready(f"http://127.0.0.1:{_PORTS[0]}/file"))
    least = copied("http", f"http://127.0.0.1:{_PORTS[0]}/file", source, copy)
    bare.terminate()
    bare.join()
    (directory / "file").unlink()
    node = _served(directory, _PORTS[1])
    url = f"http://127.0.0.1:{_PORTS[1]}"
    figures: list[Figure] = []
    try:
        asyncio.run(_ready(f"{url}/healthz"))
        for way, at in (("http", f"{url}/v1/spaces/files/threads/http/files/file"), ("handle", url)):
            asyncio.run(_warm(url))
            forget_peak(node.pid)
            before = resident(node.pid)
            took = copied(way, at, source, copy)
            grown = resident(node.pid, peak=True) - before
            ratio = sum(least[:2]) / sum(took[:2])
            figures += [
                Figure(f"{way}: in", "MB/s", (size / took[0] / 1e6,)),
                Figure(f"{way}: out", "MB/s", (size / took[1] / 1e6,)),
                Figure(f"{way}: in and out, as a part of a bare server's speed", "×", (ratio,), Target("≥", 0.5)),
                Figure(f"{way}: the node grows by", "MB", (grown / 1e6,), Target("≤", 64)),
                Figure(f"{way}: the client grows by", "MB", (took[2] / 1e6,), Target("≤", 64)),
            ]
    finally:
        node.send_signal(signal.SIGTERM)
        node.wait()
    return [
        Figure("bare: in", "MB/s", (size / least[0] / 1e6,)),
        Figure("bare: out", "MB/s", (size / least[1] / 1e6,)),
        *figures,
    ]


async def _warm(url: str) -> None:
    """Have the node load what it needs."""
    async with connect(url) as store:
        await store.space("warm").put_file("file", bytes(MiB))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=2048, help="the size of the file in MiB")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="shoal-files-"))
    try:
        for figure in measured(options.mb * MiB, directory):
            met = {None: "", True: "  met", False: "  MISSED"}[figure.met]
            aim = f"  (target {figure.target.bound} {figure.target.value:g})" if figure.target else ""
            print(f"{figure.name:55} {figure.value:10.2f} {figure.unit}{aim}{met}")
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
