"""Counts of a document's items, and showing it by as few steps of the engine as they allow."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pycrdt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.errors import TooLarge
from shoal.kinds.document.state import content, patch, yjs
from shoal.kinds.document.state.content import open_root, to_py
from shoal.kinds.document.state.live import LiveDocument
from shoal.kinds.document.state.structs import Item, Shared, walk
from shoal.kinds.document.state.untold import Census
from tests.support.edits import ACTIONS, AUTHORS, ROOTS, Step, causal_order, play
from tests.support.examples import examples

STEPS = st.lists(st.builds(Step, st.integers(0, AUTHORS - 1), st.integers(0, ACTIONS - 1), st.integers(0, 23)), max_size=40)


def live(*updates: bytes, roots: Any = None) -> LiveDocument:
    return LiveDocument(bytes_max=1 << 24, roots_max=8, updates=updates, roots=ROOTS if roots is None else roots)


def counted(replica: LiveDocument, step: int = 1) -> Census:
    census = Census()
    assert all(each is None for each in census.read(replica.snapshot(), step))
    return census


class Slow:
    """Places of a snapshot's items, looked up one by one."""

    def __init__(self, snapshot: bytes) -> None:
        self.items = walk(snapshot).items

    def at(self, at: tuple[int, int]) -> Item:
        return next(item for item in self.items if item.client == at[0] and item.clock <= at[1] < item.clock + item.length)

    def place(self, item: Item) -> tuple[Any, str | None] | None:
        if item.parent is not None:
            return item.parent, item.key
        neighbour = item.origin or item.right
        return None if neighbour is None else self.place(self.at(neighbour))

    def depth(self, item: Item) -> int:
        place = self.place(item)
        assert place is not None
        return 0 if isinstance(place[0], str) else 1 + self.depth(self.at(place[0]))

    def most(self) -> int:
        found = Counter(place[0] for item in self.items if (place := self.place(item)) is not None and place[1] is None)
        return max(found.values(), default=0)

    def deepest(self) -> int:
        shared = (item for item in self.items if item.held and isinstance(item.held[0], Shared))
        return max((self.depth(item) + 1 for item in shared if self.place(item) is not None), default=0)


@examples(150)
@given(STEPS, st.integers(1, 5), st.integers(0, 1 << 16))
def test_counts_are_those_of_the_engine_and_never_too_few(steps: list[Step], step: int, seed: int) -> None:
    issued = play(steps)
    replica, follows = live(), Census()
    for index in causal_order(issued, random.Random(seed)):
        replica.integrate(issued[index].update, {})
        follows.add(yjs.parse(issued[index].update))
    census, slow = counted(replica, step), Slow(replica.snapshot())
    assert max(census.listed, census.written) == slow.most()
    assert census.deepest == slow.deepest()
    assert max(follows.listed, follows.written) >= slow.most()
    assert follows.deepest >= census.deepest  # Types that were deleted since, with all that they held.
    for item in slow.items:
        if slow.place(item) is not None:
            assert census.get((item.client, item.clock)) == follows.get((item.client, item.clock)) == slow.depth(item)


PLAIN = st.recursive(
    st.sampled_from([None, True, 0, 1, -0.0, 1.5, 2.0**70, 255, 256, -1, "", "s", "<p/>", b"", b"a"])
    | st.floats(allow_nan=True, allow_infinity=True),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
VALUES = st.recursive(
    PLAIN.map(lambda plain: (None, plain)),
    lambda inner: (
        st.tuples(st.just("list"), st.lists(inner, max_size=4))
        | st.tuples(st.just("map"), st.dictionaries(st.sampled_from("abc"), inner, max_size=3))
        | st.tuples(st.sampled_from(["text", "xml"]), st.just("p"))
    ),
    max_leaves=12,
)


def made(value: Any) -> Any:
    kind, held = value
    if kind == "list":
        return pycrdt.Array([made(each) for each in held])
    if kind == "map":
        return pycrdt.Map({key: made(each) for key, each in held.items()})
    if kind == "text":
        return pycrdt.Text(held)
    return pycrdt.XmlFragment([pycrdt.XmlElement(held)]) if kind == "xml" else held


@examples(300)
@example([(None, float("nan"))], True)
@example([(None, -0.0)], True)
@example([(None, b"a"), (None, b"")], True)
@example([("list", [(None, b"a"), ("xml", "p"), (None, [None, float("inf")])])], True)
@given(st.lists(VALUES, max_size=6), st.booleans())
def test_content_is_shown_as_if_it_were_read_one_by_one(drawn: list[Any], asks: bool) -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    items = doc.get("a", type=pycrdt.Array)
    for each in drawn:
        items.insert(0, made(each))
    replica = live(doc.get_update(), roots={"a": "array"})
    one_by_one = to_py(open_root(replica._replica.doc, "a", "array"))
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(content, "_ASKED_MAX", 0 if asks else 4096)
        shown = replica.to_py()["a"]
    assert repr(shown) == repr(one_by_one)  # `repr`, because NaN is not itself, and −0.0 is 0.


def prepended(count: int, value: Any = 1) -> bytes:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    items = doc.get("l", type=pycrdt.Array)
    for _ in range(count):
        items.insert(0, value)
    return doc.get_update()


def steps_of(replica: LiveDocument) -> int:
    """How many steps showing takes."""
    walk = replica.walk()
    left = walk.left
    to_py(open_root(replica._replica.doc, "l", "array"), walk)
    return left - walk.left


def test_values_before_each_other_are_shown_without_a_walk_for_each() -> None:
    assert steps_of(live(prepended(2000), roots={"l": "array"})) == 0
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=6)
    doc.get("m", type=pycrdt.Array).append(float("nan"))
    replica = live(prepended(2000), doc.get_update(), roots={"l": "array", "m": "array"})
    assert steps_of(replica) < 3 * 2000


