"""Budgets: sums of grants, spends and moves, the same on every replica, and never below 0 where each spends its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.budget import state as budget
from shoal.kinds.budget.state import THE_POOL, Change, Draw, Grant, Spend, Transfer
from shoal.kinds.counter import state as counter
from tests.support.causal import Apply, Choose, Decide, Operation, Replica, check_converges, origin
from tests.support.examples import examples
from tests.support.rows import DictRows
from tests.support.samples import chooser, fails_for_some_seed

REPLICAS = 3


def node(of: bytes) -> bytes:
    return bytes(reversed(of[:-1])) + b"n"


def deciding(choose: Choose) -> Decide:
    """Each spends and gives what it has the rights to; the pool is drawn from by one of them, who needs to ask nobody."""

    def decide(replica: Replica, _everyone: list[Replica]) -> list[Change]:
        own, rows = replica.origin, replica.rows
        rights = budget.rights(rows, own)
        key = [None, None, "k1", "k2"][choose(4)]
        match choose(5):
            case 0:
                return [Grant(1 + choose(9), key)]
            case 1 if own == origin(1) and budget.pool(rows) > 0:
                return [Draw(THE_POOL, 1 + choose(budget.pool(rows)), node(own))]
            case 2 if rights > 0 and own == origin(1):
                return [Draw(THE_POOL, -1 - choose(rights), node(own))]
            case 3 if rights > 0:
                to = origin(1 + choose(REPLICAS))
                return [Transfer(to, node(to), 1 + choose(rights), node(own))]
            case _ if rights > 0:
                return [Spend(1 + choose(rights), node(own), key)]
            case _:
                return [Grant(1 + choose(9))]

    return decide


def counted(operations: list[Operation], kind: type[Grant] | type[Spend]) -> dict[bytes, int]:
    """By origin, those that count: of one key the least dot's."""
    found: dict[str, tuple[Dot, int]] = {}
    totals: dict[bytes, int] = {}
    for operation in operations:
        for at, change in operation.stamped():
            if not isinstance(change, kind):
                continue
            if change.key is None:
                totals[at.dot.origin] = totals.get(at.dot.origin, 0) + change.amount
            else:
                found[change.key] = min(found.get(change.key, (at.dot, change.amount)), (at.dot, change.amount))
    for dot, amount in found.values():
        totals[dot.origin] = totals.get(dot.origin, 0) + amount
    return totals


def check(choose: Choose, apply: Apply = budget.apply) -> None:
    replica = check_converges(choose, apply, deciding(choose))[0]
    rows, operations = replica.rows, replica.applied
    granted, spent = counted(operations, Grant), counted(operations, Spend)
    assert budget.remaining(rows) == sum(granted.values()) - sum(spent.values())
    balances: dict[bytes, int] = {}
    drawn = sum(spent.values())  # Less what was spent by spends that lost: that went to the pool.
    for operation in operations:
        for at, change in operation.stamped():
            own = at.dot.origin
            if isinstance(change, Spend):
                drawn -= change.amount
                balances[own] = balances.get(own, 0) - change.amount
            elif isinstance(change, Draw):
                drawn += change.amount
                balances[own] = balances.get(own, 0) + change.amount
            elif isinstance(change, Transfer):
                balances[own] = balances.get(own, 0) - change.amount
                balances[change.to] = balances.get(change.to, 0) + change.amount
    assert budget.pool(rows) == sum(granted.values()) - drawn
    accounts = budget.accounts(rows)
    assert {a.origin: a.rights for a in accounts} == {origin: rights for origin, rights in balances.items() if rights}
    assert all(account.rights >= 0 for account in accounts)
    assert all(account.node == node(account.origin) for account in accounts)
    # The same key with two amounts is a mistake of who grants; without it nothing is ever overspent.
    if not counter_conflicts(rows):
        assert budget.remaining(rows) >= 0
        assert budget.remaining(rows) == budget.pool(rows) + sum(account.rights for account in accounts)


def counter_conflicts(rows: Rows) -> bool:
    return bool(counter.conflicts(budget.grants(rows)))


@pytest.mark.answers("budgets-are-not-overspent")
@examples(200)
@given(st.data())
def test_replicas_keep_the_same_accounts_as_a_twin_that_sees_all_changes(data: st.DataObject) -> None:
    check(chooser(data))


