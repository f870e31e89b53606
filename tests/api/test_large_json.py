"""Large JSON: others get their turns while it is converted, and what cannot be converted in steps is refused."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import msgspec
import pytest

from shoal.values.stepped import STEP_PARTS
from shoal.values.work import NODES_MAX
from tests.api.conftest import Rest

SPACE = "/v1/spaces/crew"
MANY = 60 * STEP_PARTS


def sent(body: Any, content_type: str = "application/json") -> dict[str, Any]:
    """How a client sends a large body."""
    return {"data": io.BytesIO(json.dumps(body).encode()), "headers": {"Content-Type": content_type}}


async def test_others_get_turns_while_json_is_converted(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    given = 0
    pause = asyncio.sleep

    async def counted(delay: float) -> None:
        nonlocal given
        given += delay == 0
        await pause(delay)

    monkeypatch.setattr(asyncio, "sleep", counted)
    status, _ = await rest("PUT", f"{SPACE}/registers/r", {"value": list(range(MANY))})
    assert (status, given >= 60) == (200, True)
    given = 0
    status, shown = await rest("GET", f"{SPACE}/registers/r")
    assert (status, given >= 60) == (200, True)
    assert shown["value"] == list(range(MANY))


async def test_values_are_stored_by_their_own_errors(rest: Rest) -> None:
    body = {"state": {"a": ["x" * 20_000], "b": {"$type": "nonsense", "value": 1}}}
    status, problem = await rest("POST", f"{SPACE}/threads/t/checkpoints", body)
    assert (status, "nonsense" in problem["detail"]) == (400, True)


async def test_a_body_of_too_many_entries_is_refused(rest: Rest) -> None:
    body = {"state": {f"c{nth}": 0 for nth in range(NODES_MAX + 1)}}
    status, problem = await rest("POST", f"{SPACE}/threads/t/checkpoints", **sent(body))
    assert (status, problem["code"]) == (413, "too-large")
    assert not rest.served.session.asked


async def test_a_packed_body_of_too_many_entries_is_refused(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"Content-Type": "application/msgpack"}
    few = {f"c{nth}": 0 for nth in range(16_000)}
    writes = [{"op": "save", "thread": "{t}", "state": few}] * 7
    for path, body in (
        ("batch", {"writes": writes}),
        ("threads/t/checkpoints", {"append": {"a": [0] * (NODES_MAX + 1)}}),
        ("threads/t/checkpoints", {"state": {}, "metadata": {f"c{nth}": 0 for nth in range(NODES_MAX + 1)}}),
    ):
        monkeypatch.setattr(msgspec.msgpack, "decode", lambda *_, **__: pytest.fail("it was decoded"))
        sent = {"data": io.BytesIO(msgspec.msgpack.encode(body)), "headers": headers}
        status, problem = await rest("POST", f"{SPACE}/{path}", **sent)
        monkeypatch.undo()
        assert (status, problem["code"]) == (413, "too-large"), path
    assert not rest.served.session.asked


async def test_a_large_packed_value_is_taken(rest: Rest) -> None:
    packed = {"data": io.BytesIO(msgspec.msgpack.encode({"value": [0] * (NODES_MAX + 1)}))}
    status, _ = await rest("PUT", f"{SPACE}/registers/r", **packed, headers={"Content-Type": "application/msgpack"})
    assert status == 200


async def test_a_document_of_too_many_values_is_refused(rest: Rest) -> None:
    many: list[list[int]] = [[]] * (NODES_MAX + 1)
    for method, body in (("PUT", sent({"l": many})), ("PATCH", sent(many, "application/json-patch+json"))):
        status, problem = await rest(method, f"{SPACE}/documents/d", **body)
        assert (status, problem["code"]) == (413, "too-large")


async def test_a_state_of_too_many_values_is_not_unpacked(rest: Rest) -> None:
    states = [[nth] * NODES_MAX for nth in range(2)]
    ids = []
    for state in states:
        status, saved = await rest("POST", f"{SPACE}/threads/t/checkpoints", **sent({"state": {"c": state}}))
        assert status == 201
        ids.append(saved["id"])
    status, problem = await rest("GET", f"{SPACE}/threads/t/diff?from={ids[0]}&to={ids[1]}")
    assert (status, problem["code"], "Python client" in problem["detail"]) == (413, "too-large", True)
