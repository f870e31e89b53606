"""Standard Yjs clients that edit at once: Shoal's door beside servers that keep documents in memory."""

from __future__ import annotations

import asyncio
import importlib.util
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic_ns, perf_counter, sleep
from typing import Any, NamedTuple

import aiohttp
import pycrdt
import uvloop

from benchmarks.figures import Effort, Figure, Section, Target, quantile
from shoal.protocol import yjs

CLIENTS = 20
UPDATES = 500  # Of each client.
DRIVERS = 2
PACKAGES = "Y_WEBSOCKET_PACKAGES"  # Names a directory in which `npm install @y/websocket-server` was run.

_PATIENCE_S = 120
_POLL_S = 0.05
_IDLE_UPDATES = 200
_DONE = re.compile(rb"done-(\d+)-")
_SENT = re.compile(rb"sent:(\d+):")
_KEYS = 50


class Server(NamedTuple):
    name: str
    url: str  # `{document}` stands for the name of one.
    pid: int


class Load(NamedTuple):
    per_s: float
    cpu_us: float  # Of the server, by update.
    idle_p50_ms: float  # From one client to another, when nobody else writes.


def run(effort: Effort) -> Section:
    loads: dict[tuple[str, int], list[Load]] = {}
    for _ in range(effort.repeats):
        for serve in (_shoal, _y_websocket, _pycrdt_websocket):
            with tempfile.TemporaryDirectory() as directory, serve(Path(directory)) as server:
                if server is not None:
                    for documents in (1, 10):
                        loads.setdefault((server.name, documents), []).append(measured(server, documents))
    return Section("Yjs clients", _METHOD, _figures(loads))


def _figures(loads: dict[tuple[str, int], list[Load]]) -> list[Figure]:
    figures = []
    for (name, documents), found in loads.items():
        where = f"{name}, {'one document' if documents == 1 else f'{documents} documents'}"
        figures.append(Figure(f"{where}: updates", "1/s", tuple(load.per_s for load in found)))
        figures.append(Figure(f"{where}: CPU by update", "µs", tuple(load.cpu_us for load in found)))
        if documents == 1:
            target = Target("≤", 3) if name == "Shoal" else None
            figures.append(
                Figure(f"{where}: idle, client to client, p50", "ms", tuple(load.idle_p50_ms for load in found), target)
            )
    for name, rate, costs in (("y-websocket", 1.5, {1: 1.0, 10: 3.0}), ("pycrdt-websocket", 3.0, {})):
        for documents, ours, theirs in ((d, loads["Shoal", d], loads.get((name, d))) for d in (1, 10)):
            if theirs is None:
                continue
            where = "one document" if documents == 1 else f"{documents} documents"
            pairs = list(zip(ours, theirs, strict=True))
            if documents == 1:
                ratios = tuple(our.per_s / their.per_s for our, their in pairs)
                figures.append(Figure(f"{where}, updates: Shoal ÷ {name}", "×", ratios, Target("≥", rate)))
            if documents in costs:
                ratios = tuple(our.cpu_us / their.cpu_us for our, their in pairs)
                figures.append(Figure(f"{where}, CPU: Shoal ÷ {name}", "×", ratios, Target("≤", costs[documents])))
    return figures


_METHOD = (
    f"{CLIENTS} clients in {DRIVERS} processes, each with a document of its own, write {UPDATES} map entries as fast as they "
    "can, over the loopback interface; the end is when every client of a document was sent every writer's last update. A "
    "server's CPU is what the system counts for its process meanwhile. Shoal relays nothing before its fsync; the others keep "
    "everything in memory, and are measured where they are there: `@y/websocket-server` if "
    f"`{PACKAGES}` names a directory where npm installed it, `pycrdt-websocket` if Python finds it. A server is started once "
    "a repeat, and has one document, then ten."
)


# ── servers ───────────────────────────────────────────────────────────────────


@contextmanager
def _shoal(directory: Path) -> Iterator[Server | None]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    port = _free_port()
    command = [sys.executable, "-m", "shoal", "serve", "--data", str(directory / "store"), "--listen", f"127.0.0.1:{port}"]
    with _running(command, environment, port) as pid:
        yield Server("Shoal", f"ws://127.0.0.1:{port}/v1/yjs/bench/{{document}}", pid)


@contextmanager
def _y_websocket(directory: Path) -> Iterator[Server | None]:
    node, packages = shutil.which("node"), os.environ.get(PACKAGES)
    script = Path(packages or directory) / "node_modules/@y/websocket-server/src/server.js"
    if node is None or not script.exists():
        yield None
        return
    port = _free_port()
    with _running([node, str(script)], {**os.environ, "HOST": "127.0.0.1", "PORT": str(port)}, port) as pid:
        yield Server("y-websocket", f"ws://127.0.0.1:{port}/{{document}}", pid)


@contextmanager
def _pycrdt_websocket(_directory: Path) -> Iterator[Server | None]:
    found = [name for name in ("pycrdt.websocket", "pycrdt_websocket", "hypercorn") if _is_installed(name)]
    if len(found) < 2:
        yield None
        return
    port = _free_port()
    program = (
        "import asyncio; from hypercorn import Config; from hypercorn.asyncio import serve\n"
        f"from {found[0]} import ASGIServer, WebsocketServer\n"
        "async def main():\n"
        "    rooms = WebsocketServer()\n"
        f"    config = Config(); config.bind = ['127.0.0.1:{port}']\n"
        "    async with rooms: await serve(ASGIServer(rooms), config, mode='asgi')\n"
        "asyncio.run(main())\n"
    )
    with _running([sys.executable, "-c", program], dict(os.environ), port) as pid:
        yield Server("pycrdt-websocket", f"ws://127.0.0.1:{port}/{{document}}", pid)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@contextmanager
