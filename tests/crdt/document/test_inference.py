"""What a root is that nobody declared: told from how an update uses it."""

from __future__ import annotations

from typing import Any

import pycrdt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kinds.document.state import yjs
from shoal.kinds.document.state.structs import infer
from tests.support.edits import ACTIONS, AUTHORS, ROOTS, Step, play
from tests.support.examples import examples

STEPS = st.lists(st.builds(Step, st.integers(0, AUTHORS - 1), st.integers(0, ACTIONS - 1), st.integers(0, 23)), max_size=30)


def inferred(doc: pycrdt.Doc[Any], *known: str) -> dict[str, str]:
    return dict(infer(yjs.parse(doc.get_update()), known))


def with_root(kind: type[Any]) -> tuple[pycrdt.Doc[Any], Any]:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    return doc, doc.get("r", type=kind)


def test_keys_make_a_map() -> None:
    doc, root = with_root(pycrdt.Map)
    root["k"] = "text as a value"
    assert inferred(doc) == {"r": "map"}


@pytest.mark.parametrize("value", [1, "a string as a value", None, {"x": 1}, b"bytes", pycrdt.Map({"k": 1}), pycrdt.Text("t")])
def test_values_and_shared_types_make_an_array(value: Any) -> None:
    doc, root = with_root(pycrdt.Array)
    root.append(value)
    assert inferred(doc) == {"r": "array"}


def test_characters_make_a_text() -> None:
    doc, root = with_root(pycrdt.Text)
    root.insert(0, "é😀")
    assert inferred(doc) == {"r": "text"}


@pytest.mark.parametrize(
    "node", [pycrdt.XmlElement("p", {"a": "b"}, [pycrdt.XmlText("c")]), pycrdt.XmlText("t"), pycrdt.XmlText()]
)
def test_elements_and_texts_of_xml_make_xml(node: Any) -> None:
    doc, root = with_root(pycrdt.XmlFragment)
    root.children.append(node)
    root.children.append("more")
    del root.children[1]
    assert inferred(doc) == {"r": "xml"}


def test_xml_with_attributes_of_the_root_is_xml_and_no_map() -> None:
    # As Lexical's binding, for which the root is an XML text.
    doc, root = with_root(pycrdt.Map)
    root["__dir"] = "ltr"
    doc.get("r", type=pycrdt.XmlFragment).children.append(pycrdt.XmlText("t"))
    assert inferred(doc) == {"r": "xml"}


def test_a_text_that_embeds_xml_is_a_text() -> None:
    doc, root = with_root(pycrdt.Text)
    root.insert(0, "ab")
    root.insert_embed(1, pycrdt.Map({"k": 1}))
    doc.get("r", type=pycrdt.XmlFragment).children.append(pycrdt.XmlText("t"))
    assert inferred(doc) == {"r": "text"}


def test_fragments_of_xml_beside_values_make_an_array() -> None:
    doc, root = with_root(pycrdt.Array)
    root.append(pycrdt.XmlFragment())
    doc.get("r", type=pycrdt.XmlFragment).children.append(pycrdt.XmlText("t"))
    assert inferred(doc) == {"r": "array"}


def test_an_embedded_object_makes_a_text() -> None:
    doc, root = with_root(pycrdt.Text)
    root.insert_embed(0, {"image": "x"})
    assert inferred(doc) == {"r": "text"}


@pytest.mark.parametrize(
    ("kind", "first", "second", "expected"), [(pycrdt.Array, 1, 2, "array"), (pycrdt.Text, "a", "b", "text")]
)
def test_content_after_a_deleted_beginning_tells_the_kind(kind: type[Any], first: Any, second: Any, expected: str) -> None:
    doc, root = with_root(kind)
    root += [first, second] if kind is pycrdt.Array else first + second
    del root[0]
    root += [second] if kind is pycrdt.Array else second
    assert inferred(doc) == {"r": expected}


def test_where_everything_is_deleted_it_is_a_text() -> None:
    doc, root = with_root(pycrdt.Array)
    root.append(1)
    del root[0]
    assert inferred(doc) == {"r": "text"}


def test_a_known_root_is_not_inferred() -> None:
    doc, root = with_root(pycrdt.Array)
    root.append(1)
    assert inferred(doc, "r") == {}


def test_neighbours_that_lead_in_a_circle_tell_nothing() -> None:
    structs = {
        1: [yjs.Struct(0, 1, (), False, False, False, "r", 1), yjs.Struct(1, 1, ((2, 0),), False, False, False, None, 8)],
        2: [yjs.Struct(0, 1, ((1, 1),), False, False, False, None, 8)],
    }
    assert infer(yjs.Parsed(structs, [], frozenset(), frozenset({"r"})), ()) == {"r": "text"}


@examples(60)
@given(STEPS)
def test_a_whole_history_tells_what_shows(steps: list[Step]) -> None:
    """Of every root that shows something, in an update that holds all of it."""
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=0)
    for issued in play(steps):
        doc.apply_update(issued.update)
    found = inferred(doc)
    shown = {
        "m": len(doc.get("m", type=pycrdt.Map)),
        "a": len(doc.get("a", type=pycrdt.Array)),
        "t": len(str(doc.get("t", type=pycrdt.Text))),
    }
    assert {name: found[name] for name, size in shown.items() if size} == {name: ROOTS[name] for name in shown if shown[name]}
