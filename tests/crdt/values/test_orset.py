"""Sets: adding wins over a removal that has not seen it, and what was removed leaves no row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.set import state as orset
from shoal.kinds.set.state import Alter, Named
from tests.support.causal import Apply, Choose, Decide, Operation, Replica, check_converges, origin
from tests.support.examples import examples
from tests.support.rows import DictRows
from tests.support.samples import chooser, fails_for_some_seed

A, B = origin(1), origin(2)
ELEMENTS = [b"\x01", b"\x01\x00", b"\x02", b"\xff"]


def apply(rows: Rows, stamp: Stamp, alter: Alter) -> None:
    """Without a context: a node applies a peer's operations under its own vector."""
    orset.apply(rows, replace(stamp, context=VersionVector()), alter)


def deciding(choose: Choose) -> Decide:
    def decide(replica: Replica, _everyone: list[Replica]) -> list[Alter]:
        def some() -> tuple[Named, ...]:
            elements = dict.fromkeys(ELEMENTS[choose(len(ELEMENTS))] for _ in range(choose(3)))
            return tuple(orset.named(replica.rows, element) for element in elements)

        return [Alter(some(), some()) for _ in range(1 + choose(2))]

    return decide


def alive(operations: list[Operation]) -> set[bytes]:
    """The twin: of all adds at once, those that no later change of their element has seen."""
    stamped = [(at, change) for operation in operations for at, change in operation.stamped()]

    def saw(later: Stamp, earlier: Stamp) -> bool:
        return later.context.covers(earlier.dot) or (later.dot == earlier.dot and later.nth > earlier.nth)

    def touches(change: Alter, element: bytes) -> bool:
        return any(named.element == element for named in (*change.add, *change.remove))

    return {
        named.element
        for at, change in stamped
        for named in change.add
        if not any(touches(other, named.element) and saw(later, at) for later, other in stamped)
    }


def check(choose: Choose, apply: Apply = apply) -> None:
    replica = check_converges(choose, apply, deciding(choose))[0]
    expected = alive(replica.applied)
    assert list(orset.members(replica.rows)) == sorted(expected)
    assert orset.size(replica.rows) == len(expected)
    assert len(replica.rows.rows) == len(expected) + bool(expected)


@pytest.mark.answers("applying-commutes")
@examples(150)
@given(st.data())
def test_replicas_keep_the_same_members_as_a_twin_that_sees_all_changes(data: st.DataObject) -> None:
    check(chooser(data))


def a_removal_takes_what_it_has_not_seen(rows: Rows, stamp: Stamp, alter: Alter) -> None:
    for named in alter.remove:
        rows.delete(orset.ELEMENT + named.element)
    apply(rows, stamp, Alter(alter.add))


def an_add_replaces_what_it_has_not_seen(rows: Rows, stamp: Stamp, alter: Alter) -> None:
    apply(rows, stamp, alter)
    for named in alter.add:
        rows.put(orset.ELEMENT + named.element, stamp.dot.pack())


def an_add_of_a_member_is_dropped(rows: Rows, stamp: Stamp, alter: Alter) -> None:
    added = tuple(named for named in alter.add if not orset.contains(rows, named.element))
    apply(rows, stamp, Alter(added, alter.remove))


def what_was_seen_is_what_the_replica_has(rows: Rows, stamp: Stamp, alter: Alter) -> None:
    add, remove = (tuple(orset.named(rows, named.element) for named in part) for part in (alter.add, alter.remove))
    apply(rows, stamp, Alter(add, remove))


def the_count_is_of_adds(rows: Rows, stamp: Stamp, alter: Alter) -> None:
    before = orset.size(rows)
    apply(rows, stamp, alter)
    orset._count(rows, max(0, before + len(alter.add) - len(alter.remove)))


BUGS = [
    a_removal_takes_what_it_has_not_seen,
    an_add_replaces_what_it_has_not_seen,
    an_add_of_a_member_is_dropped,
    what_was_seen_is_what_the_replica_has,
    the_count_is_of_adds,
]


@pytest.mark.parametrize("bug", BUGS)
def test_the_check_finds_a_planted_bug(bug: Apply) -> None:
    assert fails_for_some_seed(lambda choose: check(choose, bug))


def applied(rows: DictRows, dot: Dot, *, add: tuple[bytes, ...] = (), remove: tuple[bytes, ...] = ()) -> None:
    """A change of a replica that knows what is there."""
    names = tuple(orset.named(rows, element) for element in add), tuple(orset.named(rows, element) for element in remove)
    apply(rows, Stamp(dot, dot.sequence, 1000, VersionVector()), Alter(*names))


def test_an_add_wins_over_a_removal_that_has_not_seen_it() -> None:
    rows = DictRows()
    applied(rows, Dot(A, 1), add=(b"x",))
    seen = orset.named(rows, b"x")
    applied(rows, Dot(B, 1), add=(b"x",))
    apply(rows, Stamp(Dot(A, 2), 2, 1000, VersionVector({A: 1})), Alter(remove=(seen,)))
    assert orset.contains(rows, b"x")


def test_adding_and_removing_repeatedly_leaves_nothing() -> None:
    rows = DictRows()
    for n in range(100):
        applied(rows, Dot(A, 2 * n + 1), add=(b"x", b"y"))
        applied(rows, Dot(A, 2 * n + 2), remove=(b"x", b"y"))
    assert rows.rows == {}


def test_a_member_removed_and_added_at_once_stays() -> None:
    rows = DictRows()
    applied(rows, Dot(A, 1), add=(b"x",), remove=(b"x",))
    assert orset.contains(rows, b"x")


def test_members_go_on_after_any_of_them() -> None:
    rows = DictRows()
    applied(rows, Dot(A, 1), add=tuple(ELEMENTS))
    for n, element in enumerate(sorted(ELEMENTS)):
        assert list(orset.members(rows, after=element)) == sorted(ELEMENTS)[n + 1 :]
