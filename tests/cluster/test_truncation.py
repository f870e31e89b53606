"""Which operations leave the log: never those that an owner needs, unless the owner is left behind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster.truncation import Holding, KeepBounds, Reach, last_leaving, may_leave, reach
from shoal.crdt.dot import Origin, VersionVector

ORIGIN = Origin(b"o" * 16)
KEEP_MS, FORGET_MS = 1000, 10_000


def owner(sequence: int, *, linked: bool = True) -> Holding:
    vector = VersionVector({ORIGIN: sequence})
    return Holding(vector, vector, linked)


owners = st.lists(st.builds(owner, st.integers(0, 9), linked=st.booleans()), min_size=1, max_size=5)
ages = st.integers(-5000, 20_000)
sequences = st.integers(1, 9)


def holders(owners: list[Holding], sequence: int) -> list[Holding]:
    return [one for one in owners if one.vector[ORIGIN] >= sequence]


@pytest.mark.answers("operation-leaves-that-an-owner-still-needs")
@given(owners, sequences, ages, st.booleans())
def test_operations_that_leave_are_held_by_a_quorum(owners: list[Holding], sequence: int, age_ms: int, is_over: bool) -> None:
    if may_leave(sequence, age_ms, reach(ORIGIN, owners), KeepBounds(KEEP_MS, FORGET_MS, is_over)):
        assert 2 * len(holders(owners, sequence)) > len(owners)


@pytest.mark.answers("logs-lose-only-what-all-hold", "operation-leaves-that-an-owner-still-needs")
@given(owners, sequences, ages, st.booleans())
def test_an_owner_that_lacks_it_is_away_or_left_behind(
    owners: list[Holding], sequence: int, age_ms: int, is_over: bool
) -> None:
    if not may_leave(sequence, age_ms, reach(ORIGIN, owners), KeepBounds(KEEP_MS, FORGET_MS, is_over)):
        return
    lacking = [one for one in owners if one not in holders(owners, sequence)]
    assert not lacking or age_ms > FORGET_MS or (is_over and not any(one.is_linked for one in lacking))


@given(owners, sequences, ages)
def test_operations_that_all_hold_leave_by_age(owners: list[Holding], sequence: int, age_ms: int) -> None:
    held = reach(ORIGIN, [one._replace(vector=owner(9).vector) for one in owners])
    assert may_leave(sequence, age_ms, held, KeepBounds(KEEP_MS, FORGET_MS)) == (age_ms > KEEP_MS)
    assert may_leave(sequence, age_ms, held, KeepBounds(KEEP_MS, FORGET_MS, is_over=True))


@given(owners, sequences, ages, st.booleans(), st.data())
def test_to_know_more_never_keeps_an_operation(
    owners: list[Holding], sequence: int, age_ms: int, is_over: bool, data: st.DataObject
) -> None:
    terms = KeepBounds(KEEP_MS, FORGET_MS, is_over)
    before = may_leave(sequence, age_ms, reach(ORIGIN, owners), terms)
    at = data.draw(st.integers(0, len(owners) - 1))
    more = owners[at].vector.join(owner(data.draw(sequences)).vector)
    grown = [*owners[:at], owners[at]._replace(vector=more), *owners[at + 1 :]]
    assert may_leave(sequence, age_ms, reach(ORIGIN, grown), terms) >= before


def test_a_lone_node_is_the_only_owner() -> None:
    assert reach(ORIGIN, [owner(7)]) == Reach(7, 7, 7)


@given(st.lists(ages, max_size=8), st.integers(0, 8))
def test_operations_leave_in_their_order_without_a_hole(ages: list[int], held: int) -> None:
    terms = KeepBounds(KEEP_MS, FORGET_MS)
    last = last_leaving(enumerate(ages, start=1), Reach(held, held, held), terms)
    assert all(age > KEEP_MS for age in ages[:last])
    assert last == len(ages) or ages[last] <= KEEP_MS or last == held
