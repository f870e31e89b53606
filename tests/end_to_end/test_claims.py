"""Workers that are real processes claim items of a worklist, and are killed: each item is completed once."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

import shoal
from tests.cli.conftest import PATIENCE_S, served

WORKER = """
import asyncio, sys

import shoal

async def main():
    async with shoal.connect(sys.argv[1]) as store:
        work = store.space("s").worklist("pages")
        while True:
            job = await work.claim(ttl=1.5, wait=60, holder=sys.argv[2])
            if job is None:
                continue
            async with job:
                print("claimed", job.item, job.fence, job.attempt, flush=True)
                await asyncio.sleep(0.05)
                await job.complete(job.fence)
                print("completed", job.item, job.fence, job.attempt, flush=True)

asyncio.run(main())
"""


async def test_items_of_killed_workers_are_completed_once_by_others(tmp_path: Path) -> None:
    count, kills = 30, 4
    workers: list[subprocess.Popen[str]] = []
    said: list[list[str]] = []

    with served(tmp_path / "state") as (_, url):

        def start() -> asyncio.Task[None]:
            worker = subprocess.Popen(
                [sys.executable, "-c", WORKER, url, f"worker-{len(workers)}"], stdout=subprocess.PIPE, text=True
            )
            workers.append(worker)
            return asyncio.create_task(listen(worker))

        async def listen(worker: subprocess.Popen[str]) -> None:
            assert worker.stdout is not None
            while line := await asyncio.to_thread(worker.stdout.readline):
                said.append(line.split())

        listening = [start() for _ in range(3)]
        try:
            async with shoal.connect(url) as store, asyncio.timeout(4 * PATIENCE_S):
                work = store.space("s").worklist("pages")
                for nth in range(kills):
                    before = len(said)
                    await work.add([f"page-{nth}-{number}" for number in range(count // kills)])
                    while len(said) == before:
                        await asyncio.sleep(0.01)
                    workers[nth].send_signal(signal.SIGKILL)
                    listening.append(start())
                while not (await work.progress()).is_complete:
                    await asyncio.sleep(0.05)
                done = [item async for item in work.finished()]
                assert len(done) == kills * (count // kills)
                assert all(len(item.done) == 1 for item in done)
        finally:
            for worker in workers:
                worker.kill()
            await asyncio.gather(*listening)
            for worker in workers:
                worker.wait()
                assert worker.stdout is not None
                worker.stdout.close()
        completed = Counter(item for what, item, *_ in said if what == "completed")
        assert max(completed.values()) == 1
        results = {item.key: item.done[0].result for item in done}
        assert all(results[item] == int(fence) for what, item, fence, _ in said if what == "completed")


async def test_over_http_and_on_the_command_line_an_item_is_claimed_and_completed_once(tmp_path: Path) -> None:
    with served(tmp_path / "state") as (_, url):

        def shoal_run(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "shoal.cli", "worklist", *arguments, "--url", url, "--space", "s"]
            return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

        async def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            return await asyncio.to_thread(shoal_run, *arguments)

        async with aiohttp.ClientSession(f"{url}/v1/spaces/s/threads/t/", headers={"Content-Type": "application/json"}) as http:

            async def ask(method: str, path: str, body: object = None) -> tuple[int, Any]:
                async with http.request(method, path, json=body) as response:
                    return response.status, await response.json()

            await run("add", "t", "w", "a", "b", "--attempts", "1")
            status, got = await ask("POST", "worklists/w/claim", {"ttl": 60, "holder": "one"})
            assert (status, got["claimed"], got["key"], got["attempt"]) == (200, True, "a", 1)
            claim, term = f"worklists/w/claims/{got['id']}", {"fence": got["fence"], "token": got["token"]}
            assert await ask("PUT", claim, term) == (200, {"ttl": 60})
            assert (await ask("POST", f"{claim}/complete", {**term, "fence": 99, "result": 1}))[1]["code"] == "lease-lost"
            assert (await ask("POST", f"{claim}/complete", {**term, "result": {"n": 1}}))[0] == 200
            status, problem = await ask("POST", f"{claim}/complete", {**term, "result": 2})
            assert (status, problem["code"]) == (409, "taken")
            assert (await ask("GET", "worklists/w/items/a"))[1]["finishes"][0]["result"] == {"n": 1}

            claimed = json.loads((await run("claim", "t", "w", "--json")).stdout)
            assert (claimed["key"], claimed["attempt"]) == ("b", 1)
            assert (await run("claim", "t", "w")).returncode == 1
            wrong = await run("complete", "t", "w", "b", "--ticket", "7")
            assert "a ticket is what claim printed" in wrong.stderr
            failed = await run("fail", "t", "w", "b", "--ticket", claimed["ticket"], "--reason", "no answer")
            assert failed.stdout == "a dead letter now\n"
            assert "no answer" in (await run("dead", "t", "w")).stdout
            assert [entry["key"] for entry in (await ask("GET", "worklists/w?dead=true"))[1]["entries"]] == ["b"]
            assert (await run("dead", "t", "w", "--revive", "b")).stdout == "put back\n"
            again = json.loads((await run("claim", "t", "w", "--json")).stdout)
            done = await run("complete", "t", "w", "b", "--ticket", again["ticket"], "--result", "5")
            assert done.stdout == "completed\n"
