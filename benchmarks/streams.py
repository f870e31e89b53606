"""What an append to a stream costs, at servers of the Durable Streams protocol beside each other.

    python -m benchmarks.streams shoal=http://127.0.0.1:7400/v1/streams/s reference=http://127.0.0.1:4437/v1/stream

The servers take turns, so that all have the same machine. Printed are medians: of the time of one append of 100 bytes when
nobody else writes, and of the appends in a second of 32 clients that each wait for their answers.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from statistics import median

import aiohttp

ROUNDS = 7
APPENDS = 60
CLIENTS = 32
BODY = b'{"token": "%s"}' % (b"x" * 86)
JSON = {"Content-Type": "application/json"}


async def main(servers: Sequence[str]) -> None:
    """Measure the servers, each given as NAME=URL."""
    urls = dict(each.split("=", 1) for each in servers)
    alone: dict[str, list[float]] = {name: [] for name in urls}
    together: dict[str, list[float]] = {name: [] for name in urls}
    async with aiohttp.ClientSession() as http:
        for turn in range(ROUNDS):
            for name, url in urls.items():
                stream = f"{url}/cost-{time.time_ns()}-{turn}"
                async with http.put(stream, headers=JSON) as answer:
                    assert answer.status == 201, await answer.text()
                await append(http, stream)
                alone[name] += [await append(http, stream) for _ in range(APPENDS)]
                began = time.perf_counter()
                await asyncio.gather(*(repeated(http, stream) for _ in range(CLIENTS)))
                together[name].append(CLIENTS * APPENDS / (time.perf_counter() - began))
    for name in urls:
        one, many = 1000 * median(alone[name]), median(together[name])
        print(f"{name}: {one:.2f} ms an append, {many:,.0f} a second of {CLIENTS} clients")


async def repeated(http: aiohttp.ClientSession, stream: str) -> None:
    for _ in range(APPENDS):
        await append(http, stream)


async def append(http: aiohttp.ClientSession, stream: str) -> float:
    """Append once; the seconds that it took."""
    began = time.perf_counter()
    async with http.post(stream, data=BODY, headers=JSON) as answer:
        assert answer.status in (200, 204), await answer.text()
    return time.perf_counter() - began


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
