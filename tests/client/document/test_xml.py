"""XML in a mirror."""

from __future__ import annotations

from typing import Any

import pycrdt
import pytest

from shoal.errors import (
    InvalidValue,
    RootConflict,
)
from tests.client.document.conftest import FakeSession, Mirror, until

pytestmark = pytest.mark.virtual_time


def paragraph(*children: Any, **attributes: Any) -> dict[str, Any]:
    return {"tag": "paragraph", "attributes": attributes, "children": list(children)}


async def test_xml_is_edited_through_its_nodes_and_declared(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    body = document.xml("body")
    element = body.children.append(pycrdt.XmlElement("paragraph", {"align": "left"}, [pycrdt.XmlText("hello")]))
    element.children[0].insert(5, " world", {"strong": {}})
    await document.flush()
    assert session.requests[0].roots == {"body": "xml"}
    runs = [{"insert": "hello"}, {"insert": " world", "attributes": {"strong": {}}}]
    assert document.to_py() == {"body": [paragraph({"text": runs, "attributes": {}}, align="left")]}
    assert session.live.to_py() == document.to_py()
    with pytest.raises(RootConflict):
        document.text("body")


async def test_replacing_xml_edits_it_in_place(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    body = document.xml("body")
    document.replace({"body": [paragraph("one"), paragraph("two")]})
    first = body.children[0]
    await document.flush()
    document.replace({"body": [paragraph("one!", level=2), paragraph("two")]})
    assert str(first) == '<paragraph level="2">one!</paragraph>'
    await document.flush()
    assert session.live.to_py() == {"body": [paragraph("one!", level=2), paragraph("two")]}
    with pytest.raises(InvalidValue):
        document.replace({"body": [paragraph("none"), {"tag": 1}]})
    assert document.to_py() == session.live.to_py()


async def test_undo_of_xml_spares_the_changes_of_others(session: FakeSession, mirror: Mirror) -> None:
    ours, theirs = await mirror(undo=10), await mirror(author="ada")
    ours.xml("body").children.append(pycrdt.XmlElement("paragraph"))
    await ours.flush()
    await until(lambda: theirs.to_py() == ours.to_py())
    changes = ours.changes()
    theirs.xml("body").children[0].children.append("hi")
    await theirs.flush()
    change = await anext(changes)
    assert (change.author, change.kind, change.path, change.new) == ("ada", "insert", ("body", 0, "children", 0), ["hi"])
    assert ours.undo()
    assert ours.to_py() == {"body": []}
    assert ours.redo()
