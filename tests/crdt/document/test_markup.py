"""XML edited in place: what was wanted, and as little else as can be."""

from __future__ import annotations

from typing import Any

import pycrdt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidValue, RootConflict, TooLarge
from shoal.kinds.document.state.content import open_root, to_py
from shoal.kinds.document.state.editing import VALUES_MAX, Editor, on_copy
from shoal.kinds.document.state.live import EMPTY, LiveDocument
from shoal.kinds.document.state.markup import normal
from tests.support.examples import examples

WORDS = st.text("abé😀", max_size=5)
FORMATS = st.sampled_from([{}, {"b": True}, {"i": {}}, {"b": True, "i": {"x": [1, None]}}])
RUNS = st.fixed_dictionaries({"insert": WORDS | st.just({"image": 1})}, optional={"attributes": FORMATS})
ATTRIBUTES = st.dictionaries(st.sampled_from(["id", "level", "z"]), st.sampled_from([1, "s", None, {"x": [b"y"]}]), max_size=2)
TEXTS = WORDS | st.fixed_dictionaries({"text": st.lists(RUNS, max_size=4)}, optional={"attributes": ATTRIBUTES})
NODES = st.recursive(
    TEXTS,
    lambda inside: st.fixed_dictionaries(
        {"tag": st.sampled_from("ph")}, optional={"attributes": ATTRIBUTES, "children": st.lists(inside, max_size=4)}
    ),
    max_leaves=12,
)
TREES = st.lists(NODES, max_size=4)


def p(*children: Any, **attributes: Any) -> dict[str, Any]:
    return {"tag": "p", "attributes": attributes, "children": list(children)}


class Shared:
    """A document with a root of XML, edited as a node does it: each time under another client id."""

    def __init__(self, content: Any = None) -> None:
        self.live = LiveDocument(bytes_max=1 << 20, roots_max=4, roots={"x": "xml"})
        self.clients = 1
        if content is not None:
            self.replace(content)

    def update(self, content: Any) -> bytes:
        """Of an edit that is not applied yet."""
        self.clients += 1
        kinds = self.live.roots
        return on_copy(self.live, lambda doc, _: Editor().replace(doc, kinds, {"x": content}), client_id=self.clients).update

    def replace(self, content: Any) -> bytes:
        update = self.update(content)
        self.live.integrate(update, {})
        return update

    def both(self, one: Any, other: Any) -> Any:
        """Two edits that do not know of each other."""
        for update in [self.update(one), self.update(other)]:
            self.live.integrate(update, {})
        return self.live.to_py()["x"]


@examples(120)
@given(st.lists(TREES, max_size=4))
def test_wanted_members_are_there_and_wanting_twice_changes_nothing(contents: list[Any]) -> None:
    shared = Shared()
    for content in contents:
        shared.replace(content)
        assert shared.live.to_py()["x"] == normal(content, lambda value: None)
        assert shared.replace(content) == EMPTY


def test_two_paragraphs_edited_at_once_keep_both_edits() -> None:
    shared = Shared([p("one"), p("two")])
    assert shared.both([p("one!"), p("two")], [p("one"), p("two?")]) == [p("one!"), p("two?")]


@pytest.mark.answers("rich-text-editor-overwrites-what-others-type")
def test_characters_formats_and_attributes_of_one_paragraph_edited_at_once_all_stay() -> None:
    shared = Shared([p("hello world", align="left")])
    bold = [p({"text": [{"insert": "hello", "attributes": {"strong": {}}}, {"insert": " world"}]}, align="left")]
    assert shared.both(bold, [p("hello big world", align="right")]) == [
        p(
            {"text": [{"insert": "hello", "attributes": {"strong": {}}}, {"insert": " big world"}], "attributes": {}},
            align="right",
        )
    ]


def test_elements_with_an_id_are_the_same_wherever_they_are() -> None:
    shared = Shared([p("a", id="1"), p("b", id="2")])
    # One puts a block before it, the other edits it.
    assert shared.both([p("new", id="0"), p("a", id="1"), p("b", id="2")], [p("a", id="1"), p("b!", id="2")]) == [
        p("new", id="0"),
        p("a", id="1"),
        p("b!", id="2"),
    ]


def test_wanted_runs_of_equal_formats_are_one() -> None:
    runs = [{"insert": character, "attributes": {"b": True}} for character in "ab"]
    joined = {"insert": "ab", "attributes": {"b": True}}
    assert normal([{"text": runs}], lambda value: None) == [{"text": [joined], "attributes": {}}]


