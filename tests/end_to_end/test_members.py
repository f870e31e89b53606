"""Clusters of real processes grow, shrink, and replace and forget killed nodes by commands, while clients write."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

import shoal
from chaos.ports import free_ports
from shoal.cli.main import app
from shoal.errors import NotAMember, ShoalError
from tests.cli.conftest import PATIENCE_S, served

FAST = {"SHOAL_QUORUM_REGISTER_FOUND_S": "0.2"}


class Nodes:
    """The processes, by the number of their directory."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(5)]
        self._directory = directory
        self._stack = stack
        self._begun: dict[int, ExitStack] = {}

    def start(self, number: int, join: list[int]) -> None:
        stack = self._begun[number] = self._stack.enter_context(ExitStack())
        addresses = ",".join(self.addresses[each] for each in join)
        stack.enter_context(
            served(self._directory / str(number), "--listen", self.addresses[number], "--join", addresses, config=FAST)
        )

    def kill(self, number: int) -> None:
        self._begun.pop(number).close()

    def urls(self, numbers: list[int]) -> list[str]:
        return [f"http://{self.addresses[number]}" for number in numbers]


@contextmanager
def nodes(directory: Path) -> Iterator[Nodes]:
    with ExitStack() as stack:
        yield Nodes(directory, stack)


async def command(*arguments: str) -> list[Any]:
    """What `shoal cluster …` prints as JSON."""
    ended = await asyncio.to_thread(CliRunner().invoke, app, ["cluster", *arguments, "--json"], catch_exceptions=False)
    assert ended.exit_code == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


class Acknowledged(set[int]):
    """Numbers that a quorum has acknowledged."""

    pause_s = 0.0  # The longest time between two of them.


@asynccontextmanager
async def writing(urls: list[str]) -> AsyncIterator[Acknowledged]:
    """Write numbers to these nodes with `quorum`, while the context is open."""
    acknowledged = Acknowledged()
    ended = asyncio.Event()

    async def write() -> None:
        async with shoal.connect(urls, durability="quorum") as store:
            number, last_s = 0, time.monotonic()
            while not ended.is_set():
                try:
                    await store.space("crew").set("seen").add(number)
                    acknowledged.add(number)
                    now_s = time.monotonic()
                    acknowledged.pause_s, last_s = max(acknowledged.pause_s, now_s - last_s), now_s
                except ShoalError:
                    pass  # It may have been made; only the acknowledged ones are promised.
                number += 1

    task = asyncio.create_task(write())
    try:
        yield acknowledged
    finally:
        ended.set()
        await task


async def more(acknowledged: set[int], count: int = 20) -> None:
    """Writes go on."""
    wanted = len(acknowledged) + count
    async with asyncio.timeout(PATIENCE_S):
        while len(acknowledged) < wanted:
            await asyncio.sleep(0.01)


async def founded(url: str) -> None:
    """The register works, so that a dead node can be forgotten: a change can be begun and taken back."""
    async with asyncio.timeout(PATIENCE_S), shoal.connect(url, wait=PATIENCE_S) as store:
        while True:
            try:
                await store.add_member("127.0.0.1:9")
                await store.cancel_change()
                return
            except ShoalError:
                await asyncio.sleep(0.1)


async def three(fleet: Nodes) -> str:
    """Found a cluster of the first three nodes. Returns the URL of one."""
    for number in range(3):
        fleet.start(number, [0, 1, 2])
    [url] = fleet.urls([0])
    await founded(url)
    return url


async def noticed(url: str, dead: str) -> None:
    """The node at this URL knows that the link to a dead one has ended."""
    async with asyncio.timeout(PATIENCE_S), shoal.connect(url) as store:
        while dead in [seat.name for seat in (await store.members()).members if seat.state == "linked"]:
            await asyncio.sleep(0.05)


async def test_a_cluster_grows_replaces_and_forgets_nodes_while_clients_write(tmp_path: Path) -> None:
    with nodes(tmp_path) as fleet:
        url = await three(fleet)
        async with writing(fleet.urls([0, 1])) as acknowledged:
            await more(acknowledged)
            fleet.start(3, [0])
            [view] = await command("add", fleet.addresses[3], "--url", url)
            assert [seat["name"] for seat in view["members"]] == sorted(fleet.addresses[:4])
            await more(acknowledged)
            fleet.start(4, [1])
            [view] = await command("replace", fleet.addresses[2], fleet.addresses[4], "--url", url)
            assert view["removed"][0]["handed_over"]
            await more(acknowledged)
            fleet.kill(3)
            await asyncio.to_thread(fleet.kill, 2)
            await noticed(url, fleet.addresses[3])
            [view] = await command("forget", fleet.addresses[3], "--url", url)
            assert [seat["name"] for seat in view["members"]] == sorted(fleet.addresses[number] for number in (0, 1, 4))
            await more(acknowledged)
        async with shoal.connect(fleet.urls([4]), durability="all") as store:
            await store.space("crew").set("seen").add(-1)
            held = {number async for number in store.space("crew").set("seen").members()}
            assert acknowledged <= held
        async with aiohttp.ClientSession() as http, http.get(f"{url}/v1/cluster/members") as answer:
            assert (await answer.json())["change"] == ""


@pytest.mark.answers("real-nodes-are-drained")
async def test_a_node_is_drained_and_killed_ones_are_replaced_and_forgotten_while_clients_write(tmp_path: Path) -> None:
    with nodes(tmp_path) as fleet:
        url = await three(fleet)
        async with writing(fleet.urls([0, 1])) as acknowledged:
            await more(acknowledged)
            fleet.start(3, [2])
            await command("add", fleet.addresses[3], "--url", url)
            await more(acknowledged)
            [view] = await command("drain", fleet.addresses[1], "--url", url)
            assert view["removed"][0]["handed_over"]
            await more(acknowledged)  # A client that was at the drained node writes elsewhere.
            await asyncio.to_thread(fleet.kill, 1)
            await asyncio.to_thread(fleet.kill, 2)
            await more(acknowledged)
            await noticed(url, fleet.addresses[2])
            fleet.start(4, [3])
            [view] = await command("replace", fleet.addresses[2], fleet.addresses[4], "--url", url)
            assert not view["removed"][0]["handed_over"]
            await more(acknowledged)
            await asyncio.to_thread(fleet.kill, 3)
            await noticed(url, fleet.addresses[3])
            [view] = await command("forget", fleet.addresses[3], "--url", url)
            assert [seat["name"] for seat in view["members"]] == sorted(fleet.addresses[number] for number in (0, 4))
            fleet.start(2, [0, 1, 2])
            async with shoal.connect(fleet.urls([2]), wait=PATIENCE_S) as store:
                await refused(store)
            await more(acknowledged)
        assert acknowledged.pause_s < PATIENCE_S
        for number in (0, 4):
            async with shoal.connect(fleet.urls([number]), durability="all") as store:
                await store.space("crew").set("seen").add(-1)
                assert acknowledged <= {number async for number in store.space("crew").set("seen").members()}


async def refused(store: shoal.Store) -> None:
    """A removed node that is started again comes to know it, and writes nothing more."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await store.space("crew").register("late").set(1)
            except NotAMember:
                return
            await asyncio.sleep(0.05)
