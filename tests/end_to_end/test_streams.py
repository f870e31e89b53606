"""Streams on three nodes, in processes of their own, of which some fail."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

from tests.end_to_end.streams import Nodes, created, killed_again_and_again


async def test_writers_that_are_killed_lose_double_and_reorder_nothing(tmp_path: Path) -> None:
    await killed_again_and_again(tmp_path, faults=2, seed=1)


async def test_any_node_reads_and_writes_what_others_acknowledged(tmp_path: Path) -> None:
    async with Nodes(tmp_path) as nodes, aiohttp.ClientSession() as http:
        await created(http, nodes)

        async def appended(number: int) -> str:
            sent = {"Content-Type": "application/json"}
            async with http.post(nodes.urls[number % 3], data=b"%d" % number, headers=sent) as answer:
                assert answer.status == 204, await answer.text()
                return answer.headers["Stream-Next-Offset"]

        offsets = ["-1"]
        for number in range(6):  # Each at another node than the one before.
            offsets.append(await appended(number))
            async with http.get(nodes.urls[(number + 1) % 3], params={"offset": offsets[-2]}) as answer:
                assert await answer.json() == [number]
                assert answer.headers["Stream-Next-Offset"] == offsets[-1]
        await asyncio.gather(*map(appended, range(6, 18)))
        seen = []
        for url in nodes.urls:
            async with http.get(url) as answer:
                seen.append(await answer.json())
        assert seen[0] == seen[1] == seen[2]
        assert (seen[0][:6], sorted(seen[0])) == (list(range(6)), list(range(18)))


async def test_without_a_quorum_nothing_is_read_or_written(tmp_path: Path) -> None:
    async with Nodes(tmp_path) as nodes, aiohttp.ClientSession() as http:
        await created(http, nodes)
        nodes.kill(1)
        nodes.kill(2)
        async with http.post(nodes.urls[0], data=b"1", headers={"Content-Type": "application/json"}) as answer:
            assert answer.status in (503, 504)
        async with http.get(nodes.urls[0]) as answer:
            told = await answer.json()
            assert (answer.status, told["code"], told["retryable"]) == (503, "no-quorum", True)
