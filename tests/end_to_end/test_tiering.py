"""Idle threads of three real nodes go to one directory, and come back: over sessions, REST and the command line."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import aiohttp
import pytest

import shoal
from shoal.client.store import Store
from shoal.errors import Cold
from shoal.kinds.tiering import flows
from tests.cli.conftest import PATIENCE_S
from tests.end_to_end.test_members import nodes, three

STATES = [{"text": Random(nth).randbytes(100_000).hex()} for nth in range(3)]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "IDLE_MS_MIN", 1)


async def _moved(store: Store, packs: int) -> None:
    """The node that serves has so much in the bucket, within a while: what it does not know yet moves later."""
    async with asyncio.timeout(PATIENCE_S):
        while (await store.space("crew").tiering.run()).packs != packs:
            await asyncio.sleep(0.1)


@pytest.mark.answers("idle-chunks-are-let-go-too-early", note="three real processes and a directory")
async def test_three_nodes_move_and_read_and_bring_back(tmp_path: Path) -> None:
    bucket, away = tmp_path / "bucket", tmp_path / "elsewhere"
    with nodes(tmp_path) as fleet:
        await three(fleet)
        async with AsyncExitStack() as stack:
            stores = [await stack.enter_async_context(shoal.connect(url, wait=PATIENCE_S)) for url in fleet.urls([0, 1, 2])]
            thread = stores[0].space("crew").thread("t")
            ids = [(await thread.save(state, durability="all")).id for state in STATES]
            view = await stores[0].space("crew").tiering.set(f"file://{bucket}", idle=0.001, dry_run=True)
            assert (view.idle_threads, view.url) == (1, "")
            await stores[0].space("crew").tiering.set(f"file://{bucket}", idle=0.001, durability="all")
            for store in stores:
                await _moved(store, 1)
            assert len(list((bucket / "tiers").iterdir())) == 3

            bucket.rename(away)
            with pytest.raises(Cold):
                await stores[1].space("crew").thread("t").load(ids[0])
            async with (
                aiohttp.ClientSession(fleet.urls([1])[0]) as http,
                http.get(f"/v1/spaces/crew/threads/t/checkpoints/{ids[0]}") as answer,
            ):
                assert (answer.status, (await answer.json())["code"]) == (503, "cold")
            await stores[1].space("crew").thread("warm").save({"text": "here"}, durability="quorum")
            away.rename(bucket)

            fleet.kill(1)
            fleet.start(1, [0, 1, 2])
        async with AsyncExitStack() as stack:
            stores = [await stack.enter_async_context(shoal.connect(url, wait=PATIENCE_S)) for url in fleet.urls([0, 1, 2])]
            for store in stores:
                assert [(await store.space("crew").thread("t").load(id)).state for id in ids] == STATES
            await stores[2].space("crew").tiering.unset(durability="all")
            for store in stores:
                await _moved(store, 0)
            assert [file for file in bucket.rglob("*") if file.is_file()] == []
            for store in stores:
                assert [(await store.space("crew").thread("t").load(id)).state for id in ids] == STATES
