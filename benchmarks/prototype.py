"""The bare prototype that the design measured: a group commit over RocksDB in forty lines, and nothing else.

Four rows a save, a 700-byte state, one SHA-256; no operations, no vectors, no
recipes, no reads that wait, no bounds. It is the yardstick for what the rest
costs, on the machine and in the hour of the run.
"""

from __future__ import annotations

import asyncio
import tempfile
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from time import perf_counter

import msgspec
import uvloop
from rocksdict import Options, Rdict, WriteBatch


class Prototype:
    def __init__(self, directory: str) -> None:
        self._db = Rdict(directory, Options(raw_mode=True))
        self._pool = ThreadPoolExecutor(1)
        self._waiting: list[asyncio.Future[None]] = []
        self._syncing = False

    async def save(self, thread: bytes, step: int, state: dict[str, object]) -> None:
        packed = msgspec.msgpack.encode(state)
        digest = sha256(packed).digest()
        batch = WriteBatch(raw_mode=True)
        batch.put(b"c" + digest, packed)
        batch.put(b"l" + thread + step.to_bytes(8, "big"), digest)
        batch.put(b"h" + thread, digest)
        batch.put(b"v" + thread, step.to_bytes(8, "big"))
        self._db.write(batch)
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        if not self._syncing:
            self._syncing = True
            asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(self._sync()))
        await waiter

    async def _sync(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            await asyncio.get_running_loop().run_in_executor(self._pool, self._db.flush_wal, True)
            for waiter in waiting:
                waiter.set_result(None)
        self._syncing = False

    def close(self) -> None:
        self._pool.shutdown()
        self._db.close()


def saves_per_s(tasks: int, seconds: float) -> float:
    async def save(prototype: Prototype, task: int, end: float) -> int:
        step = 0
        while perf_counter() < end:
            step += 1
            await prototype.save(b"%08d" % task, step, {"step": step, "task": task, "body": f"{step} " + "x" * 670})
        return step

    async def measure(directory: str) -> float:
        prototype = Prototype(directory)
        began = perf_counter()
        saved = await asyncio.gather(*(save(prototype, task, began + seconds) for task in range(tasks)))
        elapsed = perf_counter() - began
        prototype.close()
        return sum(saved) / elapsed

    with tempfile.TemporaryDirectory() as directory:
        return uvloop.run(measure(directory + "/db"))
