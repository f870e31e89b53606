"""Files that stay in an object store which speaks S3 (moto's server), on two real nodes of one cluster."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

import shoal
from chaos.ports import free_ports
from shoal.client.store import Store
from shoal.errors import Cold
from tests.cli.conftest import PATIENCE_S
from tests.end_to_end.test_members import founded, nodes

pytestmark = pytest.mark.real_time("it uses processes, files and sockets")

SIZE = 12_000_000
URL = "s3://shoal-bucket/cold"
LEFT = 64 * 1024  # Bytes of a thread's files that may stay on a disk.


class Cloud:
    """moto's server, which keeps what it has while it is stopped."""

    def __init__(self) -> None:
        [self.port] = free_ports(1)
        self._server: Any = None

    def start(self) -> None:
        self._server = pytest.importorskip("moto.server").ThreadedMotoServer(port=self.port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def bytes(self) -> int:
        """Of the objects that are there."""
        from moto.s3.models import s3_backends

        [(_, backend)] = [(account, regions["aws"]) for account, regions in s3_backends.items()]
        return sum(key.size for key in backend.buckets["shoal-bucket"].keys.values())


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    made = Cloud()
    made.start()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{made.port}",
        "AWS_ACCESS_KEY_ID": "one",
        "AWS_SECRET_ACCESS_KEY": "two",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{made.port}/shoal-bucket", method="PUT")).close()
    yield made
    made.stop()


async def away(store: Store, size: int) -> None:
    """The node that serves has so many bytes in the bucket, within a while."""
    async with asyncio.timeout(PATIENCE_S):
        while not size - LEFT <= (await store.space("crew").tiering.run()).away_bytes <= size + LEFT:
            await asyncio.sleep(0.1)


async def read(store: Store, name: str) -> bytes:
    async with store.space("crew").thread("t").open_file(name) as stream:
        return await stream.read()


def on_disk(data: Path) -> int:
    return sum(file.stat().st_size for file in data.rglob("*.blob"))


@pytest.mark.answers("idle-chunks-are-let-go-too-early", note="files that stay, two real processes, and moto's server")
async def test_a_file_is_put_on_one_node_and_read_on_the_other(tmp_path: Path, cloud: Cloud) -> None:
    first = Random(1).randbytes(SIZE)
    second = first[:5_000_000] + b"changed" + first[5_000_000:]
    with nodes(tmp_path) as fleet:
        for number in range(2):
            fleet.start(number, [0, 1])
        urls = fleet.urls([0, 1])
        await founded(urls[0])
        async with AsyncExitStack() as stack:
            one, other = [await stack.enter_async_context(shoal.connect(url, wait=PATIENCE_S)) for url in urls]
            await one.space("crew").tiering.set(URL, files=True, durability="all")
            await one.space("crew").thread("t").put_file("page", first, durability="all")
            for store in (one, other):
                await away(store, SIZE)
            assert cloud.bytes() > 2 * (SIZE - LEFT), "each node puts its own copy"
            assert await read(other, "page") == first
            await other.space("crew").thread("t").put_file("page", second, durability="all")
            assert await read(one, "page") == second
            for number in (0, 1):
                await asyncio.to_thread(fleet.kill, number)
            cloud.stop()
            for number in (0, 1):
                fleet.start(number, [0, 1])
        async with AsyncExitStack() as stack:  # The bucket is away, and nothing of it is in memory.
            one, other = [await stack.enter_async_context(shoal.connect(url, wait=PATIENCE_S)) for url in urls]
            with pytest.raises(Cold):
                await read(other, "page")
            async with aiohttp.ClientSession(urls[0]) as http, http.get("/v1/spaces/crew/threads/t/files/page") as answer:
                with pytest.raises(aiohttp.ClientError):
                    assert answer.status == 200
                    await answer.read()
            await one.space("crew").thread("t").put_file("new", first[: SIZE // 2], durability="all")
            assert await read(other, "new") == first[: SIZE // 2]
            cloud.start()
            for store in (one, other):
                assert await read(store, "page") == second
            ranged = {"Range": "bytes=4999990-5000019"}
            async with (
                aiohttp.ClientSession(urls[1]) as http,
                http.get("/v1/spaces/crew/threads/t/files/page", headers=ranged) as answer,
            ):
                assert (answer.status, await answer.read()) == (206, second[4_999_990:5_000_020])
            await one.space("crew").tiering.unset(durability="all")
            for store in (one, other):
                await away(store, 0)
                assert await read(store, "page") == second
            assert cloud.bytes() == 0
