"""Updates that a document refuses, and what it can show."""

from __future__ import annotations

import json
from typing import Any

import pycrdt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import values
from shoal.errors import InvalidName, InvalidValue, NotReady, RootConflict, ShoalError, TooLarge
from shoal.kinds.document.state import readiness, yjs
from shoal.kinds.document.state.conflicts import Conflicts
from shoal.kinds.document.state.content import DiffMirror, open_root
from shoal.kinds.document.state.editing import Editor, on_copy
from shoal.kinds.document.state.live import EMPTY, NESTING_MAX, Building
from tests.crdt.document.edits import STEPS, edited, live, map_update
from tests.support.edits import ROOTS, Step, play
from tests.support.examples import examples


def unchanged_by(update: bytes, roots: dict[str, Any], error: type[ShoalError], **bounds: int) -> None:
    replica = live(**bounds)
    replica.integrate(map_update(1, client_id=4), {"m": "map"})
    before = replica.canonical(), replica.snapshot()
    with pytest.raises(error) as raised:
        replica.integrate(update, roots)
    assert raised.value.written == "no"
    assert (replica.canonical(), replica.snapshot()) == before


@pytest.mark.answers("updates-are-applied-out-of-causal-order")
def test_an_early_update_leaves_the_document_as_it_is() -> None:
    doc, text = edited("t", pycrdt.Text)
    text += "a"
    state = doc.get_state()
    text += "b"
    unchanged_by(doc.get_update(state), {"t": "text"}, NotReady)


def test_an_early_update_names_the_clock_it_needs() -> None:
    doc, text = edited("t", pycrdt.Text)
    text += "abc"
    state = doc.get_state()
    text += "d"
    assert readiness.attempt(yjs.parse(doc.get_update(state)), {}) == readiness.Lacking(5, 3, deletes=False)


def test_an_early_update_is_applied_once_it_is_ready() -> None:
    doc, text = edited("t", pycrdt.Text)
    text += "a"
    first, state = doc.get_update(), doc.get_state()
    text += "b"
    replica = live()
    with pytest.raises(NotReady):
        replica.integrate(doc.get_update(state), {"t": "text"})
    replica.integrate(first, {"t": "text"})
    replica.integrate(doc.get_update(state), {})
    assert replica.to_py() == {"t": "ab"}


@pytest.mark.parametrize("garbage", [b"", b"\x00", b"hello", b"\xff" * 30, EMPTY + b"\x00"])
def test_garbage_is_refused(garbage: bytes) -> None:
    unchanged_by(garbage, {}, InvalidValue)


def test_an_update_over_the_bound_is_refused_unread() -> None:
    unchanged_by(b"\xff" * 200, {}, TooLarge, bytes_max=199)


def test_a_document_that_would_pass_its_bound_is_refused() -> None:
    unchanged_by(map_update("x" * 150), {}, TooLarge, bytes_max=180)


def test_overwritten_content_does_not_count_against_the_bound() -> None:
    replica = live(bytes_max=400)
    doc, entries = edited("m", pycrdt.Map)
    for _ in range(10):
        state = doc.get_state()
        entries["k"] = "x" * 150
        replica.integrate(doc.get_update(state), {"m": "map"})
    assert replica.to_py() == {"m": {"k": "x" * 150}}


def test_a_root_that_nobody_declared_is_refused() -> None:
    unchanged_by(map_update(1, root="other"), {}, InvalidValue)


@pytest.mark.parametrize(
    ("roots", "error"), [({"m": "text"}, RootConflict), ({"n": "tree"}, InvalidValue), ({"": "map"}, InvalidName)]
)
def test_a_declaration_that_cannot_hold_is_refused(roots: dict[str, Any], error: type[ShoalError]) -> None:
    unchanged_by(EMPTY, roots, error)


