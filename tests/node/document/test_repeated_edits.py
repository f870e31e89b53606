"""A patch, or a replacement, of a document that reached nodes which had not heard of each other is carried out once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from shoal.config import Config
from shoal.node.verification.verify import verify
from shoal.protocol import requests
from simulation.world.fleet import Fleet

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


async def made_at(fleet: Fleet, names: str, edit: requests.AnyWrite) -> None:
    """The same request at nodes that cannot hear of each other."""
    await call(fleet, "a", requests.Begin("crew", "doc", json.dumps(BEGINNING).encode()))
    await fleet.converged()
    for name in names:
        await fleet.isolate(name)
    for name in names:
        await call(fleet, name, edit, key="k")
    for name in names:
        fleet.link_all(name)
    await fleet.converged()


@pytest.mark.parametrize("names", ["ab", "ca", "abc"])
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
async def test_an_edit_that_reached_several_nodes_is_carried_out_once(edit: requests.AnyWrite, names: str) -> None:
    async with Fleet() as fleet:
        await made_at(fleet, names, edit)
        for name in "abc":
            assert await shown(fleet, name) == PATCHED
            assert fleet.rows(name) == fleet.rows("a")
            report = verify(fleet[name].storage.left_by_crash(None), config=Config())
            assert report.sound, report.problems


async def test_a_mirror_that_has_seen_one_of_them_shows_the_one_that_counts() -> None:
    async with Fleet() as fleet:
        await call(fleet, "a", requests.Begin("crew", "doc", json.dumps(BEGINNING).encode()))
        await fleet.converged()
        mirrors = [await fleet[name].store().space("crew").document("doc") for name in "abc"]
        for name in "ab":
            await fleet.isolate(name)
        for name in "ab":
            await call(fleet, name, EDITS["patch"], key="k")
        for name in "ab":
            fleet.link_all(name)
        await fleet.converged()
        async with asyncio.timeout(30):
            while any(mirror.to_py() != PATCHED for mirror in mirrors):
                await asyncio.sleep(0.002)


async def test_two_requests_that_are_alike_are_two() -> None:
    async with Fleet() as fleet:
        await call(fleet, "a", requests.Begin("crew", "doc", b'{"tasks": []}'))
        await fleet.converged()
        add = requests.Patch("crew", "doc", b'[{"op": "add", "path": "/tasks/-", "value": 1}]')
        await call(fleet, "a", add, key="k")
        await call(fleet, "b", add, key="other")
        await fleet.converged()
        assert await shown(fleet, "c") == {"tasks": [1, 1]}


async def test_what_others_added_meanwhile_stays() -> None:
    async with Fleet() as fleet:
        await call(fleet, "a", requests.Begin("crew", "doc", b'{"tasks": [1]}'))
        await fleet.converged()
        for name in "ab":
            await fleet.isolate(name)
        add = requests.Patch("crew", "doc", b'[{"op": "add", "path": "/tasks/-", "value": 2}]')
        for name in "ab":
            await call(fleet, name, add, key="k")
            own = json.dumps([{"op": "add", "path": "/tasks/-", "value": name}]).encode()
            await call(fleet, name, requests.Patch("crew", "doc", own))
        for name in "ab":
            fleet.link_all(name)
        await fleet.converged()
        found = (await shown(fleet, "c"))["tasks"]
        assert sorted(map(str, found)) == ["1", "2", "a", "b"]


async def test_several_edits_of_each_node_that_reached_both_are_each_carried_out_once() -> None:
    """A node makes all its edits under one Yjs client id, so one client made an edit of each of the requests."""
    async with Fleet() as fleet:
        await call(fleet, "a", requests.Begin("crew", "doc", b'{"tasks": [], "title": ""}'))
        await fleet.converged()
        for name in "ab":
            await fleet.isolate(name)
        for number in range(3):
            edit = [
                {"op": "add", "path": "/tasks/-", "value": number},
                {"op": "replace", "path": "/title", "value": "".join(map(str, range(number + 1)))},
            ]
            for name in "ab":
                await call(fleet, name, requests.Patch("crew", "doc", json.dumps(edit).encode()), key=f"k{number}")
        for name in "ab":
            fleet.link_all(name)
        await fleet.converged()
        for name in "abc":
            assert await shown(fleet, name) == {"tasks": [0, 1, 2], "title": "012"}
            assert fleet.rows(name) == fleet.rows("a")
            report = verify(fleet[name].storage.left_by_crash(None), config=Config())
            assert report.sound, report.problems
