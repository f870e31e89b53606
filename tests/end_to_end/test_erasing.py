"""Erasing at every door: what one deletes, none finds."""

from __future__ import annotations

import aiohttp

from shoal.client.store import Store
from tests.end_to_end.conftest import Cli, Rest

SAVE = {"state": {"n": 1}}


async def test_deletion_at_one_door_shows_at_all(url: str, store: Store, http: aiohttp.ClientSession) -> None:
    rest, cli = Rest(http, "erasing"), Cli(url, "erasing")
    await rest("POST", "/threads/t/checkpoints", SAVE)
    assert await rest("DELETE", "/threads/t") == {"existed": True}
    assert [name async for name in store.space("erasing").threads()] == []
    assert await cli("threads") == []
    assert await cli("delete", "t", "--yes") == [{"existed": False}]
    await rest("POST", "/threads/t/checkpoints", SAVE)
    await rest("POST", "/threads/t/checkpoints", SAVE)
    assert (await rest("POST", "/threads/t/prune", {"keep_last": 1, "dry_run": True}))["count"] == 1
    assert (await cli("prune", "t", "--keep-last", "1", "--yes"))[0]["count"] == 1
    assert await store.space("erasing").thread("t").delete()
    assert await rest("DELETE", "/threads/t") == {"existed": False}


async def test_a_space_is_deleted_at_every_door(url: str, store: Store, http: aiohttp.ClientSession) -> None:
    rest, cli = Rest(http, "whole"), Cli(url, "whole")

    async def fill() -> None:
        await rest("POST", "/threads/t/checkpoints", SAVE)
        await rest("PUT", "/registers/goal", {"value": 1})
        await rest("PUT", "/items/memory.user-1/k", {"value": 1})

    gone = {"thread": 1, "register": 1, "items": 1}
    await fill()
    assert await rest("DELETE", "") == {"deleted": gone, "left": 0, "more": False, "total": 3}
    await fill()
    assert (await store.space("whole").delete()).deleted == gone
    await fill()
    assert await cli.bare("space", "delete", "whole", "--yes") == [{"space": "whole", "deleted": gone, "left": 0}]
    assert await rest("DELETE", "") == {"deleted": {}, "left": 0, "more": False, "total": 0}
    assert "whole" not in [name async for name in store.spaces()]


async def test_a_dry_run_says_what_would_be_deleted(url: str, store: Store, http: aiohttp.ClientSession) -> None:
    rest = Rest(http, "dry")
    await rest("POST", "/threads/t/checkpoints", SAVE)
    await rest("POST", "/counters/c", {"add": 1})
    await rest("PUT", "/subjects/ana", {"tags": [{"kind": "counter", "name": "c"}]})
    for path, existed in (("/threads/t", True), ("/threads/tt", False), ("/counters/c", True), ("/sets/s", False)):
        assert await rest("DELETE", f"{path}?dry_run=true") == {"existed": existed}
    (would,) = (await rest("DELETE", "/subjects/ana?dry_run=true"))["objects"]
    assert (would["kind"], would["name"], would["outcome"]) == ("counter", "c", "tagged")
    whole = await rest("DELETE", "?dry_run=true")
    assert (whole["deleted"], whole["left"]) == ({"thread": 1, "counter": 1, "set": 1}, 3)
    assert (await rest("GET", "/counters/c"))["value"] == 1
    assert (await rest("GET", "/threads"))["names"] == ["t"]
    assert await rest("DELETE", "/threads/t") == {"existed": True}


async def test_items_are_deleted_at_once_at_every_door(url: str, store: Store, http: aiohttp.ClientSession) -> None:
    rest, cli, items = Rest(http, "many"), Cli(url, "many"), store.space("many").items

    async def fill() -> None:
        for n in range(3):
            await items.put(("memory", "user-1"), str(n), n)

    await fill()
    assert await rest("DELETE", "/items/memory.user-1") == {"deleted": 3}
    await fill()
    assert await cli("items", "delete-all", "memory", "--yes") == [{"deleted": 3}]
    await fill()
    assert await items.delete_all(("memory", "user-1")) == 3
    assert await cli("items", "delete-all", "memory.user-1", "--yes") == [{"deleted": 0}]


async def test_a_schema_is_deleted_at_every_door(url: str, store: Store, http: aiohttp.ClientSession) -> None:
    rest, cli, schemas = Rest(http, "ruled"), Cli(url, "ruled"), store.space("ruled").schemas

    async def put() -> None:
        await schemas.put("plan", 1, {"type": "object"})

    await put()
    assert await rest("DELETE", "/schemas/plan") == {"existed": True}
    await put()
    assert await cli("schema", "delete", "plan", "--yes") == [{"existed": True}]
    await put()
    assert await schemas.delete("plan")
    assert not await schemas.delete("plan")
    assert [name async for name in schemas.list()] == []
