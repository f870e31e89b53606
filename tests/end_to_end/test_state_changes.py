"""Changes of a state over REST, and loads of some channels."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
import pytest
from yarl import URL

Rest = Callable[..., Awaitable[tuple[int, Any]]]

CHECKPOINTS = "/threads/t/checkpoints"
STATE = {"messages": [{"role": "user"}], "plan": {"n": 1}, "a,b%": 3}


@pytest.fixture
async def rest(http: aiohttp.ClientSession, url: str, request: pytest.FixtureRequest) -> Rest:
    # The node is shared by the module; each test has a space of its own.
    space = f"/v1/spaces/{abs(hash(request.node.name))}"

    async def call(method: str, path: str, json: Any = None, **options: Any) -> tuple[int, Any]:
        if json is not None:
            options["json"] = json
        async with http.request(method, URL(url + space + path, encoded=True), **options) as response:
            return response.status, msgspec.json.decode(await response.read())

    status, _ = await call("POST", CHECKPOINTS, {"state": STATE})
    assert status == 201
    return call


async def test_a_change_is_saved_and_the_rest_stays(rest: Rest) -> None:
    change = {"update": {"plan": {"n": 2}}, "append": {"messages": [{"role": "tool"}, 7]}, "remove": ["a,b%"]}
    status, saved = await rest("POST", CHECKPOINTS, {**change, "metadata": {"by": "rest"}})
    assert (status, len(saved["parents"])) == (201, 1)
    _, loaded = await rest("GET", f"{CHECKPOINTS}/latest")
    assert loaded["state"] == {"messages": [{"role": "user"}, {"role": "tool"}, 7], "plan": {"n": 2}}
    assert loaded["metadata"] == {"by": "rest"}


@pytest.mark.parametrize(
    "body", [{}, {"metadata": {}}, {"state": {}, "append": {"messages": [1]}}, {"state": {}, "remove": ["x"]}]
)
async def test_neither_a_state_nor_a_change_is_refused(rest: Rest, body: dict[str, Any]) -> None:
    status, problem = await rest("POST", CHECKPOINTS, body)
    assert (status, problem["code"], problem["field"]) == (400, "invalid-input", "state")


@pytest.mark.parametrize("body", [{"append": {"plan": [1]}}, {"remove": ["nothing"]}, {"append": {"messages": 1}}])
async def test_a_change_that_does_not_fit_is_refused(rest: Rest, body: dict[str, Any]) -> None:
    status, problem = await rest("POST", CHECKPOINTS, body)
    assert (status, problem["code"]) == (400, "invalid-input")
    assert "Nothing was written" in problem["detail"]


async def test_a_batch_takes_changes(rest: Rest) -> None:
    writes = [
        {"op": "save", "thread": "t", "append": {"messages": [2]}},
        {"op": "append", "thread": "t", "event": {"of": "the journal"}},
    ]
    status, _ = await rest("POST", "/batch", {"writes": writes})
    assert status == 200
    _, loaded = await rest("GET", f"{CHECKPOINTS}/latest")
    assert loaded["state"] == {**STATE, "messages": [{"role": "user"}, 2]}


async def test_only_the_channels_that_are_asked_for_are_answered(rest: Rest) -> None:
    for query, names in (("plan,messages", {"plan", "messages"}), (quote(quote("a,b%")), {"a,b%"}), ("", set[str]())):
        status, loaded = await rest("GET", f"{CHECKPOINTS}/latest?channels={query}")
        assert (status, set(loaded["state"])) == (200, names)
    status, problem = await rest("GET", f"{CHECKPOINTS}/latest?channels=plan,plans")
    assert (status, problem["code"]) == (404, "not-found")
