"""Editing in place: the content that was wanted, and as little else as can be."""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any

import pycrdt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidName, InvalidValue, RootConflict, ShoalError, TooLarge
from shoal.kinds.document.shared.doc import Array, Doc, Map
from shoal.kinds.document.state import markup
from shoal.kinds.document.state.content import open_root, to_py
from shoal.kinds.document.state.editing import PUT_AT_ONCE, VALUES_MAX, Editor, Transactions, Turn, on_copy, read_content
from shoal.kinds.document.state.live import LiveDocument
from tests.support.examples import examples

PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text("aéb😀", max_size=6), st.just(1.5))
JSON = st.recursive(
    PLAIN, lambda inside: st.lists(inside, max_size=5) | st.dictionaries(st.sampled_from(["a", "b", "id"]), inside, max_size=3)
)
CONTENT = st.fixed_dictionaries(
    {
        "m": st.dictionaries(st.sampled_from("xyz"), JSON, max_size=3),
        "l": st.lists(JSON, max_size=6),
        "t": st.text("abé😀", max_size=12),
    }
)


def test_a_text_of_few_letters_is_edited_in_bounded_time() -> None:
    """Of repeated items each is equal to very many, and looking at all pairs again for each took minutes."""
    shared = Shared()
    shared.replace({"t": "a" * 1000, "l": [0] * 1000})
    wanted = {"t": "ab" * 500, "l": [0, 1] * 500}
    shared.replace(wanted)
    assert shared.live.to_py() == wanted


@pytest.mark.parametrize(
    "wanted",
    [{"l": list(range(2000))}, {"m": {"a": {"b": list(range(2000))}}}, {"l": [list(range(1000)), {"x": list(range(1000))}]}],
)
def test_many_elements_take_many_transactions(wanted: Any) -> None:
    """The engine's time and memory grow with the square of what is inserted in one."""
    doc = Doc(client_id=1)
    ended: list[int] = []
    observing = doc.observe(lambda event: ended.append(len(event.update)))
    with Transactions(doc) as turn:
        Editor(turn=turn).replace(doc, {}, wanted)
    doc.unobserve(observing)
    assert len(ended) >= 2000 // PUT_AT_ONCE
    shared = Shared()
    shared.replace(wanted)
    assert shared.live.to_py() == wanted


class Shared:
    """A document, edited as a node does it: each time under another client id."""

    def __init__(self) -> None:
        self.live = LiveDocument(bytes_max=1 << 20, roots_max=16)
        self.clients = 1

    def update(self, content: Any) -> bytes:
        """Of an edit that is not applied yet."""
        self.clients += 1
        made = on_copy(self.live, lambda doc, _: Editor().replace(doc, self.live.roots, content), client_id=self.clients)
        self.live.check(made.update, made.roots)
        self.live.roots.update(made.roots)
        return made.update

    def replace(self, content: Any) -> bytes:
        update = self.update(content)
        self.live.integrate(update, {})
        return update

    def both(self, one: Any, other: Any) -> Any:
        """Two edits that do not know of each other."""
        for update in [self.update(one), self.update(other)]:
            self.live.integrate(update, {})
        return self.live.to_py()


@examples(150)
@given(st.lists(CONTENT, max_size=4))
def test_wanted_members_are_there_and_wanting_twice_changes_nothing(contents: list[Any]) -> None:
    shared = Shared()
    for content in contents:
        shared.replace(content)
        assert shared.live.to_json() == json.loads(json.dumps(content))
        assert shared.replace(content) == b"\x00\x00"


def test_a_root_that_is_not_named_is_emptied() -> None:
    shared = Shared()
    shared.replace({"m": {"k": 1}, "l": [1], "t": "x"})
    shared.replace({"m": {"k": 1}})
    assert shared.live.to_py() == {"m": {"k": 1}, "l": [], "t": ""}


START: dict[str, Any] = {
    "m": {"a": {"n": 1, "tags": ["x", "y", "z"]}, "b": 2},
    "l": [{"id": 1, "s": "a"}, {"id": 2, "s": "b"}],
    "t": "one two",
}