@pytest.mark.parametrize("odd", [None, b"a"])
def test_elements_that_json_does_not_tell_are_asked_for_and_charged(odd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    doc.apply_update(prepended(200, odd))
    doc.get("l", type=pycrdt.Array).append(float("nan"))
    replica = live(doc.get_update(), roots={"l": "array"})
    assert steps_of(replica) >= 200 * 200
    monkeypatch.setattr(content, "WALKED_MAX", 200 * 200)
    with pytest.raises(TooLarge, match="Nothing was written"):
        replica.to_py()


def test_an_edit_far_into_a_list_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = live(prepended(500), roots={"l": "array"})
    wanted = b'[{"op": "replace", "path": "/l/499", "value": 2}]'
    patch.patch(replica, wanted, client_id=7)
    monkeypatch.setattr(content, "WALKED_MAX", 500)
    with pytest.raises(TooLarge, match="too many steps"):
        patch.patch(replica, wanted, client_id=7)


def test_an_edit_far_into_a_text_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    text = doc.get("l", type=pycrdt.Text)
    for _ in range(500):
        text.insert(0, "a")
    replica = live(doc.get_update(), roots={"l": "text"})
    wanted = b'[{"op": "replace", "path": "/l", "value": "b' + b"a" * 499 + b'"}]'
    patch.patch(replica, wanted, client_id=7)
    monkeypatch.setattr(content, "WALKED_MAX", 500)
    with pytest.raises(TooLarge, match="too many steps"):
        patch.patch(replica, wanted, client_id=7)


def test_values_that_are_appended_count_once() -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    items, updates = doc.get("l", type=pycrdt.Array), list[bytes]()
    kept = doc.observe(lambda event: updates.append(event.update))
    for number in range(100):
        items.append(number)
    doc.unobserve(kept)
    assert len(updates) == 100
    follows = Census()
    for update in updates:
        follows.add(yjs.parse(update))
    assert follows.listed == 1


def test_an_update_that_came_before_counts_once() -> None:
    follows, update = Census(), prepended(50)
    for _ in range(3):
        follows.add(yjs.parse(update))
    assert follows.listed == 50


def test_an_update_that_comes_while_it_is_counted_counts() -> None:
    replica = live(prepended(100), roots={"l": "array"})
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=6)
    doc.get("l", type=pycrdt.Array).extend([pycrdt.Array() for _ in range(30)])
    steps = replica.counting(10)
    next(steps)
    replica.integrate(doc.get_update(), {})
    assert list(steps)
    assert replica.walk().listed >= 130


def test_a_census_remembers_runs_and_no_items() -> None:
    census = counted(live(prepended(2000), roots={"l": "array"}))
    assert [len(starts) for starts, _ in census._runs.values()] == [1]


def test_a_document_is_counted_in_steps() -> None:
    replica = live(prepended(300), roots={"l": "array"})
    assert len(list(replica.counting(100))) == 12  # Each item is looked at four times.


def test_an_item_that_is_cut_counts_for_each_part() -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    doc.get("l", type=pycrdt.Text).insert(0, "abcdefghij")
    follows = Census()
    follows.add(yjs.parse(doc.get_update()))
    other: pycrdt.Doc[Any] = pycrdt.Doc(client_id=6)
    other.apply_update(doc.get_update())
    for at in (8, 5, 2):
        before = other.get_state()
        other.get("l", type=pycrdt.Text).insert(at, "x")
        follows.add(yjs.parse(other.get_update(before)))
    assert follows.written >= counted(live(other.get_update(), roots={"l": "text"})).written == 7


def test_a_deletion_within_an_item_counts() -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    doc.get("l", type=pycrdt.Text).insert(0, "abc")
    follows = Census()
    follows.add(yjs.parse(doc.get_update()))
    follows.add(yjs.parse(b"\0" + yjs.pack_delete_set([(5, 1, 1)])))
    assert follows.written >= 3
