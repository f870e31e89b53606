"""Many items in one list of a document: those that must be asked for one by one take time that grows with the square of their
number, so a node refuses it.
"""

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

MOST = 100  # Bytes in one list that can be shown here.


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "WALKED_MAX", MOST * (MOST + 2))
    monkeypatch.setattr(content, "_READ_AS_TEXT", 1 << 20)


def filled(kind: str, count: int) -> bytes:
    """The update of a client that puts so many bytes, objects or elements of XML into the root "l"."""
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    if kind == "xml":
        children = doc.get("l", type=pycrdt.XmlFragment).children
        for _ in range(count):
            children.append(pycrdt.XmlElement("p"))
        return doc.get_update()
    items = doc.get("l", type=pycrdt.Array)
    if kind == "inside":
        items.append(pycrdt.Map({"k": pycrdt.Array()}))
        items = items[0]["k"]
    for _ in range(count):
        items.insert(0, pycrdt.Map() if kind == "objects" else b"a")
    return doc.get_update()


@pytest.mark.parametrize("kind", ["array", "inside"])
@pytest.mark.parametrize("request_", ["read", "replace", "test"])
async def test_a_document_of_too_many_bytes_in_one_list_is_not_shown(bench: Bench, kind: str, request_: str) -> None:
    session = bench.node.session()
    asked = {
        "read": requests.ReadDocumentJson("crew", "doc"),
        "replace": requests.Replace("crew", "doc", json.dumps({"l": []}).encode()),
        "test": requests.Patch("crew", "doc", json.dumps([{"op": "test", "path": "/l", "value": []}]).encode()),
    }[request_]
    await session.call(requests.Updates("crew", "doc", [filled(kind, 2 * MOST)]))
    with pytest.raises(TooLarge, match="too many steps"):
        await session.call(asked)
    found = await session.call(requests.ReadDocument("crew", "doc"))  # A mirror, or Yjs, still opens it.
    assert len(found.update) > MOST


@pytest.mark.parametrize(("kind", "count"), [("array", MOST), ("inside", MOST - 2), ("objects", 20 * MOST), ("xml", 20 * MOST)])
async def test_as_many_as_can_be_shown_are_shown(bench: Bench, kind: str, count: int) -> None:
    session = bench.node.session()
    await session.call(requests.Updates("crew", "doc", [filled(kind, count)]))
    shown = json.loads((await session.call(requests.ReadDocumentJson("crew", "doc"))).json)["l"]
    assert len(shown[0]["k"] if kind == "inside" else shown) == count


async def test_a_patch_that_puts_too_many_writes_nothing(bench: Bench) -> None:
    session = bench.node.session()
    await session.call(requests.Updates("crew", "doc", [filled("objects", 20 * MOST)]))
    before = (await session.call(requests.ReadDocumentJson("crew", "doc"))).json
    with pytest.raises(TooLarge, match="Nothing was written"):
        await session.call(
            requests.Patch("crew", "doc", json.dumps([{"op": "add", "path": "/l/-", "value": {}}] * 20).encode())
        )
    assert (await session.call(requests.ReadDocumentJson("crew", "doc"))).json == before


def test_plain_values_are_shown_however_many_there_are() -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    doc.get("l", type=pycrdt.Array).extend([1, "a", None, [], {"k": True}] * MOST)
    live = LiveDocument(bytes_max=1 << 20, roots_max=1, updates=[doc.get_update()], roots={"l": "array"})
    assert len(live.to_py()["l"]) == 5 * MOST


def test_replicas_of_a_document_that_cannot_be_shown_are_compared_all_the_same() -> None:
    update = filled("array", 2 * MOST)
    one, other, less = (
        LiveDocument(bytes_max=1 << 20, roots_max=1, updates=updates, roots={"l": "array"})
        for updates in ([update], [update], [filled("array", 2 * MOST + 1)])
    )
    assert one.canonical() == other.canonical() != less.canonical()
