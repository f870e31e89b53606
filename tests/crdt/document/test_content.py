"""What the roots of a document show, XML above all: all of it, alike everywhere."""

from __future__ import annotations

from typing import Any

import pycrdt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kinds.document.shared.doc import Doc
from shoal.kinds.document.state.content import open_root, to_py
from shoal.kinds.document.state.editing import Editor
from tests.support.edits import ACTIONS, AUTHORS, Step, play
from tests.support.examples import examples

STEPS = st.lists(st.builds(Step, st.integers(0, AUTHORS - 1), st.integers(8, ACTIONS - 1), st.integers(0, 23)), max_size=30)


def fragment(client_id: int = 1) -> tuple[pycrdt.Doc[Any], pycrdt.XmlFragment]:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=client_id)
    return doc, doc.get("x", type=pycrdt.XmlFragment)


def test_elements_show_their_tag_attributes_and_children() -> None:
    _, root = fragment()
    heading = root.children.append(pycrdt.XmlElement("heading", {"id": "a"}, [pycrdt.XmlText("Title")]))
    heading.attributes["level"] = 2
    heading.attributes["data"] = {"b": [b"x", None]}
    root.children.append(pycrdt.XmlElement("rule"))
    assert to_py(root) == [
        {"tag": "heading", "attributes": {"data": {"b": [b"x", None]}, "id": "a", "level": 2}, "children": ["Title"]},
        {"tag": "rule", "attributes": {}, "children": []},
    ]


def test_a_text_with_formats_embedded_objects_or_attributes_shows_runs() -> None:
    _, root = fragment()
    text = root.children.append(pycrdt.XmlText("plain bold"))
    text.format(6, 10, {"strong": {}})
    text.insert_embed(0, {"image": "a.png"}, {"width": 3})
    text.attributes["lang"] = "en"
    assert to_py(root) == [
        {
            "text": [
                {"insert": {"image": "a.png"}, "attributes": {"width": 3}},
                {"insert": "plain "},
                {"insert": "bold", "attributes": {"strong": {}}},
            ],
            "attributes": {"lang": "en"},
        }
    ]


def test_a_text_of_characters_shows_its_attributes() -> None:
    _, root = fragment()
    root.children.append(pycrdt.XmlText("plain")).attributes["lang"] = "en"
    assert to_py(root) == [{"text": [{"insert": "plain"}], "attributes": {"lang": "en"}}]


def test_runs_of_equal_formats_are_one_however_they_were_typed() -> None:
    _, root = fragment()
    text = root.children.append(pycrdt.XmlText())
    for character in "dcba":
        text.insert(0, character, {"em": True})
    text.insert(4, "!", {"em": True, "strong": True})
    text.format(4, 5, {"strong": None})
    assert to_py(root) == [{"text": [{"insert": "abcd!", "attributes": {"em": True}}], "attributes": {}}]


def test_adjoining_texts_stay_apart() -> None:
    _, root = fragment()
    root.children.append("a")
    root.children.append("")
    root.children.append("b")
    assert to_py(root) == ["a", "", "b"]


def test_xml_within_a_map_and_an_array_is_shown() -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=1)
    entries: pycrdt.Map[Any] = doc.get("m", type=pycrdt.Map)
    entries["page"] = pycrdt.XmlFragment([pycrdt.XmlElement("p", contents=[pycrdt.XmlText("t")])])
    entries["pages"] = pycrdt.Array([pycrdt.XmlFragment()])
    assert to_py(entries) == {"page": [{"tag": "p", "attributes": {}, "children": ["t"]}], "pages": [[]]}


def test_a_shared_type_embedded_in_a_text_is_told_apart_from_an_object() -> None:
    _, root = fragment()
    text = root.children.append(pycrdt.XmlText("ab"))
    text.insert_embed(1, pycrdt.Map({"k": 1}))
    assert to_py(root) == [{"text": [{"insert": "a"}, {"shared": {"k": 1}}, {"insert": "b"}], "attributes": {}}]


@examples(80)
@given(STEPS)
def test_xml_made_anew_of_what_is_shown_shows_the_same(steps: list[Step]) -> None:
    doc, root = fragment()
    for issued in play(steps):
        doc.apply_update(issued.update)
    other, copy = fragment(2)
    with other.transaction():
        Editor().replace(other, {"x": "xml"}, {"x": to_py(root)})
    assert to_py(copy) == to_py(root)


def test_an_array_is_read_in_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    doc = Doc()
    array = open_root(doc, "l", "array")
    array.extend([*range(500), [1, 2], {"a": "b"}])
    begun: list[Any] = []
    transaction = Doc.transaction

    def counted(self: Doc, origin: Any = None) -> Any:
        begun.append(origin)
        return transaction(self, origin)

    monkeypatch.setattr(Doc, "transaction", counted)
    assert to_py(array) == [*range(500), [1, 2], {"a": "b"}]
    assert len(begun) < 20  # It was four for each element: an array of 10,000 held the loop for half a second.
