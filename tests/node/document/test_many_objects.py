"""Many objects in one list of a document: showing them takes time that grows with the square, so a node refuses it."""

from __future__ import annotations

import json
from typing import Any

import pycrdt
import pytest

from shoal.errors import TooLarge
from shoal.kinds.document.state import content
from shoal.kinds.document.state.live import LiveDocument
from shoal.protocol import requests
from tests.node.conftest import Bench

MOST = 100  # Objects in one list that can be shown here.


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "WALKED_MAX", MOST * (MOST - 1) // 2)


def filled(kind: str, count: int) -> bytes:
    """The update of a client that puts so many objects, or elements of XML, into the root "l"."""
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    if kind == "xml":
        children = doc.get("l", type=pycrdt.XmlFragment).children
        for _ in range(count):
            children.append(pycrdt.XmlElement("p"))
    elif kind == "inside":
        doc.get("l", type=pycrdt.Array).append(pycrdt.Map({"k": pycrdt.Array([pycrdt.Map() for _ in range(count)])}))
    else:
        doc.get("l", type=pycrdt.Array).extend([pycrdt.Map() for _ in range(count)])
    return doc.get_update()


@pytest.mark.parametrize("kind", ["array", "xml", "inside"])
@pytest.mark.parametrize("request_", ["read", "replace", "test"])
async def test_a_document_of_too_many_objects_in_one_list_is_not_shown(bench: Bench, kind: str, request_: str) -> None:
    session = bench.node.session()
    asked = {
        "read": requests.ReadDocumentJson("crew", "doc"),
        "replace": requests.Replace("crew", "doc", json.dumps({"l": []}).encode()),
        "test": requests.Patch("crew", "doc", json.dumps([{"op": "test", "path": "/l", "value": []}]).encode()),
    }[request_]
    await session.call(requests.Updates("crew", "doc", [filled(kind, MOST + 1)]))
    with pytest.raises(TooLarge, match="too many objects"):
        await session.call(asked)
    found = await session.call(requests.ReadDocument("crew", "doc"))  # A mirror, or Yjs, still opens it.
    assert len(found.update) > MOST


@pytest.mark.parametrize("kind", ["array", "xml", "inside"])
async def test_as_many_as_can_be_shown_are_shown(bench: Bench, kind: str) -> None:
    session = bench.node.session()
    await session.call(requests.Updates("crew", "doc", [filled(kind, MOST)]))
    shown = json.loads((await session.call(requests.ReadDocumentJson("crew", "doc"))).json)["l"]
    assert len(shown[0]["k"] if kind == "inside" else shown) == MOST


async def test_a_patch_that_puts_too_many_writes_nothing(bench: Bench) -> None:
    session = bench.node.session()
    await session.call(requests.Replace("crew", "doc", json.dumps({"l": [{}] * MOST}).encode()))
    before = (await session.call(requests.ReadDocumentJson("crew", "doc"))).json
    with pytest.raises(TooLarge, match="Nothing was written"):
        await session.call(requests.Patch("crew", "doc", json.dumps([{"op": "add", "path": "/l/-", "value": {}}]).encode()))
    assert (await session.call(requests.ReadDocumentJson("crew", "doc"))).json == before


def test_plain_values_are_shown_however_many_there_are() -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    doc.get("l", type=pycrdt.Array).extend([1, "a", None, [], {"k": True}] * MOST)
    live = LiveDocument(bytes_max=1 << 20, roots_max=1, updates=[doc.get_update()], roots={"l": "array"})
    assert len(live.to_py()["l"]) == 5 * MOST


def test_replicas_of_a_document_that_cannot_be_shown_are_compared_all_the_same() -> None:
    update = filled("array", MOST + 1)
    one, other, less = (
        LiveDocument(bytes_max=1 << 20, roots_max=1, updates=updates, roots={"l": "array"})
        for updates in ([update], [update], [filled("array", MOST + 2)])
    )
    assert one.canonical() == other.canonical() != less.canonical()
