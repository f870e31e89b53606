"""A journal that is trimmed, at every door, and on a real disk."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from random import Random

import aiohttp
import pytest

import shoal
from shoal.client.store import Store
from simulation.bounds import altered
from tests.end_to_end.conftest import Cli, Rest
from tests.end_to_end.test_freed import shrunk

EVENTS = "/threads/t/events"


@pytest.fixture(autouse=True)
def bounds() -> Iterator[None]:
    with altered(reclaim_interval_s=0.01):
        yield


async def test_every_door_trims_and_says_what_is_kept(http: aiohttp.ClientSession, store: Store, url: str) -> None:
    rest, cli = Rest(http, "trimmed"), Cli(url, "trimmed")
    for number in range(10):
        await rest("POST", EVENTS, {"event": number})
    first = (await rest("GET", f"{EVENTS}?limit=1"))["cursor"]
    (planned,) = await cli("trim", "t", "--keep-last", "6", "--dry-run")
    assert planned == {"events": 4, "bytes": planned["bytes"], "dry_run": True}
    assert (await rest("POST", f"{EVENTS}:trim", {"keep": 8}))["events"] == 2
    (trimmed,) = await cli("trim", "t", "--keep-last", "6", "--yes")
    assert trimmed == {"events": 2, "bytes": planned["bytes"] // 2, "dry_run": False}
    assert (await cli("trim", "t", "--keep-last", "1", "--older-than", "30d", "--yes"))[0]["events"] == 0
    gone = await rest("GET", f"{EVENTS}?after={first}", status=410)
    assert gone["code"] == "journal-trimmed"
    found = (await rest("GET", f"{EVENTS}?after={first}&skip_trimmed=true"))["events"]
    assert [event["event"] for event in found] == [4, 5, 6, 7, 8, 9]
    assert (await rest("PUT", "/threads/t/retention", {"older_than_s": 3600, "events": 8}))["older_than_s"] == 3600
    (kept,) = await cli("retained", "t")
    assert (kept["older_than_s"], kept["events"], kept["bytes"]) == (3600, 8, None)
    assert (await store.space("trimmed").thread("t").journal.retention()).older_than == timedelta(hours=1)
    await cli("retain", "t")
    assert (await rest("GET", "/threads/t/retention"))["events"] is None


async def test_trimming_a_journal_frees_its_disk(tmp_path: Path) -> None:
    random = Random(1)
    async with shoal.open(tmp_path / "state") as store:
        journal = store.space("crew").thread("agent").journal
        for _ in range(500):
            await journal.append(random.randbytes(20_000), durability="memory")
        before = (await store.status()).bytes_on_disk
        assert before > 500 * 20_000
        assert (await journal.trim(keep=10)).events == 490
        await shrunk(store, before // 4)
        assert len([event async for event in journal.read()]) == 10
