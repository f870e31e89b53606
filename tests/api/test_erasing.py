"""Erasing over REST."""

from __future__ import annotations

import aiohttp
import pytest

from tests.api.test_rest import SAVE, SPACE, THREAD, Rest, Served


@pytest.fixture
async def rest(http: aiohttp.ClientSession, served: Served) -> Rest:
    return Rest(http, served)


async def test_a_deleted_thread_is_found_no_more_and_can_be_deleted_again(rest: Rest) -> None:
    await rest("POST", f"{THREAD}/checkpoints", SAVE)
    assert await rest("DELETE", THREAD) == (200, {"existed": True})
    assert (await rest.problem("GET", f"{THREAD}/checkpoints/latest"))["code"] == "not-found"
    assert (await rest("GET", f"{SPACE}/threads"))[1]["names"] == []
    assert await rest("DELETE", THREAD) == (200, {"existed": False})


async def test_a_deletion_with_a_key_is_applied_once(rest: Rest) -> None:
    await rest("POST", f"{THREAD}/checkpoints", SAVE)
    keyed = {"headers": {"Idempotency-Key": "d"}}
    assert await rest("DELETE", THREAD, **keyed) == (200, {"existed": True})
    await rest("POST", f"{THREAD}/checkpoints", SAVE)
    assert await rest("DELETE", THREAD, **keyed) == (200, {"existed": True})
    assert (await rest("GET", f"{THREAD}/checkpoints/latest"))[0] == 200
