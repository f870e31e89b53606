"""Prunes and moves: which checkpoints are pruned is a function of the set of operations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.thread.state import dag, pruning
from shoal.kinds.thread.state.dag import Move
from shoal.kinds.thread.state.pruning import Prune
from tests.support.causal import Choose, Decide, Replica, check_converges
from tests.support.examples import examples
from tests.support.samples import chooser, fails_for_some_seed

IDS = [bytes([n]) * dag.ID_BYTES for n in range(3)]
Change = Prune | Move


def apply(rows: Rows, stamp: Stamp, change: Change) -> None:
    if isinstance(change, Prune):
        pruning.apply(rows, stamp, change)
    else:
        dag.apply_move(rows, stamp, change)


def deciding(choose: Choose) -> Decide:
    counter = iter(range(10_000))

    def decide(replica: Replica, _everyone: list[Replica]) -> list[Change]:
        rows, id = replica.rows, IDS[choose(len(IDS))]
        heads = dag.heads(rows, "main")
        if choose(2) and id not in {head.id for head in heads}:
            return [Prune([id], [token for token, _ in pruning.moves_to(rows, {id})])]
        if dag.is_pruned(rows, id):
            return []
        token = dag.token_of("main", id, str(next(counter)).encode())
        return [Move(token, "main", id, [head.token for head in heads])]

    return decide


def pruned(replica: Replica) -> set[bytes]:
    """The twin: those with a prune that knew every move to them."""
    changes = [change for operation in replica.applied for change in operation.changes]
    moves = [(change.token, change.to) for change in changes if isinstance(change, Move)]
    return {
        id
        for change in changes
        if isinstance(change, Prune)
        for id in change.ids
        if all(token in change.moves for token, to in moves if to == id)
    }


def check(choose: Choose, apply: Callable[[Rows, Stamp, Change], None] = apply) -> None:
    replica = check_converges(choose, apply, deciding(choose))[0]
    assert {id for id, _ in pruning.marks(replica.rows)} == pruned(replica)
    assert not {head.id for head in dag.heads(replica.rows, "main")} & pruned(replica), "no branch ends at a pruned one"


@examples(150)
@given(st.data())
def test_replicas_prune_what_a_twin_prunes_that_sees_all_operations(data: st.DataObject) -> None:
    check(chooser(data))


def moves_are_not_looked_at(rows: Rows, stamp: Stamp, change: Change) -> None:
    apply(rows, stamp, Prune(change.ids, [token for token, _ in pruning.moves_to(rows, set(change.ids))])) if isinstance(
        change, Prune
    ) else apply(rows, stamp, change)


def a_move_revives_nothing(rows: Rows, stamp: Stamp, change: Change) -> None:
    marks = list(pruning.marks(rows))
    apply(rows, stamp, change)
    for id, dot in marks:
        rows.put(dag.PRUNED + id, dot.pack())


@pytest.mark.parametrize("mutant", [moves_are_not_looked_at, a_move_revives_nothing])
def test_a_mutant_is_caught(mutant: Callable[[Rows, Stamp, Change], None]) -> None:
    assert fails_for_some_seed(lambda choose: check(choose, mutant))
