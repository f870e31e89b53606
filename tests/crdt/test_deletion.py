"""Deletions: the current generation, and what is in it, are functions of the set of operations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt import deletion
from shoal.crdt.deletion import Delete
from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.journal.state.events import EVENT
from tests.support.causal import Choose, Decide, Operation, Replica, check_converges, origin
from tests.support.examples import examples
from tests.support.rows import DictRows
from tests.support.samples import chooser, fails_for_some_seed

Change = Delete | tuple[int, bytes]  # A deletion, or the generation and payload of an event.


def current(rows: Rows) -> int:
    found = deletion.last(rows)
    return 0 if found is None else found.generation


class Within:
    """The rows of one generation."""

    def __init__(self, rows: Rows, generation: int) -> None:
        self._rows, self._prefix = rows, deletion.prefix(generation)

    def get(self, key: bytes, /) -> bytes | None:
        return self._rows.get(self._prefix + key)

    def put(self, key: bytes, value: bytes, /) -> None:
        self._rows.put(self._prefix + key, value)


def apply(rows: Rows, stamp: Stamp, change: Change) -> None:
    """As a node does, and what is dead swept at once."""
    if isinstance(change, Delete):
        if deletion.apply(rows, stamp, change):
            for key, _ in list(rows.scan(b"")):
                if key != deletion.ROW:
                    rows.delete(key)
    elif change[0] == current(rows):
        Within(rows, change[0]).put(EVENT + stamp.pack_position(), change[1])


def deciding(choose: Choose) -> Decide:
    def decide(replica: Replica, _everyone: list[Replica]) -> list[Change]:
        generation = current(replica.rows)
        return [Delete(generation)] if choose(4) == 0 else [(generation, bytes([choose(9)]))]

    return decide


def alive(operations: list[Operation]) -> tuple[int, set[tuple[bytes, bytes]]]:
    """The twin, over all operations at once."""
    stamped = [(stamp, change) for operation in operations for stamp, change in operation.stamped()]
    generation = max((change.generation + 1 for _, change in stamped if isinstance(change, Delete)), default=0)
    return generation, {
        (stamp.pack_position(), change[1])
        for stamp, change in stamped
        if not isinstance(change, Delete) and change[0] == generation
    }


def check(choose: Choose, apply: Callable[[Rows, Stamp, Change], None] = apply) -> None:
    replica = check_converges(choose, apply, deciding(choose))[0]
    generation, events = alive(replica.applied)
    assert current(replica.rows) == generation
    prefix = deletion.prefix(generation) + EVENT
    assert {(key[len(prefix) :], value) for key, value in replica.rows.scan(prefix)} == events


@pytest.mark.answers("replica-that-was-away-brings-tombstoned-data-back")
@examples(100)
@given(st.data())
def test_replicas_show_what_a_twin_shows_that_sees_all_operations(data: st.DataObject) -> None:
    check(chooser(data))


def late_changes_live(rows: Rows, stamp: Stamp, change: Change) -> None:
    if isinstance(change, Delete):
        apply(rows, stamp, change)
    else:
        Within(rows, change[0]).put(EVENT + stamp.pack_position(), change[1])


def the_last_deletion_counts(rows: Rows, stamp: Stamp, change: Change) -> None:
    if isinstance(change, Delete):
        deletion.apply(DictRows(), stamp, change)
        made = DictRows()
        deletion.apply(made, stamp, change)
        rows.put(deletion.ROW, made.rows[deletion.ROW])
    else:
        apply(rows, stamp, change)


@pytest.mark.parametrize("mutant", [late_changes_live, the_last_deletion_counts])
def test_a_mutant_is_caught(mutant: Callable[[Rows, Stamp, Change], None]) -> None:
    assert fails_for_some_seed(lambda choose: check(choose, mutant))


def test_of_two_deletions_of_one_generation_the_least_dot_is_told() -> None:
    rows = DictRows()
    one, other = (Stamp(Dot(origin(n), 1), 5, 5, VersionVector()) for n in (1, 2))
    deletion.apply(rows, other, Delete(0))
    deletion.apply(rows, one, Delete(0))
    found = deletion.last(rows)
    assert found is not None
    assert (found.generation, found.dot) == (1, one.dot)


@pytest.mark.parametrize("named", [(0, 3), (3, 0)])
def test_a_deletion_ends_all_generations_before_its_own(named: tuple[int, int]) -> None:
    rows = DictRows()
    for sequence, generation in enumerate(named, 1):
        deletion.apply(rows, Stamp(Dot(origin(1), sequence), 5, 5, VersionVector()), Delete(generation))
    found = deletion.last(rows)
    assert found is not None
    assert found.generation == 4


def test_no_row_of_one_generation_is_a_row_of_another() -> None:
    prefixes = [deletion.prefix(generation) for generation in (1, 2, 255, 256, deletion.GENERATIONS_MAX)]
    assert deletion.prefix(0) == b""
    assert not any(a != b and b.startswith(a) for a in prefixes for b in prefixes)
    assert all(prefix.startswith(deletion.ROW) and prefix != deletion.ROW for prefix in prefixes)