def started() -> Shared:
    shared = Shared()
    shared.replace(START)
    return shared


def changed(**content: Any) -> dict[str, Any]:
    return {**START, **content}


@pytest.mark.parametrize(
    ("one", "other", "merged"),
    [
        ({"t": "ONE two"}, {"t": "one TWO"}, {"t": "ONE TWO"}),
        ({"t": "1one two"}, {"t": "one two2"}, {"t": "1one two2"}),
        (
            {"m": {"a": {"n": 9, "tags": ["x", "y", "z"]}, "b": 2}},
            {"m": {"a": {"n": 1, "tags": ["y", "z", "w"]}, "b": 2, "c": 3}},
            {"m": {"a": {"n": 9, "tags": ["y", "z", "w"]}, "b": 2, "c": 3}},
        ),
        (
            {"l": [{"id": 0, "s": "new"}, *START["l"]]},
            {"l": [{"id": 1, "s": "a"}, {"id": 2, "s": "B"}]},
            {"l": [{"id": 0, "s": "new"}, {"id": 1, "s": "a"}, {"id": 2, "s": "B"}]},
        ),
        (
            {"l": [START["l"][1]]},
            {"l": [START["l"][0], {"id": 2, "s": "b", "done": True}]},
            {"l": [{"id": 2, "s": "b", "done": True}]},
        ),
        (
            {"l": [{"id": 2, "s": "B"}]},
            {"l": [START["l"][0], {"id": 2, "s": "b", "done": True}]},
            {"l": [{"id": 2, "s": "B", "done": True}]},
        ),
    ],
    ids=[
        "words",
        "both ends",
        "nested",
        "an insertion moves nobody's edit",
        "an edit stays with its object",
        "its id tells it",
    ],
)
def test_edits_that_did_not_know_of_each_other_both_survive(one: Any, other: Any, merged: Any) -> None:
    assert started().both(changed(**one), changed(**other)) == changed(**merged)


def test_objects_without_ids_are_edited_in_place() -> None:
    shared = Shared()
    shared.replace({"l": [{"n": 0}]})
    assert shared.both({"l": [{"n": 1}]}, {"l": [{"n": 0, "late": True}]}) == {"l": [{"n": 1, "late": True}]}


def test_equal_values_are_not_touched() -> None:
    shared = started()
    state = shared.live.state()
    update = shared.replace(changed(m={**START["m"], "b": 3}))
    assert len(update) < 60
    assert shared.live.update_since(state).startswith(b"\x01\x01")


def test_plain_elements_are_put_without_asking_for_each_place(monkeypatch: pytest.MonkeyPatch) -> None:
    doc, opened = Doc(), 0
    sound = Doc.transaction

    def transaction(self: Doc, origin: Any = None) -> pycrdt.Transaction:
        nonlocal opened
        opened += 1
        return sound(self, origin)

    monkeypatch.setattr(Doc, "transaction", transaction)
    wanted = {"l": [*range(9 * PUT_AT_ONCE), {"a": 1}, "b", None]}
    with Transactions(doc) as turn:
        Editor(turn=turn).replace(doc, {}, wanted)
    assert opened < 100  # Three for each element, before.
    assert to_py(open_root(doc, "l", "array")) == wanted["l"]


