"""Counters: every replica counts the same adds, and each key once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt import deletion
from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.counter import state as counter
from shoal.kinds.counter.state import Add
from tests.support.causal import Choose, Decide, Operation, Replica, check_converges, origin
from tests.support.examples import examples
from tests.support.rows import DictRows
from tests.support.samples import chooser, fails_for_some_seed

AMOUNTS = [1, -1, 5, 0, 127, 128, -(2**70)]
KEYS = [None, "a", "b", "ab"]


def stamp(number: int, sequence: int = 1, *, nth: int = 0) -> Stamp:
    return Stamp(Dot(origin(number), sequence), 1, 1, VersionVector(), nth)


def deciding(choose: Choose) -> Decide:
    def decide(_replica: Replica, _all: list[Replica]) -> list[Add]:
        return [Add(AMOUNTS[choose(len(AMOUNTS))], KEYS[choose(len(KEYS))]) for _ in range(1 + choose(2))]

    return decide


def claims(operations: list[Operation]) -> dict[str, list[tuple[Dot, int, int]]]:
    """Per key all adds, the least (dot, nth) first."""
    found: dict[str, list[tuple[Dot, int, int]]] = {}
    for operation in operations:
        for at, add in operation.stamped():
            if add.key is not None:
                found.setdefault(add.key, []).append((at.dot, at.nth, add.amount))
    return {key: sorted(made) for key, made in found.items()}


def check(choose: Choose) -> None:
    """Replicas agree with each other, and with an obvious twin that sees all adds at once."""
    replica = check_converges(choose, counter.apply, deciding(choose))[0]
    made = claims(replica.applied)
    unkeyed = sum(add.amount for operation in replica.applied for add in operation.changes if add.key is None)
    assert counter.value(replica.rows) == unkeyed + sum(adds[0][2] for adds in made.values())
    for key, adds in made.items():
        assert counter.find(replica.rows, key) == adds[0][2]
        losers = {amount: dot for dot, _, amount in reversed(adds) if amount != adds[0][2]}
        found = [conflict for conflict in counter.conflicts(replica.rows) if conflict.key == key]
        assert {conflict.amount: conflict.dot for conflict in found} == losers
        assert len(found) == len(losers)


@pytest.mark.answers("applying-commutes")
@examples(60)
@given(st.data())
def test_replicas_count_the_same_adds_in_any_order_packet_and_repetition(data: st.DataObject) -> None:
    check(chooser(data))


def first_to_arrive_counts(rows: Rows, key: bytes, claim: bytes, amount: int) -> None:
    if rows.get(counter.KEY + key) is None:
        counter._win(rows, key, claim, amount)
    else:
        counter._lose(rows, key, claim, amount)


def loser_is_forgotten(rows: Rows, key: bytes, claim: bytes, amount: int) -> None:
    del rows, key, claim, amount


def last_loser_stays(rows: Rows, key: bytes, claim: bytes, amount: int) -> None:
    rows.put(counter._conflict_row(key, amount), claim)


@pytest.mark.answers("data-type-whose-result-depends-on-the-order")
@pytest.mark.parametrize(
    ("function", "bug"), [("_claim", first_to_arrive_counts), ("_lose", loser_is_forgotten), ("_lose", last_loser_stays)]
)
def test_the_check_finds_a_planted_bug(monkeypatch: pytest.MonkeyPatch, function: str, bug: Callable[..., None]) -> None:
    monkeypatch.setattr(counter, function, bug)
    assert fails_for_some_seed(check)


def test_a_counter_without_adds_is_zero() -> None:
    assert counter.value(DictRows()) == 0
    assert counter.find(DictRows(), "k") is None


def test_of_two_adds_with_one_key_the_least_dot_counts() -> None:
    rows = DictRows()
    counter.apply(rows, stamp(2), Add(5, "k"))
    counter.apply(rows, stamp(1), Add(7, "k"))
    assert (counter.value(rows), counter.find(rows, "k")) == (7, 7)
    assert counter.conflicts(rows) == [counter.Conflict("k", 5, Dot(origin(2), 1))]


def test_within_one_operation_the_first_add_of_a_key_counts() -> None:
    rows = DictRows()
    counter.apply(rows, stamp(1, nth=1), Add(5, "k"))
    counter.apply(rows, stamp(1, nth=0), Add(7, "k"))
    assert counter.value(rows) == 7


def test_the_same_amount_again_is_no_conflict() -> None:
    rows = DictRows()
    for number in (2, 1, 3):
        counter.apply(rows, stamp(number), Add(5, "k"))
    assert (counter.value(rows), counter.conflicts(rows)) == (5, [])


def test_claims_of_clients_keys_come_oldest_first() -> None:
    rows = DictRows()
    for number, wall_ms in enumerate((30, 10, 20), 1):
        counter.apply(rows, stamp(number), Add(1, f"\x01c{wall_ms:012x}"))
    assert [use.wall_ms for use in deletion.uses(rows, limit=2)] == [10, 20]


def test_a_clients_key_tells_when_it_was_made() -> None:
    key = f"\x01c{20:012x}"
    assert [deletion.is_made_before(key, wall_ms) for wall_ms in (20, 21)] == [False, True]
    assert not deletion.is_made_before("k", 21)


def test_a_claim_of_a_users_key_never_expires() -> None:
    rows = DictRows()
    for number, amount in ((2, 1), (1, 2)):
        counter.apply(rows, stamp(number), Add(amount, "k"))
    assert not list(rows.scan(deletion.PREFIX))


def test_a_total_of_zero_has_no_row() -> None:
    rows = DictRows()
    counter.apply(rows, stamp(1, 1), Add(5))
    counter.apply(rows, stamp(1, 2), Add(-5))
    assert rows.canonical() == []


def test_totals_are_unbounded() -> None:
    rows = DictRows()
    for sequence in range(1, 9):
        counter.apply(rows, stamp(1, sequence), Add(2**63 - 1))
    assert counter.value(rows) == 8 * (2**63 - 1)


@pytest.mark.answers("hot-keys-in-a-yjs-map-grow-without-limit")
def test_reading_the_value_scans_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = DictRows()
    for sequence in range(1, 30):
        counter.apply(rows, stamp(1, sequence), Add(1, f"k{sequence}"))
    scanned: Counter[bytes] = Counter()
    scan = rows.scan

    def counting(prefix: bytes, **options: int) -> list[tuple[bytes, bytes]]:
        found = list(scan(prefix, **options))  # type: ignore[arg-type]
        scanned.update(key[:1] for key, _ in found)
        return found

    monkeypatch.setattr(rows, "scan", counting)
    assert counter.value(rows) == 29
    assert not scanned