def a_transfer_counts_twice(rows: Rows, stamp: Stamp, change: Change) -> None:
    budget.apply(rows, stamp, change)
    if isinstance(change, Transfer):
        budget._move(rows, change.to, change.holder, change.amount)


def a_transfer_takes_from_nobody(rows: Rows, stamp: Stamp, change: Change) -> None:
    if isinstance(change, Transfer):
        budget._move(rows, change.to, change.holder, change.amount)
    else:
        budget.apply(rows, stamp, change)


def a_key_does_not_count_once(rows: Rows, stamp: Stamp, change: Change) -> None:
    budget.apply(rows, stamp, replace(change, key=None) if isinstance(change, Grant | Spend) else change)


def the_last_that_came_says_whose_it_is(rows: Rows, stamp: Stamp, change: Change) -> None:
    budget.apply(rows, stamp, change)
    if isinstance(change, Draw | Transfer):
        row = budget.ACCOUNT + (change.to if isinstance(change, Transfer) else stamp.dot.origin)
        if (stored := rows.get(row)) is not None:
            rows.put(row, stamp.dot.origin + stored[16:])


BUGS = [
    a_transfer_counts_twice,
    a_transfer_takes_from_nobody,
    a_key_does_not_count_once,
    the_last_that_came_says_whose_it_is,
]


@pytest.mark.parametrize("bug", BUGS)
def test_the_check_finds_a_planted_bug(bug: Apply) -> None:
    assert fails_for_some_seed(lambda choose: check(choose, bug))


@pytest.mark.parametrize("first", [0, 1])
def test_the_rights_of_a_spend_that_loses_its_key_go_to_the_pool(first: int) -> None:
    rows, one, other = DictRows(), origin(1), origin(2)
    changes: list[tuple[bytes, Change]] = [
        (other, Grant(10)),
        (other, Draw(THE_POOL, 10, node(other))),
        (other, Transfer(one, node(one), 4, node(other))),
    ]
    spends: list[tuple[bytes, Change]] = [(one, Spend(3, node(one), "k")), (other, Spend(3, node(other), "k"))]
    for sequence, (of, change) in enumerate([*changes, spends[first], spends[1 - first]], start=1):
        budget.apply(rows, Stamp(Dot(of, sequence), sequence, 1, VersionVector()), change)  # type: ignore[arg-type]
    assert (budget.rights(rows, one), budget.rights(rows, other)) == (1, 3)
    assert (budget.pool(rows), budget.remaining(rows)) == (3, 7)


@pytest.mark.answers("each-add-that-a-client-sends-leaves-a-row")
def test_an_account_without_rights_has_no_row() -> None:
    rows, one = DictRows(), origin(1)
    changes: list[Change] = [Grant(5), Draw(THE_POOL, 5, node(one)), Spend(5, node(one))]
    for sequence, change in enumerate(changes, start=1):
        budget.apply(rows, Stamp(Dot(one, sequence), sequence, 1, VersionVector()), change)
    assert budget.accounts(rows) == []
    assert not list(rows.scan(budget.ACCOUNT))


def test_rights_that_several_move_from_a_removed_directory_count_once() -> None:
    """One reclaims them from the account itself, two move them to the common one; none knows of the others."""
    rows = DictRows()

    def done(of: bytes, sequence: int, *changes: Change) -> None:
        for nth, change in enumerate(changes):
            stamp = Stamp(Dot(Origin(of), sequence), 1, 1000, VersionVector(), nth)
            budget.apply(rows, stamp, change)

    gone, first, second = origin(1), origin(2), origin(3)
    done(gone, 1, Grant(30), Draw(THE_POOL, 30, node(gone)))
    moves: list[Change] = [Draw(gone, 30, node(first), node(gone)), Transfer(budget.REMOVED, budget.REMOVED, 30, node(first))]
    done(first, 1, *moves)
    assert budget.removed(rows) == 30
    done(second, 1, *moves)
    assert budget.removed(rows) == 30
    done(second, 2, Draw(gone, 30, node(second), node(gone)))
    assert budget.removed(rows) == 0
    assert budget.rights(rows, second) == 30
    assert budget.remaining(rows) == budget.pool(rows) + sum(account.rights for account in budget.accounts(rows)) == 30