def test_nested_values_make_no_objects_of_the_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each took nine tenths of the time."""
    made: list[object] = []
    nested: list[Any] = [{"k": [1]}]
    for _ in range(20):
        nested = [nested]
    entries = open_root(Doc(), "m", "map")
    with monkeypatch.context() as patched:
        for kind in (Array, Map):
            patched.setattr(kind, "__init__", lambda self, *_, **__: made.append(self))
        Editor().place(entries, "k", nested)
        assert to_py(entries) == {"k": nested}
    assert made == []


def test_objects_in_a_long_list_count_as_more() -> None:
    """The engine walks along the list for each, so that 9,900 lists in one took 1.5 s."""
    doc = Doc()
    with pytest.raises(TooLarge, match="in a list counts as one more"):
        Editor().replace(doc, {}, {"l": [[]] * 2500})
    assert doc.get_state() == Doc().get_state()
    Editor().replace(doc, {}, {"l": [[]] * 1500, "m": {"plain": list(range(2000))}})


def test_an_object_of_another_id_is_another_object() -> None:
    shared = started()
    fork = shared.live.fork(client_id=99)
    state = fork.get_state()
    fork.get("l", type=pycrdt.Array)[0]["late"] = True
    shared.replace(changed(l=[{"id": 7, "s": "a"}, START["l"][1]]))
    shared.live.integrate(fork.get_update(state), {})
    assert shared.live.to_py()["l"][0] == {"id": 7, "s": "a"}


def test_past_the_bound_a_piece_is_replaced_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markup, "MATCHED_MAX", 3)
    shared = started()
    shared.replace(changed(t="one 2 and two", l=[{"id": 2, "s": "b"}, {"id": 1, "s": "a"}, 5]))
    assert shared.live.to_py() == changed(t="one 2 and two", l=[{"id": 2, "s": "b"}, {"id": 1, "s": "a"}, 5])


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ([], InvalidValue),
        ({"m": 1}, InvalidValue),
        ({"m": []}, RootConflict),
        ({"": {}}, InvalidName),
        ({"m": {"x": 2**53}}, InvalidValue),
        ({"m": {"\ud800": 1}}, InvalidValue),
        ({"t": "\ud800"}, InvalidValue),
        ({"l": [0] * (VALUES_MAX // 2), "m": {"x": [0] * (VALUES_MAX // 2)}}, TooLarge),
    ],
)
def test_impossible_content_is_refused_before_any_edit(content: Any, error: type[ShoalError]) -> None:
    shared = started()
    doc = shared.live.fork(client_id=50)
    before = doc.get_update()
    with pytest.raises(error) as raised:
        Editor().replace(doc, shared.live.roots, content)
    assert raised.value.message.count("Nothing was written.") == 1
    assert doc.get_update() == before


def test_the_copy_that_was_edited_is_freed() -> None:
    copies: list[weakref.ref[Any]] = []

    def edit(doc: pycrdt.Doc[Any], _: Turn) -> dict[str, Any]:
        copies.append(weakref.ref(doc))
        doc.get("t", type=pycrdt.Text).insert(0, "x")
        return {"t": "text"}

    edited = on_copy(LiveDocument(bytes_max=1 << 20, roots_max=16), edit, client_id=2)
    gc.collect()
    assert edited.update
    assert copies[0]() is None


def test_content_is_read_from_json() -> None:
    assert read_content('{"t": "é"}'.encode()) == {"t": "é"}
    for bad in (b"{", b"\xff", b'{"x": NaN}'):
        with pytest.raises(InvalidValue):
            read_content(bad)


@pytest.mark.parametrize("wanted", ["aé!b", "b", "", "xaébx", "é"])
def test_objects_that_are_embedded_in_a_text_stay_in_their_order(wanted: str) -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=1)
    text = doc.get("t", type=pycrdt.Text)
    text.insert(0, "aéb")
    for at, number in ((0, 1), (4, 2), (6, 3)):
        text.insert_embed(at, {"image": number})
    text.format(1, 2, {"bold": True})
    Editor().replace(doc, {"t": "text"}, {"t": wanted})
    assert str(text) == wanted
    assert [chunk["image"] for chunk, _ in text.diff() if isinstance(chunk, dict)] == [1, 2, 3]


def test_characters_stay_on_their_side_of_an_embedded_object() -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=1)
    text = doc.get("t", type=pycrdt.Text)
    text.insert(0, "ab")
    text.insert_embed(1, {"image": 1})
    Editor().replace(doc, {"t": "text"}, {"t": "ab!"})
    assert [chunk for chunk, _ in text.diff()] == ["a", {"image": 1.0}, "b!"]
