from __future__ import annotations

from itertools import permutations
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.crdt.rows import Stamp
from shoal.errors import InvalidValue, StoreCorrupt
from shoal.kinds.label import state as notes
from shoal.kinds.label.state import Annotate, Cut, Note
from tests.support.examples import examples
from tests.support.rows import DictRows

ORIGINS = [Origin(bytes([n]) * 16) for n in range(3)]


class Operation(NamedTuple):
    stamp: Stamp
    notes: list[Note]  # None: a cut of the label.
    key: str | None = None
    cuts: VersionVector = VersionVector()

    def apply(self, rows: DictRows) -> None:
        if not self.notes:
            notes.cut(rows, self.stamp, Cut("l", self.cuts.pack()))
            return
        packed = notes.pack(self.notes)
        notes.apply_note(rows, self.stamp, Annotate("l", b"", self.key), packed)


def operation(number: int, *written: Note, cuts: dict[Origin, int] | None = None, key: str | None = None) -> Operation:
    """The `number`-th on one of three nodes: its HLC grows with its number."""
    stamp = Stamp(Dot(ORIGINS[number % 3], number // 3 + 1), 10 + number, 0, VersionVector())
    return Operation(stamp, list(written), key, VersionVector(cuts or {}))


def shown(operations: list[Operation]) -> list[tuple[bytes, bytes]]:
    rows = DictRows()
    for op in operations:
        op.apply(rows)
    return [(note.name, note.value) for note in notes.read(rows, "l")]


written = st.builds(Note, st.sampled_from([b"a", b"b"]), st.binary(max_size=2), st.booleans())
cuts = st.dictionaries(st.sampled_from(ORIGINS), st.integers(1, 3))
histories = st.lists(st.tuples(st.lists(written, max_size=3), st.sampled_from([None, "k"]), cuts), max_size=7)


@pytest.mark.answers("writes-stored-before-or-after-their-checkpoint")
@given(histories, st.data())
@examples(200)
def test_replicas_agree_whatever_the_order(
    history: list[tuple[list[Note], str | None, dict[Origin, int]]], data: st.DataObject
) -> None:
    operations = [operation(number, *what, key=key, cuts=cut) for number, (what, key, cut) in enumerate(history)]
    rows, others = DictRows(), DictRows()
    for op in operations:
        op.apply(rows)
    for op in data.draw(st.permutations(operations)):
        op.apply(others)
    assert others.canonical() == rows.canonical()
    assert notes.read(others, "l") == notes.read(rows, "l")


@pytest.mark.answers("notes-that-were-dropped-with-their-label-stay")
@given(histories, st.data())
@examples(200)
def test_cut_notes_can_be_swept_in_any_order(
    history: list[tuple[list[Note], str | None, dict[Origin, int]]], data: st.DataObject
) -> None:
    """Once all operations are there, as they are when a cut is stable; another cut may come later."""
    operations = [operation(number, *what, key=key, cuts=cut) for number, (what, key, cut) in enumerate(history)]
    made = [Cut("l", op.cuts.pack()) for op in operations if not op.notes]
    ends = []
    for late in (None, *made):
        rows = DictRows()
        for op in operations:
            if op.notes or op.cuts.pack() != getattr(late, "known", None):
                op.apply(rows)
        before = notes.read(rows, "l")
        for cut in data.draw(st.permutations([cut for cut in made if cut != late])):
            sweep(rows, cut)
            assert notes.read(rows, "l") == before
        if late is not None:
            notes.cut(rows, operations[0].stamp, late)
            sweep(rows, late)
        ends.append(rows.canonical())
        assert not any(notes.parsed(row) == ("l", None) for row, _ in rows.scan(b""))
    assert all(end == ends[0] for end in ends)


def sweep(rows: DictRows, cut: Cut) -> None:
    """As a node does it."""
    for row in list(notes.swept(rows, cut)):
        rows.delete(row)
    notes.settle(rows, notes.unpack_cut(notes.pack_cut(cut)))


def test_a_note_written_first_stays_and_any_other_is_replaced() -> None:
    earlier = operation(0, Note(b"kept", b"1", True), Note(b"replaced", b"1"))
    later = operation(1, Note(b"kept", b"2", True), Note(b"replaced", b"2"))
    for order in permutations([earlier, later]):
        assert shown(list(order)) == [(b"kept", b"1"), (b"replaced", b"2")]


def test_a_request_at_two_nodes_counts_once() -> None:
    """The second comes after another write: it must not undo that."""
    first = operation(0, Note(b"a", b"old"), key="k")
    between = operation(1, Note(b"a", b"new"))
    again = operation(2, Note(b"a", b"old"), key="k")
    for order in permutations([first, between, again]):
        assert shown(list(order)) == [(b"a", b"new")]


def test_a_cut_drops_what_it_knew_and_nothing_else() -> None:
    known, unknown = operation(0, Note(b"a", b"known")), operation(1, Note(b"a", b"unknown", True))
    cut = operation(5, cuts={ORIGINS[0]: 1})
    for order in ([known, unknown, cut], [known, cut, unknown], [unknown, known, cut]):
        assert shown(order) == [(b"a", b"unknown")]


def test_labels_do_not_run_into_each_other() -> None:
    rows = DictRows()
    for label in ["l", "ll", "l\x00"]:
        stamp = operation(0).stamp
        notes.apply_note(rows, stamp, Annotate(label, b""), notes.pack([Note(b"n", label.encode())]))
    assert [note.value for note in notes.read(rows, "l")] == [b"l"]


def test_the_content_of_a_change_is_found_again() -> None:
    rows, op = DictRows(), operation(0, Note(b"a", b"v"), key="k")
    op.apply(rows)
    assert notes.content_of(rows, op.stamp, Annotate("l", b"", "k")) == notes.pack(op.notes)
    with pytest.raises(StoreCorrupt):
        notes.content_of(rows, op.stamp, Annotate("m", b"", "k"))


def test_bytes_that_are_no_notes_are_refused() -> None:
    with pytest.raises(InvalidValue):
        notes.unpack(b"\xc1")


def test_known_notes_cover_those_that_are_there() -> None:
    rows = DictRows()
    for number in range(5):
        operation(number, Note(b"a", b"v")).apply(rows)
    vector = notes.known(rows, "l")
    assert vector == VersionVector({ORIGINS[0]: 2, ORIGINS[1]: 2, ORIGINS[2]: 1})
    notes.cut(rows, operation(9).stamp, Cut("l", vector.pack()))
    assert notes.read(rows, "l") == []
    assert not notes.known(rows, "l")
