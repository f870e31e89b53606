"""SIGKILL of a process that ships, and of the server of its bucket, where that costs most: the next one goes on."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shoal
from shoal.backup import clouds
from shoal.backup.bucket import Bucket
from shoal.config import Config
from shoal.node.backup import restoring
from shoal.node.backup.restoring import verified
from simulation.bounds import altered

pytestmark = pytest.mark.real_time("it uses files and processes")

QUICK = {"ship_s": 0.02, "retry_s_max": 0.2, "merged_min": 3}
WRITES = 8
SHIPS = f"""
import asyncio, os, signal, sys
import shoal
from shoal.backup import clouds, keeping
from shoal.node.backup import backups, shipper

when, nth, url, directory = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
backups.SHIP_S, backups.RETRY_S_MAX, keeping.MERGED_MIN = {QUICK["ship_s"]}, {QUICK["retry_s_max"]}, {QUICK["merged_min"]}

def killing(call):
    async def called(*given):
        global nth
        nth -= 1
        is_here = nth == 0
        if is_here and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        made = await call(*given)
        if is_here:
            os.kill(os.getpid(), signal.SIGKILL)
        return made
    return called

for name in ("put_new", "replace", "delete"):
    setattr(clouds.CloudStore, name, killing(getattr(clouds.CloudStore, name)))

async def main():
    async with shoal.open(directory) as store:
        await store.backup.init(url)
        for nth in range({WRITES}):
            await store.space("crew").counter("n").add(1)
            print(nth + 1, flush=True)
            while (await store.backup.status()).state != "current":
                await asyncio.sleep(0.01)

asyncio.run(main())
"""


async def _goes_on(url: str, directory: Path, acknowledged: int, scratch: Path) -> None:
    """A store opened after a kill ships the rest; all of it is proved, and a restore has what was acknowledged."""
    with altered(**QUICK):
        async with shoal.open(directory) as store:
            await store.backup.init(url)
            await store.space("crew").counter("n").add(1)
            while (await store.backup.status()).state != "current":
                await asyncio.sleep(0.01)
            counted = await store.space("crew").counter("n").value()
    assert counted >= acknowledged + 1
    proved = await verified(Bucket(clouds.opened(url), now=time.monotonic), scratch / "proved", config=Config())
    assert proved.report is not None
    assert proved.report.sound
    await restoring.restore(url, scratch / "restored")
    async with shoal.open(scratch / "restored") as store:
        assert await store.space("crew").counter("n").value() == counted


def _last(told: bytes) -> int:
    return int(told.split()[-1]) if told.split() else 0


@pytest.mark.answers("backups-say-what-is-so")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4, 8, 11])
async def test_a_killed_shipment_is_gone_on_with(tmp_path: Path, when: str, nth: int) -> None:
    url = f"file://{tmp_path}/bucket"
    arguments = [sys.executable, "-c", SHIPS, when, str(nth), url, str(tmp_path / "state")]
    made = await asyncio.to_thread(subprocess.run, arguments, check=False, stdout=subprocess.PIPE)
    assert made.returncode == -signal.SIGKILL
    await _goes_on(url, tmp_path / "state", _last(made.stdout), tmp_path)


# ── the server of the bucket ──────────────────────────────────────────────────


class Server:
    """A process that serves a bucket from a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]

    async def begin(self, *kill: str) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, "-m", "tests.support.object_server", str(self.directory), str(self.port), *kill]
        process = subprocess.Popen(arguments)
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert process.poll() is None
                await asyncio.sleep(0.02)
            else:
                return process


@pytest.mark.answers("backups-say-what-is-so")
@pytest.mark.parametrize(("when", "nth"), [("before", 2), ("after", 2), ("before", 3), ("after", 3), ("after", 7)])
async def test_a_killed_server_of_the_bucket_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, nth: int
) -> None:
    server = Server(tmp_path / "objects")
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
        "AWS_ACCESS_KEY_ID": "one",
        "AWS_SECRET_ACCESS_KEY": "two",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(clouds, "RETRIES_MAX", 0)  # Each failure is seen, and is the node's to live with.
    url, process = "s3://shoal-bucket/prod", await server.begin(when, str(nth))
    written = failed = 0
    try:
        with altered(**QUICK):
            async with shoal.open(tmp_path / "state") as store:
                await store.backup.init(url)
                while process.poll() is None:
                    await store.space("crew").counter("n").add(1)
                    written += 1
                    await asyncio.sleep(0.03)
                await store.space("crew").counter("n").add(1)  # Nobody waits for a bucket.
                while (status := await store.backup.status()).state != "failing":
                    await asyncio.sleep(0.01)
                failed = len(status.trouble)
                process = await server.begin()
                while (await store.backup.status()).state != "current":
                    await asyncio.sleep(0.01)
        assert failed
        await _goes_on(url, tmp_path / "state", written + 1, tmp_path)
    finally:
        process.kill()
        process.wait()
