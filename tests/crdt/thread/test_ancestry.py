"""Common ancestors, against a twin that knows every descent."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import Stamp
from shoal.errors import NotFound, TooLarge
from shoal.kinds.thread.state import dag, pruning
from shoal.kinds.thread.state.dag import Record, Save
from tests.support.causal import origin
from tests.support.examples import examples
from tests.support.rows import DictRows


def grown(history: list[list[int]]) -> tuple[DictRows, list[bytes], list[set[int]]]:
    """Rows, ids by number, and per number all that it is or descends from."""
    rows, ids, lines = DictRows(), list[bytes](), list[set[int]]()
    for number, back in enumerate(history):
        parents = sorted({number - 1 - step % number for step in back}) if number else []
        record = Record([ids[parent] for parent in parents], "main", "", 0, b"\x80", number.to_bytes(2, "big"), {})
        packed = dag.encode_record(record)
        save = Save(dag.identify(record), sha256(packed).digest())
        dag.apply(rows, Stamp(Dot(origin(1), number + 1), number, 0, VersionVector()), save, record=packed, chunks={})
        ids.append(save.id)
        lines.append({number}.union(*(lines[parent] for parent in parents)))
    return rows, ids, lines


@examples(200)
@given(st.lists(st.lists(st.integers(0, 6), max_size=2), min_size=1, max_size=14), st.data())
def test_it_is_the_newest_that_all_descend_from(history: list[list[int]], data: st.DataObject) -> None:
    rows, ids, lines = grown(history)
    chosen = data.draw(st.lists(st.integers(0, len(ids) - 1), min_size=1, max_size=4))
    common = set.intersection(*(lines[number] for number in chosen))
    expected = ids[max(common)] if common else None
    assert pruning.common_ancestor(rows, [ids[number] for number in chosen]) == expected
    assert pruning.in_order(rows, [ids[number] for number in chosen]) == [ids[number] for number in sorted(set(chosen))]


def test_a_cursor_too_far_back_is_an_error() -> None:
    rows, ids, _ = grown([[0]] * 10)
    assert pruning.common_ancestor(rows, [ids[0], ids[9]], visits_max=10) == ids[0]
    with pytest.raises(TooLarge, match="within the last 9"):
        pruning.common_ancestor(rows, [ids[0], ids[9]], visits_max=9)


def test_a_pruned_checkpoint_is_no_common_ancestor() -> None:
    rows, ids, _ = grown([[], [0], [1]])  # Both others build on the first.
    assert pruning.common_ancestor(rows, ids[1:]) == ids[0]
    pruning.apply(rows, Stamp(Dot(origin(1), 4), 4, 0, VersionVector()), pruning.Prune([ids[0]]))
    assert pruning.common_ancestor(rows, ids[1:]) is None


def test_an_unknown_checkpoint_is_not_found() -> None:
    with pytest.raises(NotFound):
        pruning.common_ancestor(DictRows(), [bytes(32)])
