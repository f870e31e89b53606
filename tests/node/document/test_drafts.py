"""Long edits of documents are made before they are decided."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from shoal.errors import Conflict, InvalidValue, RootConflict
from shoal.kinds.document.serving import opening
from shoal.kinds.document.serving.opening import Drafts
from shoal.kinds.document.state import genesis
from shoal.node.turns import at_once
from shoal.protocol import requests
from tests.crdt.document.edits import live, map_update
from tests.node.conftest import Bench

CLIENT = 77


def content(keys: int, value: object = 1) -> dict[str, Any]:
    return {"m": {f"k{number}": value for number in range(keys)}, "l": [1, 2]}


def replace(keys: int = 1000, value: object = 1, **more: Any) -> requests.Replace:
    return requests.Replace("crew", "doc", json.dumps(content(keys, value)).encode(), **more)


LONG_PATCH = requests.Patch(
    "crew", "doc", json.dumps([{"op": "add", "path": f"/m/p{number}", "value": number} for number in range(200)]).encode()
)
ACTS = {"replace": replace(value=2), "patch": LONG_PATCH}


async def shown(bench: Bench) -> Any:
    return json.loads((await bench.node.session().call(requests.ReadDocumentJson("crew", "doc"))).json)


@pytest.mark.parametrize("act", ACTS)
async def test_a_long_edit_is_made_once_and_before_it_is_decided(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    session = bench.node.session()
    await session.call(replace())
    made: list[bool] = []
    sound, is_decided = opening.edit, False

    def noted(*what: Any) -> Any:
        made.append(is_decided)
        return sound(*what)

    monkeypatch.setattr(opening, "edit", noted)
    before = bench.node._database.documents._edited

    def decided(*what: Any) -> Any:
        nonlocal is_decided
        is_decided = True
        return before(*what)

    monkeypatch.setattr(bench.node._database.documents, "_edited", decided)
    await session.call(ACTS[act])
    assert made == [False]


async def test_a_long_beginning_is_made_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    sound = genesis.begin

    def noted(wanted: Any, generation: int) -> genesis.Genesis:
        made.append(generation)
        return sound(wanted, generation)

    monkeypatch.setattr(genesis, "begin", noted)
    await bench.node.session().call(replace())
    assert len(made) == 1
    assert await shown(bench) == content(1000)


@pytest.mark.parametrize("act", ["begin", *ACTS])
async def test_drafts_change_nothing_of_what_is_written(bench: Bench, monkeypatch: pytest.MonkeyPatch, act: str) -> None:
    written = []
    for is_drafted in (True, False):
        with monkeypatch.context() as patch:
            if not is_drafted:
                patch.setattr(opening, "is_long", lambda _: False)
            session = bench.node.session()
            begin = requests.Begin("crew", "doc", replace().content)
            for request in (begin, ACTS[act]) if act in ACTS else (begin,):
                await session.call(request)
            written.append((await session.call(requests.ReadDocument("crew", "doc"))).update)
            await session.call(requests.DeleteDocument("crew", "doc"))
    assert len(written[0]) == len(written[1])
    contents = [live(updates=[update], roots={"m": "map", "l": "array"}).to_py() for update in written]
    assert contents[0] == contents[1]


@pytest.mark.parametrize("act", ["begin", *ACTS])
async def test_edits_that_come_between_count(bench: Bench, act: str) -> None:
    session = bench.node.session()
    if act != "begin":
        await session.call(replace())
    long = asyncio.create_task(session.call(ACTS.get(act, replace(value=2))))
    for _ in range(2):
        await asyncio.sleep(0)  # A first step was taken.
    other = requests.Patch("crew", "doc", b'[{"op": "add", "path": "/m/between", "value": 5}]')
    if act == "begin":
        other = requests.Replace("crew", "doc", b'{"m": {"between": 5}}')  # type: ignore[assignment]
    await session.call(other)
    await long
    found = await shown(bench)
    assert ("between" in found["m"]) == (act == "patch")
    assert found["m"]["p3" if act == "patch" else "k3"] == (3 if act == "patch" else 2)


async def test_errors_are_those_of_the_decision(bench: Bench) -> None:
    session = bench.node.session()
    with pytest.raises(InvalidValue, match="is not JSON"):
        await session.call(requests.Replace("crew", "doc", b"[" * 5000))
    await session.call(replace(keys=3))
    with pytest.raises(RootConflict):
        await session.call(requests.Replace("crew", "doc", json.dumps({"m": "x" * 5000}).encode()))
    refused = [{"op": "test", "path": "/l/0", "value": "x" * 5000}]
    with pytest.raises(Conflict):
        await session.call(requests.Patch("crew", "doc", json.dumps(refused).encode()))
    assert await shown(bench) == content(3)


async def test_a_draft_of_what_was_done_raises_nothing(bench: Bench) -> None:
    session = bench.node.session()
    await session.call(replace(keys=3))
    tested = [{"op": "test", "path": "/l/0", "value": 1}, {"op": "add", "path": "/m/x", "value": "x" * 5000}]
    request = requests.Patch("crew", "doc", json.dumps(tested).encode())
    await session.call(request, key="once")
    await session.call(requests.Patch("crew", "doc", b'[{"op": "replace", "path": "/l/0", "value": 5}]'))
    await session.call(request, key="once")  # It was carried out; now its test would fail.
    with pytest.raises(Conflict):
        await session.call(request, key="another")


def test_a_draft_is_of_one_request_and_one_state() -> None:
    document = live(roots={"m": "map"})
    drafts, request = Drafts(), replace(keys=3)

    def drafted() -> None:
        at_once(drafts.editing(request, document, CLIENT))

    drafted()
    assert drafts.edited(replace(keys=3), document, CLIENT) is None  # An equal one.
    assert drafts.edited(request, document, CLIENT) is not None
    assert drafts.edited(request, document, CLIENT) is None  # It was taken.
    drafted()
    assert drafts.edited(request, document, CLIENT + 1) is None
    drafted()
    assert drafts.edited(request, live(roots={"m": "map"}), CLIENT) is None
    drafted()
    document.integrate(map_update(1), {})
    assert drafts.edited(request, document, CLIENT) is None


def test_few_drafts_are_kept() -> None:
    document, drafts = live(), Drafts()
    asked = [replace(keys=3) for _ in range(20)]
    for request in asked:
        at_once(drafts.editing(request, document, CLIENT))
        at_once(drafts.beginning(request, 0, bytes_max=1 << 20))
    assert [drafts.edited(request, document, CLIENT) is not None for request in asked] == [False] * 16 + [True] * 4
    assert [drafts.begun(request, 0) is not None for request in asked] == [False] * 16 + [True] * 4
