from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.crdt.rows import Stamp
from shoal.kinds.label import state as labels
from shoal.kinds.label.state import LabelEntry, Release
from shoal.kinds.thread.state.dag import Record, Save, apply, encode_record, identify
from tests.support.examples import examples
from tests.support.rows import DictRows

ORIGINS = [Origin(bytes([n]) * 16) for n in range(3)]


class Operation:
    def __init__(self, number: int, run: Callable[[DictRows, Stamp], object], needs: set[int], id: bytes = b"") -> None:
        self.stamp = Stamp(Dot(ORIGINS[number % 3], number + 1), 10 + number, 0, VersionVector())
        self.run, self.needs, self.id = run, needs, id


def saved(number: int, nonce: bytes, needs: set[int]) -> Operation:
    record = Record([], "main", "", 0, b"\x80", nonce, {}, label="l")
    id, packed = identify(record), encode_record(record)
    return Operation(number, lambda rows, stamp: apply(rows, stamp, Save(id, b""), record=packed, chunks={}), needs, id)


def released(number: int, ids: list[bytes], needs: set[int]) -> Operation:
    return Operation(number, lambda rows, stamp: labels.apply_label(rows, stamp, Release("l", ids)), needs)


histories = st.lists(
    st.tuples(st.sampled_from(["save", "save", "repeat", "release"]), st.integers(0, 9)), min_size=1, max_size=9
)


def issued(history: list[tuple[str, int]]) -> list[Operation]:
    """A release names what its issuer had applied: some of the saves, which it therefore comes after."""
    operations: list[Operation] = []
    for number, (what, seed) in enumerate(history):
        saves = [n for n, other in enumerate(operations) if other.id]
        if what == "repeat" and saves:
            older = operations[saves[seed % len(saves)]]
            operations.append(Operation(number, older.run, set(), older.id))
        elif what == "release" and saves:
            known = [n for at, n in enumerate(saves) if (seed >> (at % 4)) & 1] or saves[:1]
            operations.append(released(number, [operations[n].id for n in known], set(known)))
        else:
            operations.append(saved(number, bytes([number]), set()))
    return operations


def delivered(operations: list[Operation], order: list[int]) -> DictRows:
    rows, done, waiting = DictRows(), set[int](), list(order)
    while waiting:
        number = next(n for n in waiting if operations[n].needs <= done)
        waiting.remove(number)
        operations[number].run(rows, operations[number].stamp)
        done.add(number)
    return rows


@given(histories, st.data())
@examples(200)
def test_replicas_agree_whatever_the_order(history: list[tuple[str, int]], data: st.DataObject) -> None:
    operations = issued(history)
    numbers = list(range(len(operations)))
    first = delivered(operations, numbers)
    assert delivered(operations, data.draw(st.permutations(numbers))).canonical() == first.canonical()


@given(histories)
@examples(100)
def test_a_label_names_the_greatest_of_what_was_saved_and_not_released(history: list[tuple[str, int]]) -> None:
    operations = issued(history)
    rows = delivered(operations, list(range(len(operations))))
    gone: set[bytes] = set()
    for operation, (what, _) in zip(operations, history, strict=True):
        if what == "release" and not operation.id:
            gone |= {operations[n].id for n in operation.needs}
    times: dict[bytes, tuple[Dot, int]] = {}
    for operation in operations:
        if operation.id:
            least = times.get(operation.id, (operation.stamp.dot, operation.stamp.hlc))
            times[operation.id] = min(least, (operation.stamp.dot, operation.stamp.hlc))
    live = sorted(((hlc, id) for id, (_, hlc) in times.items() if id not in gone), reverse=True)
    assert [(entry.hlc, entry.id) for entry in labels.entries(rows, "l")] == live


def test_a_repeat_of_a_released_save_does_not_get_the_label_back() -> None:
    first = saved(0, b"n", set())
    repeat = Operation(2, first.run, set(), first.id)
    assert labels.entries(delivered([first, released(1, [first.id], {0}), repeat], [0, 1, 2]), "l") == []


def test_labels_are_listed_in_the_order_of_their_bytes() -> None:
    rows = DictRows()
    for label in ["a/2", "b/1", "a/1", "a/10", "é/1"]:
        labels.name(rows, label, LabelEntry(1, label.encode().ljust(32)), first=True)
    assert [label for label, _ in labels.listed(rows, "")] == ["a/1", "a/10", "a/2", "b/1", "é/1"]
    assert [label for label, _ in labels.listed(rows, "a/", reverse=True)] == ["a/2", "a/10", "a/1"]
    assert [label for label, _ in labels.listed(rows, "a/", after="a/2", reverse=True, limit=1)] == ["a/10"]
    assert next(labels.listed(rows, "b"))[1] == b"b/1".ljust(32)


def test_a_planted_bug_in_the_labels_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: what was saved last takes the label. The order of concurrent saves then shows."""

    def last(rows: DictRows, label: str, entry: LabelEntry, *, first: bool) -> None:
        rows.put(labels.LABEL + label.encode(), entry.hlc.to_bytes(8, "big") + entry.id)

    monkeypatch.setattr(labels, "name", last)
    with pytest.raises(AssertionError):
        test_replicas_agree_whatever_the_order()
