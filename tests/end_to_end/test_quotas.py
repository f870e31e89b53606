"""Quotas over HTTP, at a real node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

import shoal

QUOTA = "/v1/spaces/metered/quota"
ADD = "/v1/spaces/metered/counters/c"


async def test_a_quota_is_set_reached_and_left(http: aiohttp.ClientSession) -> None:
    async with http.put(QUOTA, json={"writes_per_s": 0.5, "watchers": 1}) as answer:
        assert answer.status == 200
        assert (await answer.json())["recorded"] == {"writes_per_s": 0.5, "watchers": 1}
    async with http.post(ADD, json={"add": 1}) as answer:
        assert answer.status == 200
    async with http.post(ADD, json={"add": 1}) as answer:
        assert answer.status == 429
        assert int(answer.headers["Retry-After"]) in (1, 2)
        problem = await answer.json(content_type=None)
        assert problem["detail"].startswith("the quota of space 'metered' is reached")
    async with http.get("/metrics") as answer:
        assert 'shoal_condition{condition="quota-reached"} 1.0' in await answer.text()
    async with http.put(QUOTA, json={}) as answer:
        assert (await answer.json())["recorded"] == {}
    async with http.post(ADD, json={"add": 1}) as answer:
        assert answer.status == 200


async def test_a_wrong_limit_is_refused(http: aiohttp.ClientSession) -> None:
    for body in ({"bytes": -1}, {"bytes": "many"}, {"unknown": 1}):
        async with http.put(QUOTA, json=body) as answer:
            assert answer.status == 400


async def test_an_encrypted_directory_counts_the_same(tmp_path: Path) -> None:
    uses = []
    for key in ("", f"file:{tmp_path / 'key'}"):
        (tmp_path / "key").write_text("0f" * 32)
        (tmp_path / "key").chmod(0o600)
        async with shoal.open(tmp_path / f"state-{bool(key)}", config=shoal.Config(encryption_key=key)) as store:
            await store.space("crew").register("r").set("x" * 1000)
            while not (found := await store.space("crew").quota()).is_counted:
                await asyncio.sleep(0.01)
            uses.append(found.used)
    assert uses[0] == uses[1]
    assert uses[0].bytes > 1000
