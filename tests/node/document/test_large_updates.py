"""Updates with very many items: an operation takes so many; who has more sends them in pieces."""

from __future__ import annotations

import json
from typing import Any

import pycrdt
import pytest

from shoal.errors import TooLarge
from shoal.kinds.document.handle import mirror
from shoal.kinds.document.state import yjs
from shoal.protocol import requests
from tests.node.conftest import Bench, Opener
from tests.node.writes.test_erasing import check_sound

MOST = 50


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yjs, "STRUCTS_MAX", MOST)


def keys(count: int) -> bytes:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    entries = doc.get("m", type=pycrdt.Map)
    for number in range(count):
        entries[f"k{number}"] = number
    return doc.get_update()


def deletions(count: int) -> bytes:
    """An update that deletes so many ranges of what `keys` puts."""
    return b"\x00" + yjs.pack_delete_set([(5, 2 * number, 1) for number in range(count)])


@pytest.mark.parametrize("together", [True, False])
async def test_an_update_with_too_many_items_is_refused_and_leaves_nothing(bench: Bench, together: bool) -> None:
    session = bench.node.session()
    update = keys(MOST + 1)
    asked = requests.Updates("crew", "doc", [update]) if together else requests.Update("crew", "doc", update, {"m": "map"})
    with pytest.raises(TooLarge, match="Send it in parts") as refused:
        await session.call(asked)
    assert refused.value.detail["items_max"] in range(MOST + 1)
    assert (await session.call(requests.ReadDocument("crew", "doc"))).roots == {}


async def test_updates_count_together(bench: Bench) -> None:
    session = bench.node.session()
    await session.call(requests.Updates("crew", "doc", [keys(MOST)]))
    few = deletions(1)
    await session.call(requests.Updates("crew", "doc", [few] * MOST))
    with pytest.raises(TooLarge):
        await session.call(requests.Updates("crew", "doc", [few] * (MOST + 1)))


async def test_deletions_count_as_items(bench: Bench) -> None:
    session = bench.node.session()
    for _ in range(3):  # They are new each time, but for those that are known.
        await session.call(requests.Updates("crew", "doc", [keys(MOST)]))
    with pytest.raises(TooLarge):
        await session.call(requests.Updates("crew", "doc", [deletions(MOST + 1)]))


def values(count: int, *, run: bool) -> bytes:
    """An update with so many values in one item: each an element, or all in one value."""
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    listed = [None] * count
    doc.get("l", type=pycrdt.Array).extend(listed if run else [listed])
    return doc.get_update()


@pytest.mark.parametrize("run", [True, False])
async def test_values_count_as_items(bench: Bench, run: bool) -> None:
    session = bench.node.session()
    most = (MOST - 1) * yjs.VALUES_PER_STRUCT
    await session.call(requests.Updates("crew", "one", [values(most, run=run)]))
    with pytest.raises(TooLarge):
        await session.call(requests.Updates("crew", "other", [values(most + 2 * yjs.VALUES_PER_STRUCT, run=run)]))
    with pytest.raises(TooLarge):
        await session.call(requests.Updates("crew", "more", [values(most, run=run), keys(MOST // 2)]))


async def test_a_mirror_sends_long_runs_in_pieces(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "STRUCTS_MAX", MOST)
    wanted = [float(number) for number in range(5 * MOST * yjs.VALUES_PER_STRUCT)]
    async with await bench.space.document("doc") as document:
        document.list("l").extend(wanted)
        await document.flush()
    shown = json.loads((await bench.node.session().call(requests.ReadDocumentJson("crew", "doc"))).json)
    assert shown["l"] == wanted


async def test_an_edit_by_a_node_may_bring_more(bench: Bench) -> None:
    session = bench.node.session()
    wanted = {"m": {f"k{number}": number for number in range(2 * MOST)}}
    for _ in range(2):
        await session.call(requests.Replace("crew", "doc", json.dumps(wanted).encode()))
    assert json.loads((await session.call(requests.ReadDocumentJson("crew", "doc"))).json) == wanted


async def test_a_mirror_sends_it_in_pieces(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "STRUCTS_MAX", MOST)
    async with await bench.space.document("doc") as document:
        entries = document.map("m")
        with document.transaction():
            for number in range(5 * MOST):
                entries[f"k{number}"] = number
        await document.flush()
    shown = json.loads((await bench.node.session().call(requests.ReadDocumentJson("crew", "doc"))).json)
    assert len(shown["m"]) == 5 * MOST


async def test_longer_values_that_an_older_node_stored_stay_readable(
    open_bench: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yjs, "STRUCTS_MAX", 1 << 20)
    before = open_bench()
    long = yjs.VALUE_PARTS_MAX + 1
    await before.node.session().call(requests.Update("crew", "doc", values(long, run=False), {"l": "array"}))
    monkeypatch.setattr(yjs, "STRUCTS_MAX", MOST)
    again = open_bench(before.storage.left_by_crash(None))
    shown = json.loads((await again.node.session().call(requests.ReadDocumentJson("crew", "doc"))).json)
    assert shown == {"l": [[None] * long]}
    await again.node.session().call(requests.Replace("crew", "doc", b'{"l": [1]}'))
    check_sound(again.storage)