def _running(command: list[str], environment: dict[str, str], port: int) -> Iterator[int]:
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(port)
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)


def _wait_for(port: int) -> None:
    for _ in range(int(_PATIENCE_S / _POLL_S)):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz").close()
            return
        except urllib.error.HTTPError:
            return  # It answers, if to other questions.
        except OSError:
            sleep(_POLL_S)
    raise TimeoutError(f"nothing answers at port {port}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def cpu_us(pid: int) -> float:
    """What the system has counted for a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1_000_000 / os.sysconf("SC_CLK_TCK")


# ── clients ───────────────────────────────────────────────────────────────────


def measured(server: Server, documents: int) -> Load:
    context = multiprocessing.get_context("fork")
    started = context.Barrier(DRIVERS + 1)
    run = f"run-{monotonic_ns()}"
    pipes: list[Connection] = []
    drivers = []
    for number in range(DRIVERS):
        mine, theirs = context.Pipe()
        numbers = range(number, CLIENTS, DRIVERS)
        driver = context.Process(target=_drive, args=(server.url, run, numbers, documents, started.wait, theirs), daemon=True)
        driver.start()
        pipes.append(mine)
        drivers.append(driver)
    started.wait(_PATIENCE_S)
    began = cpu_us(server.pid)
    spans: list[tuple[float, float]] = []
    for pipe in pipes:
        if not pipe.poll(_PATIENCE_S):
            raise TimeoutError("a driver did not finish")
        spans.append(pipe.recv())
    cpu = cpu_us(server.pid) - began
    for driver in drivers:
        driver.join(_PATIENCE_S)
    updates = CLIENTS * (UPDATES + 1)
    seconds = max(end for _, end in spans) - min(begin for begin, _ in spans)
    idle = uvloop.run(_idle_ms(server.url.format(document=f"{run}-idle"))) if documents == 1 else 0.0
    return Load(updates / seconds, cpu / updates, idle)


def _drive(url: str, run: str, numbers: range, documents: int, start: Callable[[], Any], pipe: Connection) -> None:
    async def drive() -> tuple[float, float]:
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(aiohttp.ClientSession())
            clients = [_Client(number, documents) for number in numbers]
            for client in clients:
                await client.open(http, url.format(document=f"{run}-{client.number % documents}"))
            await asyncio.to_thread(start)
            began = perf_counter()
            await asyncio.gather(*(client.write() for client in clients))
            await asyncio.gather(*(client.finished.wait() for client in clients))
            ended = perf_counter()
            for client in clients:
                await client.close()
            return began, ended

    pipe.send(uvloop.run(drive()))


class _Client:
    """It decodes nothing but what it needs to know: the marks in the values."""

    def __init__(self, number: int, documents: int) -> None:
        self.number = number
        self.finished = asyncio.Event()
        self.sent_ns: list[int] = []  # Marks that arrived, less when they left: their latency.
        self._writers = len(range(number % documents, CLIENTS, documents))
        self._done: set[bytes] = set()
        self._updates: list[bytes] = []
        self._synced = asyncio.Event()
        # Not the engine's own id: its dice are the same in every forked process.
        self._doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=int.from_bytes(os.urandom(4), "big"))
        self._map: pycrdt.Map[Any] = self._doc.get("m", type=pycrdt.Map)

    async def open(self, http: aiohttp.ClientSession, url: str) -> None:
        self._socket = await http.ws_connect(url, max_msg_size=0, compress=0)
        await self._socket.send_bytes(yjs.encode_step_1(self._doc.get_state()))
        self._observing = self._doc.observe(lambda event: self._updates.append(event.update))
        self._reading = asyncio.create_task(self._read())
        await asyncio.wait_for(self._synced.wait(), _PATIENCE_S)

    async def close(self) -> None:
        self._reading.cancel()
        await self._socket.close()

    async def put(self, key: str, value: str) -> None:
        self._map[key] = value
        for update in self._updates:
            await self._socket.send_bytes(yjs.encode_update(update))
        self._updates.clear()

    async def write(self) -> None:
        for number in range(UPDATES):
            await self.put(f"c{self.number}-{number % _KEYS}", str(number))
            await asyncio.sleep(0)
        await self.put(f"done-{self.number}", f"done-{self.number}-")

    async def _read(self) -> None:
        with suppress(ConnectionError):
            while (message := await self._socket.receive()).type is aiohttp.WSMsgType.BINARY:
                data = message.data
                if data[0] == 0 and data[1] == 0:
                    await self._socket.send_bytes(yjs.encode_step_2(b"\x00\x00"))
                if data[0] == 0 and data[1] == 1:
                    self._synced.set()
                now = monotonic_ns()
                self.sent_ns += [now - int(sent) for sent in _SENT.findall(data)]
                self._done.update(_DONE.findall(data))
                if len(self._done) >= self._writers - (str(self.number).encode() not in self._done):
                    self.finished.set()


async def _idle_ms(url: str) -> float:
    async with aiohttp.ClientSession() as http:
        writer, reader = _Client(0, CLIENTS), _Client(1, CLIENTS)
        await writer.open(http, url)
        await reader.open(http, url)
        for number in range(_IDLE_UPDATES):
            await writer.put(f"idle-{number}", f"sent:{monotonic_ns()}:")
            while len(reader.sent_ns) <= number:
                await asyncio.sleep(0.0005)
        await writer.close()
        await reader.close()
        return quantile(sorted(reader.sent_ns), 0.5) / 1_000_000
