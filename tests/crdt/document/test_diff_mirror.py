"""The copy that follows a document's events, and says what each of them changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pycrdt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kinds.document.shared.doc import observe_deep
from shoal.kinds.document.state import content as diff_mirror
from shoal.kinds.document.state.content import Difference, DiffMirror, open_root, to_py
from tests.support.edits import ACTIONS, AUTHORS, ROOTS, Step, play
from tests.support.examples import examples

STEPS = st.lists(st.builds(Step, st.integers(0, AUTHORS - 1), st.integers(0, ACTIONS - 1), st.integers(0, 23)), max_size=30)


class Watched:
    """A document, the shadows of its roots, and what they said."""

    def __init__(self) -> None:
        self.doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=77)
        self.roots = {name: open_root(self.doc, name, kind) for name, kind in ROOTS.items()}
        self.shadows = {name: DiffMirror(name, root) for name, root in self.roots.items()}
        self.said: list[Difference] = []
        for name, root in self.roots.items():
            observe_deep(root, self._follower(name))

    def _follower(self, name: str) -> Callable[[Any], None]:
        def follow(events: Any) -> None:
            self.said += self.shadows[name].follow(events)

        return follow

    def shown(self) -> dict[str, Any]:
        return {name: to_py(root) for name, root in self.roots.items()}

    def copied(self) -> dict[str, Any]:
        return {name: shadow.to_py() for name, shadow in self.shadows.items()}


def done(content: dict[str, Any], difference: Difference) -> None:
    """Do a difference to plain content."""
    kind, path, old, new = difference
    way: list[Any] = list(path[:-1])
    last: Any = path[-1]
    if isinstance(_at(content, way), str):
        text = _at(content, way)
        assert kind == "insert" or text[last : last + len(old)] == old
        _at(content, way[:-1])[way[-1]] = text[:last] + (new or "") + text[last + len(old or "") :]
        return
    inside = _at(content, way)
    if isinstance(inside, list) and kind == "set":
        assert inside[last] == old
        inside[last] = new
        return
    if isinstance(inside, list):
        assert kind == "insert" or inside[last : last + len(old)] == old
        inside[last : last + len(old or ())] = new or []
        return
    assert (last in inside) == (kind != "add")
    assert inside.get(last) == old
    if kind == "delete":
        del inside[last]
    else:
        inside[last] = new


def _at(content: Any, path: Any) -> Any:
    for step in path:
        content = content[step]
    return content


def followed(steps: list[Step], together: list[int]) -> None:
    watched = Watched()
    plain: dict[str, Any] = {"m": {}, "a": [], "t": "", "x": []}
    left = [issued.update for issued in play(steps)]
    while left:
        count = together.pop() if together else 1
        with watched.doc.transaction():
            for update in left[:count]:
                watched.doc.apply_update(update)
        left = left[count:]
        for difference in watched.said:
            done(plain, difference)
        watched.said.clear()
        assert watched.copied() == watched.shown() == plain


@examples(80)
@given(STEPS, st.lists(st.integers(1, 5)))
def test_the_copy_is_what_is_shown_and_so_is_what_the_differences_give(steps: list[Step], together: list[int]) -> None:
    followed(steps, together)


def test_a_copy_that_forgets_deletions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = DiffMirror.follow
    monkeypatch.setattr(
        DiffMirror, "follow", lambda self, events: [each for each in sound(self, events) if each.kind != "delete"]
    )
    with pytest.raises(AssertionError):
        followed([Step(0, 3, 3), Step(0, 6, 3)], [])


def test_two_insertions_at_once_are_told_in_place() -> None:
    watched = Watched()
    array = watched.roots["a"]
    array.extend([0, 1, 2])
    watched.said.clear()
    with watched.doc.transaction():
        array.insert(1, "x")
        array.insert(3, "y")
    assert watched.said == [Difference("insert", ("a", 1), None, ["x"]), Difference("insert", ("a", 3), None, ["y"])]


def test_a_change_copies_no_more_than_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    watched, copied, sound = Watched(), list[Any](), diff_mirror._copied
    watched.roots["m"].update({str(number): number for number in range(100)})

    def counted(value: Any, **how: Any) -> Any:
        copied.append(value)
        return sound(value, **how)

    monkeypatch.setattr(diff_mirror, "_copied", counted)
    watched.roots["m"]["7"] = "new"
    assert copied == ["new"]


def test_an_embedded_object_takes_one_position() -> None:
    watched = Watched()
    text = watched.roots["t"]
    text.insert(0, "ab")
    text.insert_embed(1, {"image": "x"})
    del text[2:3]
    assert watched.copied()["t"] == "a"
    assert DiffMirror("t", text).to_py() == "a"
    assert watched.said[-1] == Difference("delete", ("t", 2), "b", None)


def test_changes_of_xml_are_told_where_they_are_shown() -> None:
    watched = Watched()
    root = watched.roots["x"]
    paragraph = root.children.append(pycrdt.XmlElement("p"))
    text = paragraph.children.append(pycrdt.XmlText("ab"))
    text.insert(2, "é")
    paragraph.attributes["level"] = 1
    paragraph.attributes["level"] = 2
    text.format(0, 1, {"strong": {}})
    del paragraph.attributes["level"]
    del root.children[0]
    bold = {"text": [{"insert": "a", "attributes": {"strong": {}}}, {"insert": "bé"}], "attributes": {}}
    assert watched.said == [
        Difference("insert", ("x", 0), None, [{"tag": "p", "attributes": {}, "children": []}]),
        Difference("insert", ("x", 0, "children", 0), None, ["ab"]),
        Difference("insert", ("x", 0, "children", 0, 2), None, "é"),
        Difference("add", ("x", 0, "attributes", "level"), None, 1),
        Difference("set", ("x", 0, "attributes", "level"), 1, 2),
        Difference("set", ("x", 0, "children", 0), "abé", bold),
        Difference("delete", ("x", 0, "attributes", "level"), 2, None),
        Difference("delete", ("x", 0), [{"tag": "p", "attributes": {}, "children": [bold]}], None),
    ]


def test_changes_inside_embedded_types_are_followed() -> None:
    watched = Watched()
    inner: pycrdt.Map[Any] = pycrdt.Map({"k": 1})
    watched.roots["t"].insert_embed(0, inner)
    other: pycrdt.Map[Any] = pycrdt.Map({"k": 1})
    watched.roots["x"].children.append(pycrdt.XmlText("ab")).insert_embed(1, other)
    inner["k"] = other["k"] = 2
    assert watched.copied() == watched.shown()
    assert watched.said[-1].kind == "set"
    assert watched.said[-1].path == ("x", 0)


@pytest.mark.answers("misplaced-value-makes-a-document-unreadable")
def test_events_that_lead_astray_have_the_root_told_as_a_whole() -> None:
    watched = Watched()
    watched.roots["x"].children.append(pycrdt.XmlElement("p"))
    # Another client puts a value after it, where only nodes belong, and then edits the element.
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    doc.apply_update(watched.doc.get_update())
    doc.get("x", type=pycrdt.Array).insert(1, "a value")
    [element] = doc.get("x", type=pycrdt.XmlFragment).children
    for value in ("v", "w"):
        element.attributes["k"] = value
        watched.doc.apply_update(doc.get_update())
        assert watched.copied() == watched.shown()
    assert watched.said[-1].path == ("x",)
