"""An error after the write of an HTTP request does not say that nothing was written."""

from __future__ import annotations

import aiohttp
import msgspec
import pytest

from shoal import values
from shoal.api.http.bodies import Noting
from shoal.errors import InvalidValue, StorageFull
from shoal.protocol import requests
from shoal.protocol.bookmark import SharedBookmark
from tests.api.conftest import FakeSession, Served

OF_A_CLASS = msgspec.msgpack.encode(msgspec.msgpack.Ext(1, values.encode(["my.module.Plan", {}])))
"""A value that only a process with this class can show."""


@pytest.mark.answers("unknown-outcomes-are-told", note="what fails after something was written says so")
async def test_a_write_whose_answer_cannot_be_shown_is_said_to_be_applied(
    served: Served, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.session, "_write", lambda request: requests.Dequeued(True, "", OF_A_CLASS))
    async with http.post(f"{served.url}/v1/spaces/crew/threads/t/worklists/w/items/1/done", json={"result": None}) as response:
        problem = await response.json()
    assert (response.status, problem["code"], problem["written"]) == (400, "invalid-value", "yes")
    assert problem["detail"].startswith("the write is applied, and it cannot be answered: ")
    assert "othing was written" not in problem["detail"]


async def test_only_an_error_that_denies_an_answered_write_is_changed() -> None:
    session = Noting(FakeSession(), SharedBookmark())
    denial, unknown = InvalidValue("it is too deep. Nothing was written."), StorageFull("the disk is full.")
    await session.call(requests.ReadCounter("crew", "c"))
    assert session.checked(denial) is denial
    await session.call(requests.Add("crew", "c", 1))
    assert session.checked(unknown) is unknown
    assert session.checked(denial).written == "yes"
