"""Edits that a node makes itself, for a patch or a replacement: the Yjs clients that stay in a document."""

from __future__ import annotations

import json
from typing import Any

import pycrdt
import pytest

from shoal.kinds.document.state.yjs import StateVector, parse_state
from shoal.protocol import requests
from tests.node.conftest import Bench, Opener


async def replaced(bench: Bench, content: Any, author: str = "") -> None:
    await bench.node.session().call(requests.Replace("crew", "doc", json.dumps(content).encode(), author=author))


async def patched(bench: Bench, number: int, author: str = "") -> None:
    patch = [{"op": "add", "path": "/tasks/-", "value": number}, {"op": "add", "path": "/plan/n", "value": number}]
    await bench.node.session().call(requests.Patch("crew", "doc", json.dumps(patch).encode(), author=author))


async def clients(bench: Bench) -> StateVector:
    found = await bench.node.session().call(requests.ReadDocument("crew", "doc"))
    return parse_state(pycrdt.get_state(found.update))


async def test_all_edits_of_an_opening_for_an_author_have_one_client(bench: Bench) -> None:
    await replaced(bench, {"tasks": [], "plan": {}})
    begun = await clients(bench)
    for number in range(20):
        await patched(bench, number)
    await replaced(bench, {"tasks": [1, 2, 3], "plan": {"n": 7}})
    one = await clients(bench)
    assert len(one) == len(begun) + 1
    for number in range(5):
        await patched(bench, number, "ada")
    assert len(await clients(bench)) == len(one) + 1


@pytest.mark.answers("two-yjs-documents-share-a-client-id-and-diverge")
async def test_another_opening_has_another_client(open_bench: Opener) -> None:
    bench = open_bench()
    await replaced(bench, {"tasks": [], "plan": {}})
    await patched(bench, 1)
    before = await clients(bench)
    again = open_bench(bench.storage.left_by_crash(None), seed=2)
    await patched(again, 2)
    after = await clients(again)
    assert len(after) == len(before) + 1
    assert after.items() > before.items()


async def test_another_generation_has_another_client(bench: Bench) -> None:
    """Yjs clients that edited a generation are refused in the next one, by their ids."""
    seen: list[set[int]] = []
    for _ in range(2):
        await replaced(bench, {"tasks": [], "plan": {}})
        await patched(bench, 1)
        seen.append(set(await clients(bench)))
        await bench.node.session().call(requests.DeleteDocument("crew", "doc"))
    assert not seen[0] & seen[1]
