"""A lease whose holder is a process that stands still: another takes over, and the first finds out at its next write."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import shoal
from tests.cli.conftest import PATIENCE_S, served
from tests.support import forked
from tests.support.forked import Forked

HOLDER = """
import asyncio, sys
import aiohttp

import shoal

async def main():
    async with shoal.connect(sys.argv[1]) as store:
        thread = store.space("s").thread("t")
        lease = await thread.lease(ttl=1.5, holder="first").acquire()
        print(lease.fence, flush=True)
        number = 0
        while True:
            number += 1
            try:
                await thread.journal.append({"fence": lease.fence, "number": number})
            except shoal.errors.LeaseLost as lost:
                print(type(lost).__name__, flush=True)
                return
            await asyncio.sleep(0.01)

asyncio.run(main())
"""


@pytest.mark.answers("leases-have-one-holder")
async def test_a_holder_that_was_stopped_finds_out_when_it_goes_on(tmp_path: Path) -> None:
    with (
        served(tmp_path / "state") as (_, url),
        Forked(["-c", HOLDER, url]) as holder,
    ):
        assert holder.stdout is not None
        try:
            first = int(await asyncio.to_thread(holder.stdout.readline))
            async with shoal.connect(url) as store:
                thread = store.space("s").thread("t")
                async with asyncio.timeout(PATIENCE_S):
                    await anext(thread.journal.read(follow=True))
                holder.send_signal(signal.SIGSTOP)
                async with thread.lease(ttl=30, wait=PATIENCE_S, holder="second") as lease:
                    assert lease.fence > first
                    await thread.journal.append({"fence": lease.fence})
                    holder.send_signal(signal.SIGCONT)
                    assert (await asyncio.to_thread(holder.stdout.readline)).strip() == "LeaseLost"
                    await thread.journal.append({"fence": lease.fence})
                fences = [event.event["fence"] async for event in thread.journal.read()]
                assert fences == sorted(fences)
        finally:
            holder.kill()


async def test_a_program_runs_while_the_lease_is_held(tmp_path: Path) -> None:
    with served(tmp_path / "state") as (_, url):
        where = ["--url", url, "--space", "s"]
        async with shoal.connect(url) as store:
            lease = await store.space("s").lease("nightly", ttl=30, holder="somebody").acquire()

            def run(*arguments: str) -> subprocess.CompletedProcess[str]:
                return forked.run(["-m", "shoal", "lease", *arguments], timeout=PATIENCE_S)

            held = await asyncio.to_thread(run, "run", "nightly", *where, "--", "true")
            assert held.returncode != 0
            assert "'somebody' holds lease 'nightly'" in held.stderr
            listed = await asyncio.to_thread(run, "list", *where)
            assert "somebody" in listed.stdout
            await lease.release()
            ran = await asyncio.to_thread(run, "run", "nightly", *where, "--", "sh", "-c", "echo ran; exit 7")
            assert (ran.stdout, ran.returncode) == ("ran\n", 7)


async def test_over_http_a_lease_is_acquired_named_by_writes_and_released(tmp_path: Path) -> None:
    with served(tmp_path / "state") as (_, url):
        async with aiohttp.ClientSession(f"{url}/v1/spaces/s/", headers={"Content-Type": "application/json"}) as http:

            async def ask(method: str, path: str, body: object = None, lease: str = "") -> tuple[int, Any]:
                headers = {"Shoal-Lease": lease} if lease else {}
                async with http.request(method, path, json=body, headers=headers) as response:
                    return response.status, await response.json()

            status, granted = await ask("POST", "leases/t", {"ttl": 30, "holder": "one", "thread": True})
            assert (status, granted["granted"], granted["fence"]) == (200, True, 1)
            lease = f"{granted['fence']}.{granted['token']}"
            state = {"state": {"n": 1}}
            assert (await ask("POST", "threads/t/checkpoints", state))[0] == 423
            assert (await ask("POST", "threads/t/checkpoints", state, "7.x"))[0] == 400
            assert (await ask("POST", "threads/t/checkpoints", state, lease))[0] == 201
            assert (await ask("GET", "leases/t?thread=true"))[1]["holder"] == "one"
            assert [found["lease"] for found in (await ask("GET", "leases"))[1]["items"]] == ["t"]
            term = {"fence": granted["fence"], "token": granted["token"], "thread": True}
            assert (await ask("PUT", "leases/t", term))[0] == 200
            assert (await ask("POST", "leases/t/release", term))[1] == {"released": True}
            status, problem = await ask("POST", "threads/t/checkpoints", state, lease)
            assert (status, problem["code"]) == (412, "lease-lost")
            assert (await ask("PUT", "leases/t", term))[0] == 412
