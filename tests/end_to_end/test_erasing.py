"""Erasing at every door: what one deletes, none finds."""

from __future__ import annotations

import aiohttp

from shoal.client.store import Store
from tests.end_to_end.conftest import Cli, Rest

SAVE = {"state": {"n": 1}}


async def test_what_one_door_deletes_is_gone_at_the_others(url: str, store: Store, http: aiohttp.ClientSession) -> None:
    rest, cli = Rest(http, "erasing"), Cli(url, "erasing")
    await rest("POST", "/threads/t/checkpoints", SAVE)
    assert await rest("DELETE", "/threads/t") == {"existed": True}
    assert [name async for name in store.space("erasing").threads()] == []
    assert await cli("threads") == []
    assert await cli("delete", "t", "--yes") == [{"thread": "t", "existed": False}]
    await rest("POST", "/threads/t/checkpoints", SAVE)
    await rest("POST", "/threads/t/checkpoints", SAVE)
    assert (await rest("POST", "/threads/t/prune", {"keep_last": 1, "dry_run": True}))["count"] == 1
    assert (await cli("prune", "t", "--keep-last", "1"))[0]["count"] == 1
    assert await store.space("erasing").thread("t").delete()
    assert await rest("DELETE", "/threads/t") == {"existed": False}
