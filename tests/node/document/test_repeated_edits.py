"""A patch, or a replacement, of a document that reached nodes which had not heard of each other is carried out once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shoal.config import Config
from shoal.kinds.document.state import document
from shoal.kinds.document.state.live import EMPTY
from shoal.node.collection.entries import rows_of
from shoal.node.handler import Target
from shoal.node.transaction import Transaction
from shoal.node.verification.verify import verify
from shoal.protocol import requests
from shoal.storage.keys import Kind
from simulation.world.fleet import Fleet
from tests.node.writes.test_erasing import swept

BEGINNING = {"tasks": [1], "plan": {"goal": "ship"}, "title": "plan"}
PATCH = [
    {"op": "add", "path": "/tasks/-", "value": 2},
    {"op": "add", "path": "/tasks/-", "value": {"steps": ["a"]}},
    {"op": "add", "path": "/plan/who", "value": {"names": ["ada"]}},
    {"op": "replace", "path": "/title", "value": "my plan"},
    {"op": "remove", "path": "/plan/goal"},
]
PATCHED = {"tasks": [1, 2, {"steps": ["a"]}], "plan": {"who": {"names": ["ada"]}}, "title": "my plan"}
EDITS: dict[str, requests.AnyWrite] = {
    "patch": requests.Patch("crew", "doc", json.dumps(PATCH).encode()),
    "replace": requests.Replace("crew", "doc", json.dumps(PATCHED).encode()),
}


async def call(fleet: Fleet, name: str, request: requests.AnyWrite, *, key: str | None = None) -> None:
    await fleet[name].node.session().call(request, key=key)


async def shown(fleet: Fleet, name: str) -> Any:
    found = await fleet[name].node.session().call(requests.ReadDocumentJson("crew", "doc"))
    assert isinstance(found, requests.DocumentJson)
    return json.loads(found.json)


@asynccontextmanager
async def apart(fleet: Fleet, names: str) -> AsyncIterator[None]:
    """These nodes hear of nothing that happens elsewhere while the context is open."""
    for name in names:
        await fleet.isolate(name)
    yield
    for name in names:
        fleet.link_all(name)
    await fleet.converged()


async def begun(fleet: Fleet, content: Any) -> None:
    """The document is on all nodes."""
    await call(fleet, "a", requests.Begin("crew", "doc", json.dumps(content).encode()))
    await fleet.converged()


async def check_sound(fleet: Fleet, content: Any) -> None:
    """All nodes show this, and hold the same rows, which follow from their logs."""
    for name in "abc":
        assert await shown(fleet, name) == content
        assert fleet.rows(name) == fleet.rows("a")
        report = verify(fleet[name].storage.left_by_crash(None), config=Config())
        assert report.sound, report.problems


@pytest.mark.answers("patch-at-two-nodes-inserts-twice")
@pytest.mark.parametrize("names", ["ab", "ca", "abc"])
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
async def test_an_edit_that_reached_several_nodes_is_carried_out_once(edit: requests.AnyWrite, names: str) -> None:
    async with Fleet() as fleet:
        await begun(fleet, BEGINNING)
        async with apart(fleet, names):
            for name in names:
                await call(fleet, name, edit, key="k")
        await check_sound(fleet, PATCHED)


async def test_a_mirror_that_has_seen_one_of_them_shows_the_one_that_counts() -> None:
    async with Fleet() as fleet:
        await begun(fleet, BEGINNING)
        mirrors = [await fleet[name].store().space("crew").document("doc") for name in "abc"]
        async with apart(fleet, "ab"):
            await patched(fleet, "ab")
        async with asyncio.timeout(30):
            while any(mirror.to_py() != PATCHED for mirror in mirrors):
                await asyncio.sleep(0.002)


async def test_two_requests_that_are_alike_are_two() -> None:
    async with Fleet() as fleet:
        await begun(fleet, {"tasks": []})
        add = requests.Patch("crew", "doc", b'[{"op": "add", "path": "/tasks/-", "value": 1}]')
        await call(fleet, "a", add, key="k")
        await call(fleet, "b", add, key="other")
        await fleet.converged()
        assert await shown(fleet, "c") == {"tasks": [1, 1]}


@pytest.mark.answers("patch-at-two-nodes-inserts-twice")
async def test_members_added_by_others_meanwhile_stay() -> None:
    async with Fleet() as fleet:
        await begun(fleet, {"tasks": [1]})
        add = requests.Patch("crew", "doc", b'[{"op": "add", "path": "/tasks/-", "value": 2}]')
        async with apart(fleet, "ab"):
            for name in "ab":
                await call(fleet, name, add, key="k")
                own = json.dumps([{"op": "add", "path": "/tasks/-", "value": name}]).encode()
                await call(fleet, name, requests.Patch("crew", "doc", own))
        found = (await shown(fleet, "c"))["tasks"]
        assert sorted(map(str, found)) == ["1", "2", "a", "b"]


async def test_several_edits_of_each_node_that_reached_both_are_each_carried_out_once() -> None:
    """A node makes all its edits under one Yjs client id, so one client made an edit of each of the requests."""
    async with Fleet() as fleet:
        await begun(fleet, {"tasks": [], "title": ""})
        async with apart(fleet, "ab"):
            for number in range(3):
                edit = [
                    {"op": "add", "path": "/tasks/-", "value": number},
                    {"op": "replace", "path": "/title", "value": "".join(map(str, range(number + 1)))},
                ]
                for name in "ab":
                    await call(fleet, name, requests.Patch("crew", "doc", json.dumps(edit).encode()), key=f"k{number}")
        await check_sound(fleet, {"tasks": [0, 1, 2], "title": "012"})


# ── once a compaction is stable ───────────────────────────────────────────────

DOC = Target(Kind.DOCUMENT, "crew", "doc")


def requests_of(fleet: Fleet, name: str) -> int:
    """How many rows a node has of requests to edit the document."""
    rows = rows_of(Transaction(fleet[name].storage), DOC, 0)
    return sum(1 for prefix in (b"P", b"L") for _ in rows.scan(prefix))


async def after_the_window(fleet: Fleet) -> None:
    """No request can be repeated any more."""
    for member in fleet.members.values():
        member.simulated.now_ms += 2 * member.config.key_window_s * 1000


async def patched(fleet: Fleet, names: str) -> None:
    """One request reaches these nodes."""
    for name in names:
        await call(fleet, name, EDITS["patch"], key="k")


async def compacted(fleet: Fleet, name: str) -> None:
    await call(fleet, name, requests.Compact("crew", "doc"))
    await fleet.converged()
    await swept(*(member.storage for member in fleet.members.values()))


@pytest.mark.answers("rows-of-repeated-patches-stay-or-go-early")
async def test_the_rows_of_requests_go_with_their_updates() -> None:
    async with Fleet() as fleet:
        await begun(fleet, BEGINNING)
        async with apart(fleet, "ab"):
            await patched(fleet, "ab")
        for number in range(20):
            edit = json.dumps([{"op": "add", "path": "/plan/n", "value": number}]).encode()
            await call(fleet, "a", requests.Patch("crew", "doc", edit), key=f"k{number}")
        await fleet.converged()
        assert requests_of(fleet, "c") == 23  # The clients of both edits of the first are listed.
        await compacted(fleet, "c")
        assert requests_of(fleet, "c") == 23  # Any of these may be repeated on a node that was set back.
        await after_the_window(fleet)
        await call(fleet, "a", requests.Patch("crew", "doc", b'[{"op": "add", "path": "/plan/n", "value": 20}]'), key="late")
        await fleet.converged()
        await compacted(fleet, "c")
        assert [requests_of(fleet, name) for name in "abc"] == [1, 1, 1]
        await after_the_window(fleet)
        await call(fleet, "a", requests.Patch("crew", "doc", b'[{"op": "add", "path": "/plan/n", "value": 19}]'))
        await fleet.converged()
        await compacted(fleet, "c")
        assert [requests_of(fleet, name) for name in "abc"] == [0, 0, 0]
        content = {**PATCHED, "plan": {"who": {"names": ["ada"]}, "n": 19}}
        await check_sound(fleet, content)


@pytest.mark.answers("rows-of-repeated-patches-stay-or-go-early")
async def test_a_request_of_which_one_edit_is_not_compacted_keeps_its_row() -> None:
    async with Fleet() as fleet:
        await begun(fleet, BEGINNING)
        async with apart(fleet, "ab"):
            await patched(fleet, "ab")
            await after_the_window(fleet)
            await call(fleet, "a", requests.Compact("crew", "doc"))
        await swept(*(member.storage for member in fleet.members.values()))
        assert [requests_of(fleet, name) for name in "abc"] == [3, 3, 3]
        await check_sound(fleet, PATCHED)
        await compacted(fleet, "b")
        assert [requests_of(fleet, name) for name in "abc"] == [0, 0, 0]
        await check_sound(fleet, PATCHED)


@pytest.mark.answers("rows-of-repeated-patches-stay-or-go-early")
async def test_nothing_goes_while_a_node_may_have_another_edit_of_the_request() -> None:
    async with Fleet() as fleet:
        await begun(fleet, BEGINNING)
        async with apart(fleet, "b"):
            await call(fleet, "b", EDITS["patch"], key="k")
            await call(fleet, "a", EDITS["patch"], key="k")
            await after_the_window(fleet)
            await call(fleet, "a", requests.Compact("crew", "doc"))
            await asyncio.sleep(0.1)
            assert requests_of(fleet, "a") == requests_of(fleet, "c") == 1
        await swept(*(member.storage for member in fleet.members.values()))
        await check_sound(fleet, PATCHED)


@pytest.mark.answers("rows-of-repeated-patches-stay-or-go-early")
async def test_a_merged_update_that_lacks_such_a_deletion_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Fleet() as fleet:
        await begun(fleet, BEGINNING)
        async with apart(fleet, "ab"):
            await patched(fleet, "ab")
        await after_the_window(fleet)
        with monkeypatch.context() as patch:
            patch.setattr(document, "withdrawn", lambda rows, *, known: EMPTY)
            await call(fleet, "c", requests.Compact("crew", "doc"))
        await fleet.converged()
        await asyncio.sleep(0.1)
        assert [requests_of(fleet, name) for name in "abc"] == [3, 3, 3]


@pytest.mark.answers("rows-of-repeated-patches-stay-or-go-early")
async def test_a_node_that_was_set_back_carries_out_again_what_was_compacted_and_it_counts_once() -> None:
    """It does not know what it has forgotten, and takes a repeated request as long as its key may be repeated."""
    async with Fleet() as fleet:
        await begun(fleet, BEGINNING)
        before = fleet["c"].storage.left_by_crash(None)
        await call(fleet, "a", EDITS["patch"], key="k")
        await fleet.converged()
        await compacted(fleet, "a")
        await fleet.set_back("c", before)
        await call(fleet, "c", EDITS["patch"], key="k")
        fleet.link_all("c")
        await fleet.converged()
        for name in "abc":
            assert await shown(fleet, name) == PATCHED
