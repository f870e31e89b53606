"""Three nodes, of which the writing one is killed, or stopped and then killed, again and again; producers repeat what was
not answered, and readers go on at another node.

Nothing may be lost, nothing may come twice, and all readers must see one order.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from chaos.ports import free_ports
from tests.cli.conftest import served

PAUSED_SHARE = 0.2  # Of the nodes that are killed: so many stand still before, until another has taken over.
TTL_S = 1.0
CONFIG = {"SHOAL_STREAM_TTL_S": str(TTL_S), "SHOAL_STREAM_POLL_S": "2"}
FAILED = (aiohttp.ClientError, TimeoutError, ConnectionError)
STREAM = "/v1/streams/crew/agents/answer"
NODES = 3


class Nodes:
    """Three nodes, each of which can be killed and started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._addresses = [f"127.0.0.1:{port}" for port in free_ports(NODES)]
        self._stacks = [ExitStack() for _ in range(NODES)]
        self._processes: list[subprocess.Popen[str]] = []
        self.urls = [f"http://{address}{STREAM}" for address in self._addresses]

    async def __aenter__(self) -> Nodes:
        for nth in range(NODES):
            self._processes.append(await asyncio.to_thread(self._start, nth))
        return self

    async def __aexit__(self, *_: object) -> None:
        for stack in self._stacks:
            stack.close()

    def _start(self, nth: int) -> subprocess.Popen[str]:
        directory, address = self._directory / str(nth), self._addresses[nth]
        node = served(directory, "--listen", address, "--join", ",".join(self._addresses), config=CONFIG)
        return self._stacks[nth].enter_context(node)[0]

    async def fail(self, nth: int, *, paused_s: float) -> None:
        """Stop a node for some time, if any, kill it while it goes on, and start it again."""
        process = self._processes[nth]
        if paused_s:
            os.kill(process.pid, signal.SIGSTOP)
            await asyncio.sleep(paused_s)
            os.kill(process.pid, signal.SIGCONT)
            await asyncio.sleep(0.05)
        process.kill()
        await asyncio.to_thread(self._stacks[nth].close)
        self._processes[nth] = await asyncio.to_thread(self._start, nth)

    def kill(self, nth: int) -> None:
        """Kill a node for good."""
        self._stacks[nth].close()


class Producer:
    """An idempotent producer. It changes the node whenever a request fails."""

    def __init__(self, http: aiohttp.ClientSession, nodes: Nodes, id: str) -> None:
        self._http = http
        self._nodes = nodes
        self.id = id
        self.node = 0
        self.acknowledged: list[str] = []  # The offset after each append.
        self.over = False

    async def run(self) -> None:
        while not self.over:
            self.acknowledged.append(await self._appended(len(self.acknowledged)))

    async def _appended(self, number: int) -> str:
        sent = {"Content-Type": "application/json", "Producer-Id": self.id, "Producer-Epoch": "0", "Producer-Seq": str(number)}
        body = msgspec.json.encode({"producer": self.id, "number": number})
        while True:
            with suppress(*FAILED):
                async with self._http.post(self._nodes.urls[self.node], data=body, headers=sent) as answer:
                    if answer.status in (200, 204):
                        return answer.headers["Stream-Next-Offset"]
                    assert answer.status in (429, 503, 504), (answer.status, await answer.text())
            self.node = (self.node + 1) % NODES
            await asyncio.sleep(0.02)


class Reader:
    """Reads from the beginning, by long-poll, and goes on at another node when its node fails."""

    def __init__(self, http: aiohttp.ClientSession, nodes: Nodes, node: int) -> None:
        self._http = http
        self._nodes = nodes
        self._node = node
        self.offset = "-1"
        self.seen: list[Any] = []

    async def run(self) -> None:
        while True:
            with suppress(*FAILED):
                await self._read()
                continue
            self._node = (self._node + 1) % NODES
            await asyncio.sleep(0.02)

    async def _read(self) -> None:
        query = {"offset": self.offset, "live": "long-poll"}
        async with self._http.get(self._nodes.urls[self._node], params=query) as answer:
            if answer.status in (429, 503, 504):
                raise ConnectionError
            assert answer.status in (200, 204), (answer.status, await answer.text())
            if answer.status == 200:
                self.seen += await answer.json()
            self.offset = answer.headers["Stream-Next-Offset"]


@asynccontextmanager
async def working(*tasks: asyncio.Task[None]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def killed_again_and_again(directory: Path, *, faults: int, seed: int) -> None:
    """Let producers and readers work while the node that writes fails `faults` times, and compare what they saw."""
    chance = random.Random(seed)
    timeout = aiohttp.ClientTimeout(total=20)
    async with Nodes(directory) as nodes, aiohttp.ClientSession(timeout=timeout) as http:
        await created(http, nodes)
        producers = [Producer(http, nodes, id) for id in ("one", "two")]
        readers = [Reader(http, nodes, node) for node in range(NODES)]
        writing = [asyncio.create_task(producer.run()) for producer in producers]
        async with working(*writing, *[asyncio.create_task(reader.run()) for reader in readers]):
            for _ in range(faults):
                before, more = len(producers[0].acknowledged), chance.randrange(1, 8)
                while len(producers[0].acknowledged) < before + more:
                    assert not any(task.done() for task in writing)
                    await asyncio.sleep(0.001)
                await nodes.fail(producers[0].node, paused_s=2 * TTL_S if chance.random() < PAUSED_SHARE else 0.0)
            for producer in producers:
                producer.over = True
            await asyncio.gather(*writing)
            wanted = sum(len(producer.acknowledged) for producer in producers)
            async with asyncio.timeout(60):
                while not all(len(reader.seen) >= wanted for reader in readers):
                    await asyncio.sleep(0.01)
            await all_agree(http, nodes, producers, readers)


async def created(http: aiohttp.ClientSession, nodes: Nodes) -> None:
    while True:
        async with http.put(nodes.urls[0], headers={"Content-Type": "application/json"}) as answer:
            if answer.status in (200, 201):
                return
        await asyncio.sleep(0.05)


async def all_agree(http: aiohttp.ClientSession, nodes: Nodes, producers: list[Producer], readers: list[Reader]) -> None:
    async with http.get(nodes.urls[0]) as answer:
        stored = await answer.json()
        assert answer.headers["Stream-Up-To-Date"] == "true"
    assert [reader.seen for reader in readers] == [stored] * NODES
    for producer in producers:
        mine = [each["number"] for each in stored if each["producer"] == producer.id]
        assert mine == list(range(len(producer.acknowledged)))
        assert producer.acknowledged == sorted(set(producer.acknowledged))
