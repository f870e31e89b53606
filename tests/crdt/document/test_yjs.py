"""The reader of Yjs updates: it agrees with the engine on what is ready, and lets nothing dangerous through."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pycrdt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidValue, NotReady, TooLarge
from shoal.kinds.document.state import readiness, yjs
from tests.support.edits import ACTIONS, AUTHORS, ROOTS, Step, play
from tests.support.examples import examples

# Beside the project; or where the benchmarks find it, too.
DATA = Path(os.environ.get("SHOAL_BENCH_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))
REFERENCE = DATA / "edits" / "pycrdt-out-of-order.json"
STEPS = st.lists(st.builds(Step, st.integers(0, AUTHORS - 1), st.integers(0, ACTIONS - 1), st.integers(0, 23)), max_size=20)


def engine_has(doc: pycrdt.Doc[Any], update: bytes) -> bool:
    """The engine's own word: what remains of an applied update has no structs, and deletes only what is there."""
    state = yjs.parse_state(doc.get_state())
    rest = pycrdt.get_update(update, doc.get_state())
    return rest[0] == 0 and all(clock + size <= state.get(client, 0) for client, clock, size in yjs.parse(rest).deletes)


def rebuilt(updates: list[bytes]) -> pycrdt.Doc[Any]:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=0)
    for update in updates:
        doc.apply_update(update)
    return doc


def is_ready(update: bytes, doc: pycrdt.Doc[Any]) -> bool:
    try:
        readiness.advance(yjs.parse(update), yjs.parse_state(doc.get_state()))
    except NotReady:
        return False
    return True