def test_a_root_used_as_another_kind_than_declared_is_refused() -> None:
    unchanged_by(map_update(1, root="other"), {"other": "text"}, RootConflict)
    doc, items = edited("m", pycrdt.Array)
    items.append(1)
    unchanged_by(doc.get_update(), {}, RootConflict)


@pytest.mark.answers("seed-70085")
def test_deletions_of_another_kind_are_no_conflict() -> None:
    doc, items = edited("m", pycrdt.Array)
    items += [1, 2]
    del items[0]
    unchanged_by(doc.get_update(), {}, RootConflict)  # What is left names no root, only its neighbour.
    del items[0]
    replica = live()
    replica.integrate(doc.get_update(), {"m": "map"})
    assert replica.to_json() == {"m": {}}


def test_roots_are_bounded() -> None:
    unchanged_by(EMPTY, {"a": "map", "b": "map"}, TooLarge, roots_max=2)


def test_shared_types_that_nest_too_deep_are_refused_however_they_arrive() -> None:
    replica = live()
    doc, inner = edited("m", pycrdt.Map)
    with pytest.raises(TooLarge, match="nest deeper"):
        for _ in range(NESTING_MAX + 1):
            state = doc.get_state()
            inner["k"] = pycrdt.Map()
            inner = inner["k"]
            replica.integrate(doc.get_update(state), {"m": "map"})
    assert replica.to_json()["m"] != {}


@pytest.mark.answers("nested-types-overflow-the-stack")
def test_elements_of_xml_that_nest_too_deep_are_refused() -> None:
    replica = live()
    doc, root = edited("x", pycrdt.XmlFragment)
    inner: Any = root
    with pytest.raises(TooLarge, match="nest deeper"):
        for _ in range(NESTING_MAX + 1):
            state = doc.get_state()
            inner = inner.children.append(pycrdt.XmlElement("p"))
            replica.integrate(doc.get_update(state), {"x": "xml"})
    assert len(replica.to_json()["x"]) == 1


@pytest.mark.answers("nested-types-overflow-the-stack")
def test_types_that_no_reader_looks_at_nest_no_deeper() -> None:
    # Each is embedded in the text before it; opened again, a replica knows nothing of their depths.
    doc, text = edited("t", pycrdt.Text)
    updates: list[bytes] = []
    with pytest.raises(TooLarge, match="nest deeper"):
        for _ in range(NESTING_MAX + 1):
            state = doc.get_state()
            child = pycrdt.Text()
            text.insert_embed(0, child)
            text = child
            reopened = live(updates=updates, roots={"t": "text"})
            reopened.integrate(doc.get_update(state), {})
            updates.append(doc.get_update(state))
    assert len(updates) == NESTING_MAX


def test_many_flat_shared_types_are_no_nesting() -> None:
    replica = live()
    doc, items = edited("a", pycrdt.Array)
    for number in range(NESTING_MAX + 50):
        state = doc.get_state()
        items.extend([number, pycrdt.Map({"n": number})])
        replica.integrate(doc.get_update(state), {"a": "array"})
    assert len(replica.to_py()["a"]) == 2 * (NESTING_MAX + 50)


def test_the_deepest_document_that_is_allowed_can_be_shown() -> None:
    deepest: Any = 1
    for _ in range(yjs.VALUE_DEPTH_MAX):
        deepest = [deepest]
    doc, inner = edited("m", pycrdt.Map)
    for _ in range(NESTING_MAX):
        inner["k"] = pycrdt.Map()
        inner = inner["k"]
    inner["k"] = deepest
    replica = live()
    replica.integrate(doc.get_update(), {"m": "map"})
    json.dumps(replica.to_json())


