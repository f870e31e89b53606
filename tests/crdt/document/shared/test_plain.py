"""Whatever is put into a document is stored, and every node takes it, or it is refused before anything is edited."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pycrdt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidValue
from shoal.kinds.document.shared.doc import Doc
from shoal.kinds.document.state.content import open_root, to_py
from shoal.kinds.document.state.live import LiveDocument
from tests.support.examples import examples

KINDS: dict[str, Any] = {"m": "map", "a": "array", "t": "text", "x": "xml"}
KEYS = st.text(max_size=3) | st.just("\ud800") | st.integers() | st.none() | st.binary(max_size=2)
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**80), 2**80),
    st.floats(),
    st.text(max_size=4),
    st.just("\ud800"),
    st.binary(max_size=3),
    st.sampled_from([object(), Decimal(1), {1, 2}, frozenset(), bytearray(b"x"), 1j, range(3), pycrdt.Doc, len]),
    st.builds(pycrdt.Doc),
)


def _inside(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    many, named = st.lists(values, max_size=3), st.dictionaries(KEYS, values, max_size=3)
    return st.one_of(
        many,
        many.map(tuple),
        named,
        st.builds(pycrdt.Map, named),
        st.builds(pycrdt.Array, many),
        st.builds(pycrdt.Text, values),
        st.builds(pycrdt.XmlText, values),
        st.builds(pycrdt.XmlFragment, many),
        st.builds(pycrdt.XmlElement, values.filter(lambda tag: tag is not None), named, many),
    )


ANYTHING = st.recursive(PLAIN, _inside, max_leaves=6)

PUTS: dict[str, Callable[[dict[str, Any], Any, Any], Any]] = {
    "a map's value": lambda roots, key, value: roots["m"].__setitem__("k", value),
    "a map's key": lambda roots, key, value: roots["m"].__setitem__(key, 1),
    "update": lambda roots, key, value: roots["m"].update({"one": 1, key: value}),
    "an element": lambda roots, key, value: roots["a"].append(value),
    "elements": lambda roots, key, value: roots["a"].extend([1, value]),
    "in the place of an element": lambda roots, key, value: roots["a"].__setitem__(slice(0, 1), [value]),
    "a string": lambda roots, key, value: roots["t"].insert(0, value),
    "more text": lambda roots, key, value: roots["t"].__iadd__(value),
    "a format": lambda roots, key, value: roots["t"].insert(0, "x", {"b": value}),
    "formats": lambda roots, key, value: roots["t"].format(0, 2, {key: value}),
    "an object": lambda roots, key, value: roots["t"].insert_embed(0, value, {key: value}),
    "a node": lambda roots, key, value: roots["x"].children.append(value),
    "an attribute": lambda roots, key, value: roots["x"].children[0].attributes.__setitem__(key, value),
    "in XML's text": lambda roots, key, value: roots["x"].children[0].children[0].insert_embed(0, value),
}


def begun() -> tuple[Doc, dict[str, Any]]:
    doc = Doc(client_id=1)
    roots = {name: open_root(doc, name, kind) for name, kind in KINDS.items()}
    roots["a"].append(0)
    roots["t"] += "two"
    roots["x"].children.append(pycrdt.XmlElement("p", {}, [pycrdt.XmlText("é")]))
    return doc, roots


@pytest.mark.parametrize("how", PUTS)
@given(key=KEYS, value=ANYTHING)
@examples(120)
def test_a_value_is_stored_for_all_or_refused(how: str, key: Any, value: Any) -> None:
    doc, roots = begun()
    before = doc.get_update()
    try:
        PUTS[how](roots, key, value)
    except (InvalidValue, TypeError):
        if how not in ("update", "elements"):  # Those put one after the other.
            assert doc.get_update() == before
    assert not doc.broken
    live = LiveDocument(bytes_max=1 << 20, roots_max=8)
    live.integrate(doc.get_update(), KINDS)
    assert live.to_py().keys() == {name: to_py(root) for name, root in roots.items()}.keys()


def test_the_error_says_what_cannot_be_held() -> None:
    _, roots = begun()
    for value, told in (
        ({1: 2}, "keys must be strings, not 1"),
        (2**70, "64 bits"),
        ([object()], "cannot hold a value of type object"),
        ("\ud800", "lone surrogate"),
        (pycrdt.Map({"a": 2**70}), "64 bits"),
        ({"a": pycrdt.Map()}, r"Put it into a pycrdt\.Map"),
        (roots["t"], "is in a document already"),
    ):
        with pytest.raises(InvalidValue, match=told):
            roots["m"]["k"] = value
    assert to_py(roots["m"]) == {}


@pytest.mark.parametrize("index", [9, -9, 2**70])
def test_an_index_outside_of_an_array_is_an_index_error(index: int) -> None:
    _, roots = begun()
    array, nodes = roots["a"], roots["x"].children
    edits: list[Callable[[], Any]] = [
        lambda: array.insert(index, 1),
        lambda: array[index],
        lambda: array.__delitem__(index),
        lambda: array.sticky_index(index),
        lambda: nodes.insert(index, "x"),
        lambda: nodes[index],
        lambda: nodes.__delitem__(index),
    ]
    for edit in edits:
        with pytest.raises(IndexError, match="outside"):
            edit()


@given(
    items=st.lists(st.integers(0, 9), max_size=6), start=st.integers(-9, 9), stop=st.integers(-9, 9), new=st.lists(st.just(7))
)
@examples(60)
def test_slices_of_arrays_and_nodes_are_those_of_lists(items: list[int], start: int, stop: int, new: list[int]) -> None:
    doc = Doc()
    array, nodes = open_root(doc, "a", "array"), open_root(doc, "x", "xml").children
    array.extend(items)
    for each in items:
        nodes.append(str(each))
    assert array[start:stop:2] == items[start:stop:2]
    wanted = list(items)
    del wanted[start:stop]
    del nodes[start:stop]
    assert [str(node) for node in nodes] == [str(each) for each in wanted]
    wanted = list(items)
    wanted[start:stop] = new
    array[start:stop] = new
    assert to_py(array) == wanted