@examples(60)
@given(STEPS, st.randoms(use_true_random=False), st.booleans())
def test_readiness_is_what_the_engine_finds_once_it_has_applied_the_update(steps: list[Step], rng: Any, merge: bool) -> None:
    updates = [issued.update for issued in play(steps)]
    rng.shuffle(updates)
    if merge and len(updates) > 2:
        updates = [pycrdt.merge_updates(*updates[: len(updates) // 2]), *updates[len(updates) // 2 :]]
    applied: list[bytes] = []
    doc = rebuilt([])
    for update in updates:
        predicted = is_ready(update, doc)
        doc.apply_update(update)
        assert predicted == engine_has(doc, update)
        if predicted:
            applied.append(update)
        else:
            doc = rebuilt(applied)  # The engine keeps what was early, for good.


@pytest.mark.answers("client-id-loses-bits-between-versions")
@examples(40)
@given(STEPS)
def test_the_advanced_state_is_the_engines_state(steps: list[Step]) -> None:
    doc, state = rebuilt([]), dict[int, int]()
    for issued in play(steps):
        state = readiness.advance(yjs.parse(issued.update), state).state
        doc.apply_update(issued.update)
        assert state == yjs.parse_state(doc.get_state())


@examples(40)
@given(STEPS)
def test_an_update_is_split_into_what_it_brings_and_what_it_deletes(steps: list[Step]) -> None:
    for issued in play(steps):
        structs, deletes = yjs.split(issued.update)
        parsed = yjs.parse(issued.update)
        assert yjs.parse(structs) == parsed._replace(deletes=[])
        assert deletes == parsed.deletes
        with pytest.raises(InvalidValue):
            yjs.split(issued.update + b"\x00")


@examples(60)
@given(STEPS)
def test_a_document_covers_an_update_if_and_only_if_that_changes_nothing(steps: list[Step]) -> None:
    def form() -> tuple[yjs.StateVector, bytes]:
        return yjs.parse_state(doc.get_state()), yjs.pack_deletes(yjs.parse(doc.get_update()).deletes)

    def covered(update: yjs.Parsed, known: bytes) -> bool:
        return yjs.covers(yjs.parse_state(doc.get_state()), yjs.parse(doc.get_update(known)).deletes, update)

    doc = rebuilt([])
    known = doc.get_state()
    for issued in play(steps):
        update, before = yjs.parse(issued.update), form()
        was = covered(update, known)
        known = doc.get_state()  # What was known before does not matter.
        doc.apply_update(issued.update)
        assert was == (form() == before)
        assert covered(update, known)


def test_an_update_whose_left_origin_of_another_client_is_missing_is_not_ready() -> None:
    theirs: pycrdt.Doc[Any] = pycrdt.Doc(client_id=1)
    theirs.get("t", type=pycrdt.Text).insert(0, "a")
    ours: pycrdt.Doc[Any] = pycrdt.Doc(client_id=2)
    ours.apply_update(theirs.get_update())
    before = ours.get_state()
    ours.get("t", type=pycrdt.Text).insert(1, "b")
    with pytest.raises(NotReady):
        readiness.advance(yjs.parse(ours.get_update(before)), {})
    assert readiness.advance(yjs.parse(ours.get_update(before)), {1: 1}).state == {1: 1, 2: 1}


def test_a_deletion_of_what_is_missing_is_not_ready() -> None:
    deletes_one_of_client_five = bytes([0, 1, 5, 1, 0, 1])
    with pytest.raises(NotReady, match="deletes"):
        readiness.advance(yjs.parse(deletes_one_of_client_five), {})
    assert readiness.advance(yjs.parse(deletes_one_of_client_five), {5: 1}).state == {5: 1}


def test_a_gap_that_the_document_already_fills_is_none() -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    updates: list[bytes] = []
    doc.observe(lambda event: updates.append(event.update))
    text = doc.get("t", type=pycrdt.Text)
    for character in "abcd":
        text += character
    holed = yjs.parse(pycrdt.merge_updates(updates[0], updates[3]))
    assert readiness.advance(holed, {5: 3}).state == {5: 4}
    with pytest.raises(NotReady):
        readiness.advance(holed, {5: 1})


def test_two_structs_that_wait_for_each_other_are_never_ready() -> None:
    item = bytes([0x84])  # A string after its left origin.
    circle = bytes([2, 1, 9, 0]) + item + bytes([5, 0, 1, 97]) + bytes([1, 5, 0]) + item + bytes([9, 0, 1, 98]) + b"\x00"
    with pytest.raises(NotReady):
        readiness.advance(yjs.parse(circle), {})


@pytest.mark.answers("updates-are-applied-out-of-causal-order")
@pytest.mark.skipif(not REFERENCE.exists(), reason="the reference data is not here")
def test_the_known_out_of_order_example_is_refused_until_it_is_ready() -> None:
    updates = [bytes.fromhex(update) for update in json.loads(REFERENCE.read_text())["updates"]]
    verdicts, applied = [], list[bytes]()
    for index in (3, 0, 2, 1):
        verdicts.append(is_ready(updates[index], rebuilt(applied)))
        if verdicts[-1]:
            applied.append(updates[index])
    assert verdicts == [False, True, False, True]
    assert str(rebuilt(updates).get("t", type=pycrdt.Text)) == "abababab"


def nested_value(depth: int) -> bytes:
    return b"\x01\x01\x05\x00\x08\x01\x01a\x01" + b"\x75\x01" * depth + b"\x7e\x00"


def test_a_value_nested_too_deep_is_refused_before_the_engine_overflows_its_stack() -> None:
    yjs.parse(nested_value(yjs.VALUE_DEPTH_MAX))
    for depth in (yjs.VALUE_DEPTH_MAX + 1, 500_000):
        with pytest.raises(InvalidValue, match="nested deeper"):
            yjs.parse(nested_value(depth))


@pytest.mark.parametrize("content", [2, 9, 11, 12, 31])
def test_content_that_a_document_cannot_show_is_refused(content: int) -> None:
    with pytest.raises(InvalidValue):
        yjs.parse(bytes([1, 1, 5, 0, content, 1, 1, 97, 1, 1, 97, 0, 0, 0]))


def item(content: int, body: bytes, *, key: bytes = b"") -> bytes:
    """An update of one item in the root "r"."""
    return bytes([1, 1, 5, 0, content | (0x20 if key else 0), 1, 1]) + b"r" + key + body + b"\0"


@pytest.mark.parametrize("shared", [b"\0", b"\1", b"\2", b"\3\4code", b"\4", b"\6"])
def test_maps_arrays_texts_and_xml_are_read_to_the_last_byte(shared: bytes) -> None:
    [struct] = yjs.parse(item(7, shared)).structs[5]
    assert (struct.length, struct.shared, struct.root) == (1, True, "r")
    with pytest.raises(InvalidValue):
        yjs.parse(item(7, shared)[:-1])


@pytest.mark.parametrize(
    ("update", "why"),
    [
        (item(7, b"\5\4hook"), "XML hook"),
        (item(7, b"\7"), "unknown shared type"),
        (item(7, b"\3\4cod"), "ends too early"),
        (item(7, b"\3\2\xff\xff"), "not UTF-8"),
        (item(6, b"\1b\4true", key=b"\1k"), "a format is where a value belongs"),
    ],
)
def test_types_that_the_engine_does_not_read_as_they_are_meant_are_refused(update: bytes, why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        yjs.parse(update)


@examples(150)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_parse_or_raise_invalid_value(data: bytes) -> None:
    for read in (yjs.parse, yjs.parse_state):
        with suppress(InvalidValue):
            read(data)


@examples(60)
@given(STEPS.filter(bool), st.data())
def test_a_truncated_update_is_refused(steps: list[Step], data: st.DataObject) -> None:
    for issued in play(steps)[:3]:
        end = data.draw(st.integers(0, len(issued.update) - 1))
        with pytest.raises(InvalidValue):
            yjs.parse(issued.update[:end])


def test_an_update_says_which_roots_it_uses_and_how() -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    doc.get("m", type=pycrdt.Map)["k"] = 1
    doc.get("a", type=pycrdt.Array).append(1)
    doc.get("t", type=pycrdt.Text).insert(0, "x")
    doc.get("x", type=pycrdt.XmlFragment).children.append("x")
    parsed = yjs.parse(doc.get_update())
    assert (parsed.keyed, parsed.listed) == (frozenset("m"), frozenset("atx"))
    assert set(ROOTS) == parsed.keyed | parsed.listed


def test_nesting_counts_shared_types_that_the_update_puts_into_one_another() -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    root: pycrdt.Map[Any] = doc.get("m", type=pycrdt.Map)
    root["flat"] = pycrdt.Map({"a": 1})
    root["other"] = pycrdt.Map({"a": 1})
    assert readiness.advance(yjs.parse(doc.get_update()), {}).deepest == 1
    root["deep"] = pycrdt.Map({"a": pycrdt.Array([pycrdt.Map()])})
    assert readiness.advance(yjs.parse(doc.get_update()), {}).deepest == 3


def test_known_siblings_and_parents_keep_bounds_exact() -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    items: pycrdt.Array[Any] = doc.get("a", type=pycrdt.Array)
    items.append(pycrdt.Map())
    first = readiness.advance(yjs.parse(doc.get_update()), {})
    state = doc.get_state()
    items.append(pycrdt.Map())
    second = yjs.parse(doc.get_update(state))
    assert readiness.advance(second, first.state, deepest=1, shared=first.shared).deepest == 1
    assert readiness.advance(second, first.state, deepest=1).deepest == 2


def test_state_vectors_of_equal_content_have_equal_bytes() -> None:
    assert yjs.pack_state({2: 1, 1: 300}) == yjs.pack_state({1: 300, 2: 1, 7: 0})
    assert yjs.parse_state(yjs.pack_state({1: 300, 2**53 - 1: 1})) == {1: 300, 2**53 - 1: 1}


def test_adjoining_deletions_are_one_range() -> None:
    assert yjs.pack_deletes([(1, 3, 2), (1, 0, 3), (2, 5, 1)]) == yjs.pack_deletes([(2, 5, 1), (1, 0, 5)])


def of_values(many: int, value: bytes, *, nested: bool = False) -> bytes:
    """An update that puts so many values into a list: as one item, or as one value."""
    packed = yjs.pack_varuint
    content = packed(1) + b"\x75" + packed(many) if nested else packed(many)
    return b"\x01\x01\x05\x00\x08\x01\x01l" + content + value * many + b"\x00"


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("value", [b"\x7e", b"\x75\x00", b"\x77\x01a"])
def test_values_count_before_they_are_read(value: bytes, nested: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    many = 4 * yjs.VALUES_PER_STRUCT
    assert yjs.parse(of_values(many, value, nested=nested), structs_max=6).weight in (4, 5)
    read: list[None] = []
    sound = yjs.Reader._any

    def counted(self: yjs.Reader) -> None:
        sound(self)
        read.append(None)

    monkeypatch.setattr(yjs.Reader, "_any", counted)
    with pytest.raises(TooLarge) as refused:
        yjs.parse(of_values(many, value, nested=nested), structs_max=2)
    assert read == []
    assert refused.value.detail["items_max"] == 2


def test_parts_of_embedded_json_count() -> None:
    def embedded(text: bytes) -> bytes:
        return b"\x01\x01\x05\x00\x05\x01\x01t" + yjs.pack_varuint(len(text)) + text + b"\x00"

    assert yjs.parse(embedded(b'"' + b"x" * 1000 + b'"'), structs_max=1).weight == 1
    with pytest.raises(TooLarge):
        yjs.parse(embedded(b"[" + b"1," * 100 + b"1]"), structs_max=3)


def test_an_update_that_was_looked_at_is_not_walked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    update = of_values(3, b"\x7e")
    first = yjs.parse(update)
    monkeypatch.setattr(yjs.Reader, "struct", None)
    assert yjs.parse(update, structs_max=10) is first
    with pytest.raises(TypeError):
        yjs.parse(bytes(bytearray(update)))  # Another one that is equal.
