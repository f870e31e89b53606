"""HTTP requests that say when their caller gives up."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import pytest

from shoal.api.http.bodies import HEADER, Limited
from shoal.errors import OutcomeUnknown, Unavailable
from shoal.protocol.requests import Add, DeleteDocument, ReadCounter, Request
from tests.api.conftest import FakeSession, Served

COUNTER = "/v1/spaces/crew/counters/c"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Stuck(FakeSession):
    """Answers no write."""

    async def call(self, request: Request[Any], /, **given: Any) -> Any:
        if isinstance(request, Add):
            await asyncio.Event().wait()
        return await super().call(request, **given)


async def add(served: Served, http: aiohttp.ClientSession, deadline: str) -> tuple[int, Any]:
    headers = {HEADER: deadline, "Idempotency-Key": "k"}
    async with http.post(served.url + COUNTER, json={"add": 1}, headers=headers) as response:
        return response.status, await response.json()


async def test_a_write_after_its_deadline_is_refused_and_nothing_is_asked(served: Served, http: aiohttp.ClientSession) -> None:
    status, problem = await add(served, http, str(time.time() - 3600))
    assert (status, problem["code"], problem["written"]) == (503, "unavailable", "no")
    assert served.session.asked == []


async def test_a_write_before_its_deadline_is_as_any_other(served: Served, http: aiohttp.ClientSession) -> None:
    status, _ = await add(served, http, str(time.time() + 3600))
    assert status == 200
    assert served.session.asked == [(Add("crew", "c", 1), "k", "local")]


@pytest.mark.parametrize("deadline", ["", "soon", "nan", "inf", "Sun, 22 Nov 2026 23:00:00 GMT"])
async def test_a_deadline_that_is_no_time_is_refused(served: Served, http: aiohttp.ClientSession, deadline: str) -> None:
    status, problem = await add(served, http, deadline)
    assert (status, problem["code"], problem["field"]) == (400, "invalid-input", HEADER)
    assert served.session.asked == []


async def test_a_read_has_no_deadline(served: Served, http: aiohttp.ClientSession) -> None:
    async with http.get(served.url + COUNTER, headers={HEADER: "1"}) as response:
        assert response.status == 200


@pytest.mark.answers("deletion-takes-effect-late", note="over HTTP")
async def test_a_request_past_its_deadline_is_not_begun() -> None:
    session, clock = FakeSession(), Clock()
    limited = Limited(session, 1_001.0, now_s=clock)
    await limited.call(Add("crew", "c", 1))
    clock.now_s = 1_001.0  # As after the node stalled.
    with pytest.raises(Unavailable, match="Nothing was written"):
        await limited.call(DeleteDocument("crew", "d"))
    await limited.call(ReadCounter("crew", "c"))
    assert [type(request) for request, _, _ in session.asked] == [Add, ReadCounter]


async def test_the_outcome_of_a_write_that_is_not_answered_in_time_is_unknown() -> None:
    limited = Limited(Stuck(), 1_000.001, now_s=Clock())
    with pytest.raises(OutcomeUnknown):
        await limited.call(Add("crew", "c", 1))
