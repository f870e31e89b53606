"""The rows of keys: which operation a key stands for, and what is kept of one that has left the log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster.operation import Body
from shoal.crdt.dot import Dot, Origin
from shoal.kinds.counter import state as counter
from shoal.node import mutation
from shoal.node.collection import answers
from shoal.node.collection.answers import Changed
from shoal.node.mutation import Mutation
from shoal.storage.keys import Kind

dots = st.builds(Dot, st.binary(min_size=16, max_size=16).map(Origin), st.integers(1, 9))
times = st.integers(0, 1000)
WINDOW_MS = 100


@given(dots, times, dots, times)
def test_of_two_operations_with_one_key_exactly_one_counts(one: Dot, one_ms: int, other: Dot, other_ms: int) -> None:
    if one == other:
        return
    counts = answers.counts(one, one_ms, other, other_ms, window_ms=WINDOW_MS)
    assert counts != answers.counts(other, other_ms, one, one_ms, window_ms=WINDOW_MS)
    if one_ms > other_ms + WINDOW_MS:
        assert counts
    elif abs(one_ms - other_ms) <= WINDOW_MS:
        assert counts == (one < other)


@given(dots, times)
def test_a_row_has_the_answer_and_the_objects_of_an_operation_that_left(dot: Dot, wall_ms: int) -> None:
    add = Mutation(Kind.COUNTER, "crew", "n", counter.Add(1), 2)
    body = Body(1, wall_ms, (), "k", mutation.encode([add, add]), b"receipt")
    row = answers.unpack_answer(answers.truncated(dot, body))
    assert (row.dot, row.wall_ms) == (dot, wall_ms)
    assert row.kept == answers.Kept(b"receipt", [Changed(Kind.COUNTER, "crew", "n", 2)])


@given(dots)
def test_a_row_is_the_dot_while_the_operation_is_in_the_log(dot: Dot) -> None:
    assert answers.unpack_answer(dot.pack()) == answers.KeyRow(dot, None, None)


def test_a_key_is_taken_over_after_its_window() -> None:
    least, greater = Dot(Origin(b"a" * 16), 1), Dot(Origin(b"b" * 16), 1)
    assert answers.counts(least, 0, greater, WINDOW_MS, window_ms=WINDOW_MS)
    assert not answers.counts(least, 0, greater, WINDOW_MS + 1, window_ms=WINDOW_MS)
    assert answers.counts(greater, WINDOW_MS + 1, least, 0, window_ms=WINDOW_MS)