def test_the_deepest_xml_that_is_allowed_can_be_shown_and_wanted_again() -> None:
    deepest: Any = 1
    for _ in range(yjs.VALUE_DEPTH_MAX - 1):
        deepest = {"k": deepest}
    doc, inner = edited("x", pycrdt.XmlFragment)
    for _ in range(NESTING_MAX - 1):
        inner = inner.children.append(pycrdt.XmlElement("p"))
    inner.children.append(pycrdt.XmlText()).insert(0, "a", {"format": deepest})
    inner.attributes["deep"] = {"k": deepest}
    replica = live()
    replica.integrate(doc.get_update(), {"x": "xml"})
    text = json.dumps(replica.to_json())
    wanted = values.from_json(json.loads(text))
    assert on_copy(replica, lambda doc, _: Editor().replace(doc, replica.roots, wanted), client_id=9).update == EMPTY


CONTENTS = {
    "value": (8, b"\1\x77\1v"),
    "characters": (4, b"\1c"),
    "array": (7, b"\0"),
    "map": (7, b"\1"),
    "text": (7, b"\2"),
    "element": (7, b"\3\1p"),
    "fragment": (7, b"\4"),
    "xmltext": (7, b"\6"),
    "embedded": (5, b'\7{"a":1}'),
    "format": (6, b"\1b\4true"),
    "bytes": (3, b"\1b"),
}


@pytest.mark.answers("misplaced-value-makes-a-document-unreadable")
@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("parent", ["array", "map", "text", "element", "fragment", "xmltext"])
def test_any_content_of_a_shared_type_can_be_shown(parent: str, content: str, keyed: bool) -> None:
    """No well-formed update makes a document that cannot be read, told of and built again."""
    around = bytes([0x20 | 7, 1, 1]) + b"m" + b"\1x" + CONTENTS[parent][1]
    number, body = CONTENTS[content]
    within = bytes([number | (0x20 if keyed else 0), 0, 5, 0]) + (b"\1k" if keyed else b"") + body
    # Once more beside it, which names neither a parent nor a key.
    beside = bytes([0x80 | number, 5, 1]) + body
    update = bytes([1, 3, 5, 0]) + around + within + beside + b"\0"
    replica = live()
    if content == "format" and keyed:
        with pytest.raises(InvalidValue):
            replica.integrate(update, {"m": "map"})
        return
    replica.integrate(update, {"m": "map"})
    shown = replica.to_json()
    assert live(updates=[update], roots={"m": "map"}).canonical() == replica.canonical()
    Conflicts().add(update)
    assert DiffMirror("m", open_root(replica.fork(client_id=7), "m", "map")).to_py() == values.from_json(shown)["m"]


@pytest.mark.answers("misplaced-value-makes-a-document-unreadable")
def test_a_format_that_inherits_a_key_is_no_value() -> None:
    around = bytes([0x20 | 7, 1, 1]) + b"m" + b"\1x" + CONTENTS["map"][1]
    keyed = bytes([0x20 | 8, 0, 5, 0]) + b"\1k" + CONTENTS["value"][1]
    beside = bytes([0x80 | 6, 5, 1]) + CONTENTS["format"][1]
    replica = live()
    replica.integrate(bytes([1, 3, 5, 0]) + around + keyed + beside + b"\0", {"m": "map"})
    assert replica.to_py() == {"m": {"x": {}}}


def test_a_check_changes_nothing() -> None:
    replica = live()
    replica.check(map_update(1), {"m": "map"})
    assert replica.roots == {}
    assert replica.snapshot() == EMPTY


@examples(60)
@given(STEPS.filter(lambda steps: bool(play(steps))), st.data())
def test_a_damaged_update_is_refused_or_applied_whole(steps: list[Step], data: st.DataObject) -> None:
    update = bytearray(data.draw(st.sampled_from(play(steps))).update)
    update[data.draw(st.integers(0, len(update) - 1))] = data.draw(st.integers(0, 255))
    replica = live(roots=ROOTS)
    try:
        replica.integrate(bytes(update), {})
    except ShoalError:
        assert replica.snapshot() == EMPTY
    else:
        assert live(roots=ROOTS, built=Building(replica.snapshot())).canonical() == replica.canonical()
