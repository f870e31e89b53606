"""Workers that are real processes claim items of a worklist, and are killed: each item is completed once."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
from typer.testing import CliRunner, Result

import shoal
from shoal.cli.main import app
from tests.cli.conftest import PATIENCE_S, served
from tests.end_to_end.test_members import nodes
from tests.support import forked
from tests.support.forked import Forked

WORKER = """
import asyncio, sys

import shoal

async def main():
    async with shoal.connect(sys.argv[1].split(",")) as store:
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


class Crew:
    """Processes of workers, and all that they said."""

    def __init__(self, urls: list[str]) -> None:
        self.said: list[list[str]] = []
        self._urls = urls
        self._workers: list[subprocess.Popen[str]] = []
        self._listening: list[asyncio.Task[None]] = []

    def start(self) -> None:
        name = f"worker-{len(self._workers)}"
        worker = Forked(["-c", WORKER, ",".join(self._urls), name])
        self._workers.append(worker)
        self._listening.append(asyncio.create_task(self._listen(worker)))

    async def _listen(self, worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        while line := await asyncio.to_thread(worker.stdout.readline):
            self.said.append(line.split())

    def kill(self, number: int) -> None:
        self._workers[number].send_signal(signal.SIGKILL)

    async def heard(self, count: int) -> None:
        while len(self.said) < count:
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        for worker in self._workers:
            worker.kill()
        await asyncio.gather(*self._listening)
        for worker in self._workers:
            worker.wait()
            for pipe in (worker.stdout, worker.stderr):
                assert pipe is not None
                pipe.close()

    async def check(self, work: shoal.Worklist, count: int) -> None:
        """All items are completed, each once, with the result of the worker that was told so."""
        while not (await work.progress()).is_complete:
            await asyncio.sleep(0.05)
        done = {item.key: item.done async for item in work.finished()}
        assert len(done) == count
        assert all(len(finishes) == 1 for finishes in done.values())
        await self.end()
        completed = [(item, int(fence)) for what, item, fence, _ in self.said if what == "completed"]
        assert len(completed) == len({item for item, _ in completed})
        assert all(done[item][0].result == fence for item, fence in completed)


async def test_items_of_killed_workers_are_completed_once_by_others(tmp_path: Path) -> None:
    with served(tmp_path / "state") as (_, url):
        crew = Crew([url])
        try:
            for _ in range(3):
                crew.start()
            async with shoal.connect(url) as store, asyncio.timeout(4 * PATIENCE_S):
                work = store.space("s").worklist("pages")
                for nth in range(4):
                    heard = len(crew.said)
                    await work.add([f"page-{nth}-{number}" for number in range(8)])
                    await crew.heard(heard + 1)
                    crew.kill(nth)
                    crew.start()
                await crew.check(work, 32)
        finally:
            await crew.end()


async def test_workers_and_a_node_of_a_cluster_are_killed_and_each_item_is_completed_once(tmp_path: Path) -> None:
    with nodes(tmp_path) as processes:
        for number in range(3):
            processes.start(number, [0, 1, 2])
        urls = processes.urls([0, 1, 2])
        crew = Crew(urls)
        try:
            for _ in range(4):
                crew.start()
            async with shoal.connect(urls) as store, asyncio.timeout(4 * PATIENCE_S):
                work = store.space("s").worklist("pages")
                await work.add([f"page-{number}" for number in range(40)], durability="quorum", attempts_max=50)
                await crew.heard(6)
                crew.kill(0)
                processes.kill(0)
                crew.kill(1)
                crew.start()
                await crew.check(work, 40)
        finally:
            await crew.end()


async def test_over_http_and_on_the_command_line_an_item_is_claimed_and_completed_once(tmp_path: Path) -> None:
    with served(tmp_path / "state") as (_, url):

        async def run(*arguments: str) -> Result:
            return await asyncio.to_thread(CliRunner().invoke, app, ["worklist", *arguments, "--url", url, "--space", "s"])

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
            assert (await run("claim", "t", "w")).exit_code == 1
            command = ["-m", "shoal", "worklist", "claim", "t", "w", "--data", str(tmp_path / "state")]
            alone = await asyncio.to_thread(forked.run, command, timeout=PATIENCE_S)
            assert alone.returncode != 0
            assert "would end with this command. Nothing was claimed" in alone.stderr
            wrong = await run("complete", "t", "w", "b", "--ticket", "7")
            assert "a ticket is what claim printed" in wrong.stderr
            failed = await run("fail", "t", "w", "b", "--ticket", claimed["ticket"], "--reason", "no answer")
            assert json.loads(failed.stdout) == {"dead": True, "attempt": 1}
            assert "no answer" in (await run("list", "t", "w", "--dead")).stdout
            assert [entry["key"] for entry in (await ask("GET", "worklists/w?dead=true"))[1]["entries"]] == ["b"]
            assert (await run("revive", "t", "w", "b")).exit_code == 0
            again = json.loads((await run("claim", "t", "w", "--json")).stdout)
            done = await run("complete", "t", "w", "b", "--ticket", again["ticket"], "--result", "5")
            assert done.stdout.strip() == (await ask("GET", "worklists/w/items/b"))[1]["id"]
