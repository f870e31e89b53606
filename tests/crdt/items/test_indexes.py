"""Declarations of indexes: one that a drop has not seen stays, and every replica keeps the same rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import Dot
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.items import state as indexes
from shoal.kinds.items.state import Declare, Drop
from tests.support.causal import Apply, Choose, Decide, Operation, Replica, check_converges
from tests.support.examples import examples
from tests.support.samples import chooser, fails_for_some_seed

FIELDS = ["a", "b", "a.b"]
Change = Declare | Drop


def apply(rows: Rows, stamp: Stamp, change: Change) -> None:
    if isinstance(change, Declare):
        indexes.apply_declare(rows, stamp, change)
    else:
        indexes.apply_drop(rows, stamp, change)


def deciding(choose: Choose) -> Decide:
    def change(replica: Replica) -> Change:
        fields = [FIELDS[choose(len(FIELDS))] for _ in range(1 + choose(2))]
        if choose(2):
            return Declare(tuple(fields))
        return Drop(tuple((field, indexes.seen(replica.rows, field)) for field in fields))

    return lambda replica, _everyone: [change(replica) for _ in range(1 + choose(2))]


def live(operations: list[Operation]) -> dict[str, set[Dot]]:
    """The twin: all declarations at once, less those that a drop names, or that their own operation dropped later."""
    stamped = [(at, change) for operation in operations for at, change in operation.stamped()]
    gone: set[tuple[str, tuple[bytes, int]]] = set()
    dropped: dict[tuple[str, Dot], int] = {}
    for at, change in stamped:
        if isinstance(change, Drop):
            for field, seen in change.fields:
                gone.update((field, dot) for dot in seen)
                dropped[field, at.dot] = at.nth
    found: dict[str, set[Dot]] = {}
    for at, change in stamped:
        for field in change.fields if isinstance(change, Declare) else ():
            name = (field, at.dot)
            if name not in gone and dropped.get(name, -1) < at.nth:
                found.setdefault(field, set()).add(at.dot)
    return found


def check(choose: Choose, apply: Apply = apply) -> None:
    replica = check_converges(choose, apply, deciding(choose))[0]
    expected = live(replica.applied)
    assert list(indexes.fields(replica.rows)) == sorted(expected)
    for field, dots in expected.items():
        assert indexes.seen(replica.rows, field) == tuple(sorted(dots))


@examples(150)
@given(st.data())
def test_replicas_keep_the_declarations_of_a_twin_that_sees_all_changes(data: st.DataObject) -> None:
    check(chooser(data))


def dropping_all(rows: Rows, stamp: Stamp, change: Change) -> None:
    if isinstance(change, Drop):
        change = Drop(tuple((field, indexes.seen(rows, field)) for field, _ in change.fields))
    apply(rows, stamp, change)


def declaring_once(rows: Rows, stamp: Stamp, change: Change) -> None:
    if isinstance(change, Declare):
        change = Declare(tuple(field for field in change.fields if not indexes.seen(rows, field)))
    apply(rows, stamp, change)


@pytest.mark.parametrize("mutant", [dropping_all, declaring_once])
def test_a_wrong_rule_is_noticed(mutant: Apply) -> None:
    assert fails_for_some_seed(lambda choose: check(choose, mutant))
