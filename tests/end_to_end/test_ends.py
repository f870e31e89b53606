"""How a node ends, and what its clients and the next life find: told to stop, killed, out of disk."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import aiohttp
import pytest

import shoal
from shoal.client.store import Space, Store
from shoal.config import Config
from shoal.errors import OutcomeUnknown, ReadOnly, ShoalError, StorageFull
from shoal.node.environment import system_environment
from shoal.node.node import open_node
from tests.cli.conftest import PATIENCE_S, clean_environment, served

WRITERS = 8


class Writers:
    """They add and save as fast as they can. `acknowledged` counts the adds that were answered."""

    def __init__(self, space: Space, *, each: int | None) -> None:
        self.space = space
        self.acknowledged = 0
        self.saved: set[str] = set()
        self._each = each
        self._progress = asyncio.Condition()
        self.tasks = [asyncio.create_task(self._write(nth)) for nth in range(WRITERS)]

    async def _write(self, nth: int) -> None:
        written, thread = 0, self.space.thread(f"t{nth}")
        while written != self._each:
            await self.space.counter("n").add(1)
            self.saved.add((await thread.save({"n": written})).id)
            written += 1
            async with self._progress:
                self.acknowledged += 1
                self._progress.notify_all()

    async def reached(self, count: int) -> None:
        async with self._progress:
            await asyncio.wait_for(self._progress.wait_for(lambda: self.acknowledged >= count), PATIENCE_S)

    async def found(self, space: Space) -> set[str]:
        names = [f"t{nth}" for nth in range(WRITERS)]
        return {checkpoint.id for name in names async for checkpoint in space.thread(name).history()}


async def test_a_stop_in_the_middle_of_requests_loses_nothing_and_is_clean(tmp_path: Path) -> None:
    with served(tmp_path / "state") as (process, url):
        async with shoal.connect(url) as store:
            writers = Writers(store.space("s"), each=None)
            await writers.reached(100)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
            for task in writers.tasks:
                task.cancel()
            await asyncio.gather(*writers.tasks, return_exceptions=True)
    node = await open_node(tmp_path / "state", config=Config(), environment=system_environment())
    assert not node.resumed_after_crash
    await node.stop()
    async with shoal.open(tmp_path / "state") as store:
        space = store.space("s")
        # Of each writer one add may have been applied whose answer it did not wait for.
        assert writers.acknowledged <= await space.counter("n").value() <= writers.acknowledged + WRITERS
        assert writers.saved <= await writers.found(space)


@pytest.mark.answers("stopping-node-waits-for-waiting-clients")
async def test_a_stop_waits_for_nobody_that_waits_for_a_lease_or_an_item(tmp_path: Path) -> None:
    settings = ("--set", "lease_poll_s=3600", "--set", "stop_timeout_s=3600")
    with served(tmp_path / "state", *settings) as (process, url):
        patient = Config(lease_poll_s=3600)
        async with shoal.connect(url, config=patient) as one, shoal.connect(url, config=patient) as two:
            thread = two.space("s").thread("t")
            async with one.space("s").thread("t").lease(ttl=600):
                waits = [
                    asyncio.create_task(thread.lease(ttl=600, wait=600).acquire()),
                    asyncio.create_task(two.space("s").worklist("pages").claim(ttl=60, wait=600)),
                ]
                async with asyncio.timeout(PATIENCE_S):
                    while not (await thread.lease().state()).waiting:
                        await asyncio.sleep(0.01)
                process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
                for wait in waits:
                    wait.cancel()
                await asyncio.gather(*waits, return_exceptions=True)
                # Else both look for a node for 30 s, to give up the lease and the place behind it.
                for store in (one, two):
                    await store.connection.session.close()


@pytest.mark.answers("nothing-is-invented", "retry-makes-a-second-checkpoint")
async def test_clients_live_through_a_kill_and_nothing_is_lost_or_applied_twice(tmp_path: Path) -> None:
    each = 60
    with served(tmp_path / "state") as (process, url):
        store_of = shoal.connect(url)
        store = await store_of.__aenter__()
        space = store.space("s")
        mirror = await space.document("d")
        writers = Writers(space, each=each)
        mirror.map("m")["before"] = 1
        await mirror.flush()
        await writers.reached(WRITERS * each // 4)
        mirror.text("t").insert(0, "under way")
        process.kill()
        await asyncio.to_thread(process.wait)
        mirror.map("m")["while it was down"] = 2
    with served(tmp_path / "state", "--listen", url.removeprefix("http://")) as (process, again):
        assert again == url
        await asyncio.wait_for(asyncio.gather(*writers.tasks), PATIENCE_S)
        # Every add was answered in the end, so that there is exactly one of each.
        assert writers.acknowledged == await space.counter("n").value() == WRITERS * each
        assert await writers.found(space) == writers.saved
        assert len(writers.saved) == WRITERS * each
        await asyncio.wait_for(mirror.flush(), PATIENCE_S)
        async with shoal.connect(url) as other, await other.space("s").document("d") as seen:
            assert seen.to_py() == mirror.to_py() == {"m": {"before": 1, "while it was down": 2}, "t": "under way"}
            # It follows again: what others write arrives.
            changes = mirror.changes()
            seen.map("m")["from another"] = 3
            await seen.flush()
            async with asyncio.timeout(PATIENCE_S):
                while mirror.to_py() != seen.to_py():
                    await anext(changes)
        await mirror.close()
        await store_of.__aexit__(None, None, None)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0


# A limit on the size of files makes writes fail as a full disk does, and needs no rights.
LIMITED = """
import resource, signal, sys
from shoal.cli.main import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
sys.argv = ["shoal", *sys.argv[1:]]
main()
"""


@pytest.mark.answers("error-while-writing-ends-a-room", "no-space-left")
async def test_a_node_whose_disk_is_full_reads_on_and_says_why_it_does_not_write(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, "serve", "--data", str(tmp_path / "state"), "--listen", "127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(*command, env=clean_environment(), stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    try:
        url = (await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)).decode().strip()
        async with shoal.connect(url) as store, aiohttp.ClientSession(url) as http:
            thread = store.space("s").thread("t")
            saved: list[str] = []
            with pytest.raises(StorageFull) as full:
                for n in range(100):
                    checkpoint = await thread.save({"n": n, "bytes": bytes([n]) * 100_000})
                    saved.append(checkpoint.id)
            assert full.value.written == "unknown"
            assert saved
            with pytest.raises(ReadOnly) as refused:
                await store.space("s").counter("n").add(1)
            assert refused.value.written == "no"
            assert (await store.space("s").thread("t").load(saved[-1])).state["n"] == len(saved) - 1
            assert (await store.status()).state == "read-only"
            async with http.get("/readyz") as answer:
                assert (answer.status, (await answer.json(content_type=None))["code"]) == (503, "read-only")
            async with http.get("/healthz") as answer:
                assert answer.status == 200
            async with http.get("/v1/spaces/s/threads/t/branches") as answer:
                assert answer.status == 200
            body = {"event": 1}
            async with http.post("/v1/spaces/s/threads/t/events", json=body) as answer:
                assert (answer.status, (await answer.json(content_type=None))["code"]) == (503, "read-only")
        process.send_signal(signal.SIGTERM)
        _, errors = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert b"Traceback" not in errors, errors.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    async with shoal.open(tmp_path / "state") as store:
        found = [checkpoint.id async for checkpoint in store.space("s").thread("t").history()]
        assert set(saved) <= set(found)
        await store.space("s").counter("n").add(1)


async def linked(hasty: Store) -> None:
    """Return once a node has answered it, however slow this machine is."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await hasty.status()
            except ShoalError:
                continue
            return


@pytest.mark.answers("unknown-outcomes-are-told")
async def test_a_write_that_no_node_answers_ends_as_unknown_with_the_key_to_send_it_again(tmp_path: Path) -> None:
    with served(tmp_path / "state") as (process, url):
        async with shoal.connect(url) as store, shoal.connect(url, config=Config(request_timeout_s=1.0)) as hasty:
            assert await store.space("s").counter("n").add(1) == 1
            await linked(hasty)
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(OutcomeUnknown) as unknown:
                await hasty.space("s").counter("n").add(1, key="mine")
            assert unknown.value.written == "unknown"
            process.send_signal(signal.SIGCONT)
            assert await store.space("s").counter("n").add(1, key="mine") == 2
