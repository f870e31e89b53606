"""Three bare nodes beside a crowd: what the machine takes from a quiet space's add, however fair the nodes are.

`python -m benchmarks.twin node PORT FILE BUSY PEER …` is a node that does nothing but what no node can leave out:

- An add is appended to a file and pushed to both others at once; it is answered once its own fdatasync and one of theirs have
  ended. One sync is under way at a time, for all that wait, on a thread of the executor.
- With a crowd it computes without an end, `SLICE_S` at each turn of its loop, and appends what a crowd would write. It stands
  still while an add is under way in it, for at most as long as it computed before: a busy space keeps half of the loop, as with
  Shoal. So no add ever waits for more than one slice of a node that has a processor.

`python -m benchmarks.twin crowd` computes in such slices too, in the place of the crowd's clients.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter

import uvloop

from benchmarks.cluster import free_ports
from benchmarks.figures import quantile

SLICE_S = 0.001
_BUSY_BYTES = 4000  # Appended for a slice: what the saves of a crowd write for each millisecond that a node computes.
_FRAME = 256  # Bytes of each message.
_CREDIT_S_MAX = 0.02
_RESTS_S = 0.001  # Between two slices of the crowd: it waits for answers, too.


class _Node:
    """One bare node."""

    def __init__(self, file: Path, *, is_busy: bool) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._is_busy = is_busy
        self._unwritten = 0  # Bytes.
        self._written = self._durable = 0  # Numbers of appends.
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._syncing: asyncio.Task[None] | None = None
        self._under_way = 0
        self._credit_s = 0.0
        self._peers: list[tuple[asyncio.StreamWriter, deque[asyncio.Future[None]]]] = []

    async def serve(self, port: int, peers: Sequence[int]) -> None:
        await asyncio.start_server(self._take, "127.0.0.1", port)
        tasks = [asyncio.create_task(self._link(peer)) for peer in peers]
        while len(self._peers) < len(peers):
            await asyncio.sleep(0.01)
        print("ready", flush=True)
        if self._is_busy:
            asyncio.get_running_loop().call_soon(self._work)
        await asyncio.gather(*tasks)

    async def _link(self, port: int) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                break
            except OSError:
                await asyncio.sleep(0.01)
        asked = deque[asyncio.Future[None]]()
        self._peers.append((writer, asked))
        while await reader.readexactly(_FRAME):
            answered = asked.popleft()
            if not answered.done():
                answered.set_result(None)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                message = await reader.readexactly(_FRAME)
                self._under_way += 1
                await self._carried_out(is_add=message[:1] == b"a")
                self._under_way -= 1
                writer.write(message)
        except asyncio.IncompleteReadError:
            writer.close()

    async def _carried_out(self, *, is_add: bool) -> None:
        durable = self._append(_FRAME)
        copies = []
        for writer, asked in self._peers if is_add else ():
            writer.write(b"p" * _FRAME)
            copies.append(asyncio.get_running_loop().create_future())
            asked.append(copies[-1])
        if copies:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        await durable

    def _append(self, size: int) -> asyncio.Future[None]:
        self._unwritten += size
        self._written += 1
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append((self._written, waiting))
        if self._syncing is None:
            self._syncing = asyncio.create_task(self._sync())
        return waiting

    async def _sync(self) -> None:
        while self._durable < self._written:
            number, size = self._written, self._unwritten
            self._unwritten = 0
            await asyncio.get_running_loop().run_in_executor(None, self._flush, size)
            self._durable = number
            while self._waiting and self._waiting[0][0] <= number:
                self._waiting.popleft()[1].set_result(None)
        self._syncing = None

    def _flush(self, size: int) -> None:
        os.write(self._file, bytes(size))
        os.fdatasync(self._file)

    def _work(self) -> None:
        """A turn of the loop with a crowd."""
        loop = asyncio.get_running_loop()
        if self._under_way and self._credit_s > 0:
            self._credit_s -= SLICE_S
            loop.call_later(SLICE_S, self._work)
            return
        compute()
        self._credit_s = min(self._credit_s + SLICE_S, _CREDIT_S_MAX)
        self._append(_BUSY_BYTES)
        loop.call_soon(self._work)


def compute() -> None:
    """Compute for a slice."""
    ends = perf_counter() + SLICE_S
    while perf_counter() < ends:
        pass


@contextmanager
def nodes(directory: Path, *, is_busy: bool) -> Iterator[int]:
    """Three bare nodes, and the crowd's process; the port of the first one."""
    ports = free_ports(3)
    module = [sys.executable, "-m", "benchmarks.twin"]
    with ExitStack() as stack:
        for nth, port in enumerate(ports):
            arguments = [
                "node",
                str(port),
                str(directory / str(nth)),
                str(int(is_busy)),
                *(str(each) for each in ports if each != port),
            ]
            started = stack.enter_context(
                subprocess.Popen([*module, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            )
            stack.callback(started.terminate)
            if nth == len(ports) - 1:  # The others wait for it.
                assert started.stdout is not None
                started.stdout.readline()
        if is_busy:
            crowd = stack.enter_context(subprocess.Popen([*module, "crowd"]))
            stack.callback(crowd.terminate)
        yield ports[0]


async def adds(port: int, seconds: float, pause_s: float) -> tuple[float, float]:
    """How long an add takes: p50 and p99, in milliseconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.sleep(0.5)
    took, ends = list[float](), perf_counter() + seconds
    while (began := perf_counter()) < ends:
        writer.write(b"a" * _FRAME)
        await reader.readexactly(_FRAME)
        took.append((perf_counter() - began) * 1000)
        await asyncio.sleep(pause_s)
    writer.close()
    took.sort()
    return quantile(took, 0.5), quantile(took, 0.99)


async def _crowd() -> None:
    while True:
        compute()
        await asyncio.sleep(_RESTS_S)


if __name__ == "__main__":
    if sys.argv[1] == "crowd":
        uvloop.run(_crowd())
    else:
        node = _Node(Path(sys.argv[3]), is_busy=bool(int(sys.argv[4])))
        uvloop.run(node.serve(int(sys.argv[2]), [int(each) for each in sys.argv[5:]]))