def test_an_element_of_another_id_is_another_element() -> None:
    assert Shared([p("a", id=1)]).both([p("a", id=2)], [p("a late", id=1)]) == [p("a", id=2)]


def test_an_element_that_only_changes_its_text_stays_the_same_element() -> None:
    shared = Shared([p("a"), {"tag": "h", "children": ["b"]}])
    before = shared.live.clients
    update = shared.replace([p("ab"), {"tag": "h", "children": ["b"]}])
    assert len(update) < 30, "no element was made anew"
    assert len(shared.live.clients) == len(before) + 1


def test_an_insertion_beside_a_format_stays_plain() -> None:
    bold = {"insert": "b", "attributes": {"strong": True}}
    shared = Shared([{"text": [bold]}])
    wanted = [{"text": [{"insert": "x"}, bold, {"insert": "y"}, {"insert": {"image": 1}}], "attributes": {}}]
    shared.replace(wanted)
    assert shared.live.to_py()["x"] == wanted


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ([1], "a node of XML is"),
        ([{"children": []}], "a node of XML is"),
        ([{"tag": 1}], "a node of XML is"),
        ([{"tag": "p", "color": 1}], "a node of XML is"),
        ([{"tag": "p", "attributes": []}], "attributes"),
        ([{"tag": "p", "children": "text"}], "array of nodes"),
        ([{"tag": "p", "attributes": {"n": 2**60}}], "rounded"),
        ([{"text": [{"shared": {}}]}], "runs"),
        ([{"text": [{"insert": "a", "attributes": {"b": None}}]}], "nulls"),
        ([{"text": [{"insert": {"b": b"x"}}]}], "JSON"),
        ([{"text": [{"insert": "a", "attributes": {"b": float("nan")}}]}], "JSON"),
        (["\ud800"], "surrogate"),
    ],
)
def test_malformed_xml_is_refused_and_edits_nothing(wanted: Any, why: str) -> None:
    shared = Shared([p("a")])
    doc = shared.live.fork(client_id=99)
    before = doc.get_state()
    with pytest.raises(InvalidValue, match=why):
        Editor().replace(doc, {"x": "xml"}, {"x": [p("b"), *wanted]})
    assert doc.get_state() == before


def test_xml_that_nests_too_deep_or_holds_too_much_is_refused() -> None:
    deep: Any = p()
    for _ in range(65):
        deep = p(deep)
    with pytest.raises(InvalidValue, match="nested deeper"):
        Shared([deep])
    with pytest.raises(TooLarge):
        Shared(["a"] * (VALUES_MAX + 1))


def test_another_clients_embedded_value_may_stay() -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=1)
    root = open_root(doc, "x", "xml")
    root.children.append(pycrdt.XmlText("ab")).insert_embed(1, pycrdt.Map({"k": 1}))
    before = doc.get_state()
    Editor().replace(doc, {"x": "xml"}, {"x": to_py(root)})
    assert doc.get_state() == before
    with pytest.raises(InvalidValue):
        Editor().replace(doc, {"x": "xml"}, {"x": [*to_py(root), "more"]})


def test_a_new_root_is_an_array_and_no_root_changes_its_kind() -> None:
    live = LiveDocument(bytes_max=1 << 20, roots_max=4)
    assert on_copy(live, lambda doc, _: Editor().replace(doc, {}, {"n": [p("a")]}), client_id=2).roots == {"n": "array"}
    with pytest.raises(RootConflict):
        Shared().replace("a string")


def test_a_fragment_within_a_map_is_edited_in_place() -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=1)
    entries: pycrdt.Map[Any] = doc.get("m", type=pycrdt.Map)
    entries["page"] = pycrdt.XmlFragment([pycrdt.XmlElement("p", contents=[pycrdt.XmlText("a")])])
    Editor().replace(doc, {"m": "map"}, {"m": {"page": [p("a!")]}})
    assert isinstance(entries["page"], pycrdt.XmlFragment)
    assert to_py(entries) == {"page": [p("a!")]}
    Editor().replace(doc, {"m": "map"}, {"m": {"page": [1]}})
    assert to_py(entries) == {"page": [1]}


def test_xml_that_holds_what_is_no_node_is_not_edited_by_its_places() -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=1)
    root = open_root(doc, "x", "xml")
    root.children.append("a")
    doc.get("x", type=pycrdt.Array).insert(0, "a value")
    with pytest.raises(InvalidValue, match="cannot be addressed by index"):
        Editor().replace(doc, {"x": "xml"}, {"x": ["b"]})
