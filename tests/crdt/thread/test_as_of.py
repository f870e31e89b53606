"""Where branches were when: the same on every replica, and as an obvious twin has it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import Stamp
from shoal.kinds.thread.state import dag, pruning
from tests.crdt.thread.test_moves import apply, moved, saved
from tests.support.causal import origin
from tests.support.examples import examples
from tests.support.rows import DictRows


def at(sequence: int, wall_ms: int, *, by: int = 1) -> Stamp:
    return Stamp(Dot(origin(by), sequence), sequence, wall_ms, VersionVector())


@examples(100)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), min_size=1, max_size=12), st.integers(0, 25))
def test_it_is_what_was_put_there_last_by_then(history: list[tuple[bool, int]], when: int) -> None:
    rows, put = DictRows(), list[tuple[int, bytes, bytes]]()
    for number, (moves, wall_ms) in enumerate(history):
        heads = [head.id for head in dag.heads(rows, "main")]
        nonce = bytes([number])
        made = moved(rows, "main", put[0][2], nonce) if moves and put else saved(rows, "main", heads, nonce)
        apply(rows, at(number + 1, wall_ms), made)
        put.append((wall_ms, made.token, put[0][2] if moves and put else made.token))
    then = [entry for entry in put if entry[0] <= when]
    assert pruning.as_of(rows, "main", when) == (max(then)[2] if then else None)


def test_before_its_beginning_a_branch_was_where_it_began() -> None:
    rows = DictRows()
    first = saved(rows, "main", [], b"first")
    apply(rows, at(1, 10), first)
    second = saved(rows, "main", [first.token], b"second")
    apply(rows, at(2, 20), second)
    apply(rows, at(3, 30), moved(rows, "side", second.token, b"side"))
    apply(rows, at(4, 40), saved(rows, "begun", [second.token], b"begun"))
    for branch in ("side", "begun"):
        assert pruning.as_of(rows, branch, 25) == second.token
        assert pruning.as_of(rows, branch, 15) == first.token
        assert pruning.as_of(rows, branch, 5) is None


def test_a_save_under_two_dots_was_made_when_the_least_says() -> None:
    rows = DictRows()
    save = saved(rows, "main", [], b"once")
    apply(rows, at(1, 50, by=2), save)
    apply(rows, at(1, 10, by=1), save)
    assert pruning.as_of(rows, "main", 20) == save.token
    assert len(list(rows.scan(dag.WHEN))) == 1


def test_removed_rows_are_passed_over() -> None:
    rows = DictRows()
    first = saved(rows, "main", [], b"first")
    apply(rows, at(1, 10), first)
    second = saved(rows, "main", [first.token], b"second")
    apply(rows, at(2, 20), second)
    rows.delete(dag.CHECKPOINT + second.token)
    assert pruning.as_of(rows, "main", 30) == first.token


def test_names_that_begin_alike_are_two_branches() -> None:
    rows = DictRows()
    apply(rows, at(1, 10), saved(rows, "main-2", [], b"x"))
    assert pruning.as_of(rows, "main", 99) is None
