"""Updates in pieces: together they make what the whole makes, and none waits for another."""

from __future__ import annotations

from typing import Any

import pycrdt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidValue, NotReady
from shoal.kinds.document.state import compaction, readiness, yjs
from shoal.kinds.document.state.live import Building
from shoal.kinds.document.state.readiness import pieces
from tests.crdt.document.edits import STEPS, map_update
from tests.support.edits import Step, play
from tests.support.examples import examples


def whole_of(steps: list[Step]) -> bytes:
    building = Building()
    for step in play(steps):
        building.add([step.update])
    return building.snapshot()


def test_no_piece_comes_before_one_that_it_needs() -> None:
    one, other = (pycrdt.Doc[Any](client_id=client) for client in (5, 9))  # In an update the greater client comes first.
    text = one.get("t", type=pycrdt.Text)
    text += "ab"
    other.apply_update(one.get_update())
    other.get("t", type=pycrdt.Text).insert(1, "x")
    one.apply_update(other.get_update())
    text.insert(2, "y")
    state: yjs.StateVector = {}
    for piece in pieces(one.get_update(), structs_max=1):
        state = readiness.advance(yjs.parse(piece), state).state
    assert state == {5: 3, 9: 1}


@pytest.mark.answers("maintenance-stalls-requests")
@examples(100)
@given(STEPS, st.integers(1, 5))
def test_pieces_are_small_and_ready_one_after_the_other_and_make_the_whole(steps: list[Step], structs_max: int) -> None:
    whole = whole_of(steps)
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=0)
    state: yjs.StateVector = {}
    for piece in pieces(whole, structs_max=structs_max):
        parsed = yjs.parse(piece)
        assert sum(map(len, parsed.structs.values())) <= structs_max
        state = readiness.advance(parsed, state).state
        doc.apply_update(piece)
    built = Building(whole).replica.doc
    assert doc.get_update() == whole or doc.get_update(doc.get_state()) == built.get_update(doc.get_state())
    assert state == readiness.advance(yjs.parse(whole), {}).state


@pytest.mark.parametrize("structs_max", [2, 3, 7])
def test_runs_of_values_are_cut(structs_max: int) -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    items = doc.get("l", type=pycrdt.Array)
    items.extend([float(number) for number in range(200)])
    other: pycrdt.Doc[Any] = pycrdt.Doc(client_id=9)
    other.apply_update(doc.get_update())
    shared = other.get("l", type=pycrdt.Array)
    shared[50:50] = [f"text {number}" if number % 3 else [number, {"a": None}] for number in range(100)]
    shared[0:0] = [b"1"] * 40
    shared[len(shared) : len(shared)] = [True] * 40
    whole, built, state = other.get_update(), pycrdt.Doc[Any](client_id=0), dict[int, int]()
    assert yjs.parse(whole).weight > 2 * structs_max
    for piece in pieces(whole, structs_max=structs_max):
        parsed = yjs.parse(piece, structs_max=structs_max)
        state = readiness.advance(parsed, state).state
        built.apply_update(piece)
    assert built.get("l", type=pycrdt.Array).to_py() == shared.to_py()
    assert state == yjs.parse_state(other.get_state())
    assert built.get_update() == whole


def test_a_value_larger_than_a_piece_is_one() -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    doc.get("m", type=pycrdt.Map)["k"] = [0.0] * 1000
    found = [piece for piece in pieces(doc.get_update(), structs_max=2) if yjs.parse(piece).structs]
    assert [yjs.parse(piece).weight for piece in found] == [1 + 1000 // yjs.VALUES_PER_STRUCT]


@pytest.mark.parametrize(
    "damaged", [b"", b"\x01", b"\x00\x00\x00", map_update(1)[:-3], b"\x02" + map_update(1)[1:-1] * 2 + b"\x00"]
)
def test_a_damaged_update_has_no_pieces_that_pass(damaged: bytes) -> None:
    with pytest.raises((InvalidValue, NotReady)):
        for _ in compaction.vet(damaged, structs_max=2):
            pass


def test_a_merged_update_with_a_gap_is_not_vetted() -> None:
    doc: pycrdt.Doc[pycrdt.Text] = pycrdt.Doc(client_id=3)
    text = doc.get("t", type=pycrdt.Text)
    text += "a"
    state = doc.get_state()
    text += "b"
    late = doc.get_update(state)
    with pytest.raises(NotReady):
        for _ in compaction.vet(late, structs_max=2):
            pass
