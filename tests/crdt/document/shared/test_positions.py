"""Positions in texts are characters: a Python string beside each text tells what an edit must do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pycrdt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kinds.document.shared.doc import Doc
from shoal.kinds.document.state.content import open_root
from tests.support.examples import examples

KINDS = ("text", "text in a map", "text in an array", "XML")
PIECES = st.sampled_from(["a", "é", "中文", "📊", "👩‍👩‍👧", "e\u0301", "\r\n", "", "größe", "𝔘b", "\x00"])
PLACES = st.integers(-12, 12)
EDITS = st.lists(
    st.tuples(st.sampled_from(["insert", "delete", "slice", "set", "append", "format", "other"]), PLACES, PLACES, PIECES),
    max_size=12,
)


def made(doc: Doc, kind: str) -> Any:
    """A new text of a kind."""
    if kind == "text":
        return open_root(doc, "t", "text")
    if kind == "XML":
        paragraph = open_root(doc, "x", "xml").children.append(
            pycrdt.XmlElement("p", {}, [pycrdt.XmlText(""), pycrdt.XmlText("")])
        )
        return paragraph.children[1]
    parent = open_root(doc, "m", "map" if kind == "text in a map" else "array")
    if kind == "text in a map":
        parent["t"] = pycrdt.Text("")
        return parent["t"]
    parent.append(pycrdt.Text(""))
    return parent[0]


def outcome(edit: Callable[[], Any]) -> Any:
    """The class of the error of an edit, or None."""
    try:
        edit()
    except (IndexError, TypeError) as error:
        return type(error)
    return None


def edited(text: Any, model: list[str], how: str, first: int, second: int, piece: str) -> tuple[Any, Any]:
    """Do one edit to a text and to a list of characters; what each of them raised."""
    if how == "insert":
        legal = -len(model) <= first <= len(model)
        if legal:
            place = first + len(model) if first < 0 else first
            model[place:place] = piece
        return outcome(lambda: text.insert(first, piece)), None if legal else IndexError
    if how == "delete":
        return outcome(lambda: text.__delitem__(first)), outcome(lambda: model.__delitem__(first))
    if how == "slice":
        return outcome(lambda: text.__delitem__(slice(first, second))), outcome(lambda: model.__delitem__(slice(first, second)))
    if how == "format":
        return outcome(lambda: text.format(first, second, {"strong": True})), None
    if how == "set" and isinstance(text, pycrdt.Text):
        start, stop, _ = slice(first, second).indices(len(model))
        model[start : max(start, stop)] = piece
        return outcome(lambda: text.__setitem__(slice(first, second), piece)), None
    text += piece
    model += piece
    return None, None


@pytest.mark.parametrize("kind", KINDS)
@given(steps=EDITS)
@examples(60)
def test_a_text_is_edited_as_a_string_is(kind: str, steps: list[Any]) -> None:
    doc = Doc(client_id=1)
    other: pycrdt.Doc[Any] = pycrdt.Doc(client_id=2)
    text, model = made(doc, kind), list[str]()
    for how, first, second, piece in steps:
        if how == "other":
            concurrent(doc, other, kind, piece)
            model = list(str(plain(text)))
            continue
        raised, wanted = edited(text, model, how, first, second, piece)
        assert raised == wanted
        assert plain(text) == "".join(model)
        assert len(text) == len(model)
        assert [text[at] for at in range(-len(model), len(model))] == model + model
        assert text[first:second] == "".join(model[first:second])
    assert again(doc, kind) == "".join(model)


def plain(text: Any) -> str:
    """The characters of a text, without formats."""
    return "".join(chunk for chunk, _ in text.diff())


def concurrent(doc: Doc, other: pycrdt.Doc[Any], kind: str, piece: str) -> None:
    """Another editor, with pycrdt alone, edits at the beginning and the end while this one edits, and they meet."""
    other.apply_update(doc.get_update())
    theirs = found(other, kind)
    theirs.insert(0, piece)
    theirs.insert(len(theirs), piece)
    found(doc, kind).insert(0, "我")
    doc.apply_update(other.get_update())


def found(doc: pycrdt.Doc[Any], kind: str) -> Any:
    """The text of a document that has one."""
    if kind == "text":
        return doc.get("t", type=pycrdt.Text)
    if kind == "XML":
        return doc.get("x", type=pycrdt.XmlFragment).children[0].children[1]
    return doc.get("m", type=pycrdt.Map)["t"] if kind == "text in a map" else doc.get("m", type=pycrdt.Array)[0]


def again(doc: Doc, kind: str) -> str:
    """The text of a document that has received its update."""
    copy: pycrdt.Doc[Any] = pycrdt.Doc()
    copy.apply_update(doc.get_update())
    return plain(found(copy, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_position_is_told_in_pythons_manner(kind: str) -> None:
    text = made(Doc(), kind)
    text += "aé📊"
    for place in (4, -4, 99, 2**70):
        with pytest.raises(IndexError, match="outside of the text, which has length 3"):
            text.insert(place, "x")
        with pytest.raises(IndexError, match="outside"):
            del text[place]
    for wrong in ("1", 1.0, None):
        with pytest.raises(TypeError, match="a position in a text is an integer"):
            text.insert(wrong, "x")
    with pytest.raises(TypeError, match="no step"):
        del text[::2]
    with pytest.raises(TypeError, match="strings"):
        text.insert(0, 5)
    assert str(text) == "aé📊"


@pytest.mark.parametrize("kind", KINDS)
def test_an_embedded_object_is_one_position(kind: str) -> None:
    text = made(Doc(), kind)
    text += "éa"
    text.insert_embed(1, {"image": "中.png"})
    assert (len(text), text[1], text[:]) == (3, "\ufffc", "é\ufffca")
    text.insert(2, "📊")
    assert text.diff() == [("é", None), ({"image": "中.png"}, None), ("📊a", None)]
    text.format(1, 3, {"strong": True})
    del text[1]
    assert text.diff() == [("é", None), ("📊", {"strong": True}), ("a", None)]


@pytest.mark.parametrize("kind", KINDS[:3])
@given(before=st.text(max_size=8), piece=PIECES, data=st.data())
@examples(40)
def test_an_index_sticks_to_its_character(kind: str, before: str, piece: str, data: Any) -> None:
    text = made(Doc(client_id=1), kind)
    for each in reversed(before):  # Several items.
        text.insert(0, each)
    text += "é" + before
    at = data.draw(st.integers(0, len(text) - 1))
    place = data.draw(st.integers(0, len(text)))
    stuck = text.sticky_index(at)
    assert stuck.get_index() == at
    text.insert(place, piece)
    assert stuck.get_index() == at + (len(piece) if place <= at else 0)
    assert text.index_of(pycrdt.StickyIndex.decode(stuck.encode(), text)) == stuck.get_index()
    assert all(text.sticky_index(each, pycrdt.Assoc.BEFORE).get_index() == each for each in range(len(text) + 1))
    del text[stuck.get_index()]
    assert stuck.get_index() == at + (len(piece) if place <= at else 0)
    with pytest.raises(IndexError, match="after the end"):
        text.sticky_index(len(text))


@pytest.mark.parametrize("kind", KINDS)
@given(steps=EDITS)
@examples(40)
def test_an_observed_event_counts_characters(kind: str, steps: list[Any]) -> None:
    doc = Doc(client_id=1)
    other: pycrdt.Doc[Any] = pycrdt.Doc(client_id=2)
    text, model = made(doc, kind), list[str]()
    copy: list[str] = []

    def follow(event: Any) -> None:
        at = 0
        for step in event.delta:
            if "retain" in step:
                at += step["retain"]
            elif "delete" in step:
                del copy[at : at + step["delete"]]
            else:
                copy[at:at] = step["insert"]
                at += len(step["insert"])

    text.observe(follow)
    for how, first, second, piece in steps:
        if how == "other":
            concurrent(doc, other, kind, piece)
        else:
            edited(text, model, how, first, second, piece)
            model = list(plain(text))
        assert "".join(copy) == plain(text)


def test_documents_made_with_pycrdt_count_as_others() -> None:
    doc = Doc()
    mine = pycrdt.XmlText("größe")
    page = open_root(doc, "x", "xml")
    page.children.append(pycrdt.XmlElement("p", {}, [mine]))
    mine.insert(3, "|")
    note = pycrdt.Text("größe")
    open_root(doc, "m", "map")["inside"] = pycrdt.Map({"list": pycrdt.Array([note])})
    note.insert(3, "|")
    root = doc.get("r", type=pycrdt.Text)
    root += "größe"
    del root[2:4]
    assert (str(mine), str(note), str(root)) == ("grö|ße", "grö|ße", "gre")
    assert len(page.children[0].children[0]) == len(doc["m"]["inside"]["list"][0]) == 6
    assert len(page.children[0].children[0].parent.children[0]) == 6


def test_a_class_derived_from_pycrdts_is_refused() -> None:
    class Counted(pycrdt.Text):
        pass

    with pytest.raises(Exception, match="Counted is derived"):
        open_root(Doc(), "m", "map")["t"] = Counted("x")


def test_deep_events_are_refused_with_what_to_use() -> None:
    with pytest.raises(Exception, match="changes"):
        open_root(Doc(), "m", "map").observe_deep(lambda events: None)


def test_events_of_a_text_with_content_count_characters() -> None:
    text, told = open_root(Doc(), "t", "text"), list[Any]()
    text += "📊a"
    text.observe(lambda event: told.append(list(event.delta)))
    text.insert(1, "b")
    assert told == [[{"retain": 1}, {"insert": "b"}]]
