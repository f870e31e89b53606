"""Maps: changes of different keys never meet, updating wins over removing, and a removed key leaves nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.map import state as ormap
from shoal.kinds.map.state import Add, Alter, Change, Put, Remove
from shoal.kinds.register import state as register
from shoal.kinds.set import state as orset
from tests.support.causal import Apply, Choose, Decide, Operation, Replica, check_converges, origin
from tests.support.examples import examples
from tests.support.rows import DictRows
from tests.support.samples import chooser, fails_for_some_seed

KEYS = ["a", "ab", "b"]
A, B = origin(1), origin(2)
EVERYTHING = VersionVector({origin(n): 99 for n in range(200)})


def apply(rows: Rows, stamp: Stamp, change: Change) -> None:
    """With more than its context: a node applies a peer's operations under its own vector."""
    ormap.apply(rows, replace(stamp, context=EVERYTHING), change)


def put(rows: Rows, key: str, value: bytes, request: str | None = None) -> Put:
    context = register.context_of(ormap.register_of(rows, key))
    return Put(key, value, register.context_entries(context), request)


def add(rows: Rows, of: Origin, key: str, amount: int, request: str | None = None) -> Add:
    before = [] if request else ormap.unkeyed(rows, key, of)
    return Add(key, amount + sum(part.amount for part in before), tuple(part.dot for part in before), request)


def _is_whole(part: ormap.Part) -> bool:
    return not part.directory


def deciding(choose: Choose) -> Decide:
    def decide(replica: Replica, _everyone: list[Replica]) -> list[Change]:
        rows, key = replica.rows, KEYS[choose(len(KEYS))]
        request = [None, None, "r1", "r2"][choose(4)]
        members = ormap.set_of(rows, key)
        match choose(6):
            case 0 | 1:
                return [ormap.removal(rows, key)] if ormap.holds(rows, key) else []
            case 2:
                return [put(rows, key, bytes([choose(3)]), request)]
            case 3:
                named = tuple(orset.named(members, bytes([n])) for n in range(choose(3)))
                return [Alter(key, named[:1], named[1:])]
            case _:
                return [add(rows, replica.origin, key, 1 + choose(9), request)]

    return decide


def counts(operations: list[Operation]) -> dict[str, int]:
    """The twin of the counters: of all adds at once, those that no removal and no add names."""
    stamped = [(at, change) for operation in operations for at, change in operation.stamped()]
    named: set[tuple[str, Dot, bool]] = set()
    for _, change in stamped:
        if isinstance(change, Remove):
            named |= {(change.key, Dot(Origin(of), sequence), keyed) for of, sequence in change.adds for keyed in (False, True)}
        elif isinstance(change, Add):
            named |= {(change.key, Dot(Origin(of), sequence), False) for of, sequence in change.over}
    live = [
        (at, change)
        for at, change in stamped
        if isinstance(change, Add) and (change.key, at.dot, change.request is not None) not in named
    ]
    least: dict[tuple[str, str], Dot] = {}
    for at, change in live:
        if change.request:
            least[change.key, change.request] = min(at.dot, least.get((change.key, change.request), at.dot))
    found: defaultdict[str, int] = defaultdict(int)
    for at, change in live:
        counted = change.request is None or least[change.key, change.request] == at.dot
        found[change.key] += change.amount if counted else 0
    return dict(found)


def check(choose: Choose, apply: Apply = apply) -> None:
    replica = check_converges(choose, apply, deciding(choose))[0]
    rows, expected = replica.rows, counts(replica.applied)
    there = list(ormap.keys(rows))
    assert there == sorted(there) == [key for key in KEYS if ormap.holds(rows, key)]
    assert ormap.size(rows) == len(there)
    assert {key: value for key in KEYS if (value := ormap.value(rows, key)) is not None} == expected
    for key in there:
        assert list(ormap.keys(rows, after=key)) == there[there.index(key) + 1 :]
    if not there:
        assert rows.canonical() == []


@pytest.mark.answers("applying-commutes")
@examples(200)
@given(st.data())
def test_replicas_hold_the_same_entries_as_a_twin_that_sees_all_changes(data: st.DataObject) -> None:
    check(chooser(data))


def a_removal_takes_what_it_has_not_seen(rows: Rows, stamp: Stamp, change: Change) -> None:
    apply(rows, stamp, ormap.removal(rows, change.key) if isinstance(change, Remove) else change)


def an_add_takes_the_place_of_nothing(rows: Rows, stamp: Stamp, change: Change) -> None:
    apply(rows, stamp, Add(change.key, change.amount, (), change.request) if isinstance(change, Add) else change)


def keys_are_counted_by_changes(rows: Rows, stamp: Stamp, change: Change) -> None:
    before = ormap.size(rows)
    apply(rows, stamp, change)
    ormap._count(rows, max(0, before + (-1 if isinstance(change, Remove) else 1)))


BUGS = [a_removal_takes_what_it_has_not_seen, an_add_takes_the_place_of_nothing, keys_are_counted_by_changes]


@pytest.mark.parametrize("bug", BUGS)
def test_the_check_finds_a_planted_bug(bug: Apply) -> None:
    assert fails_for_some_seed(lambda choose: check(choose, bug))


def applied(rows: DictRows, dot: Dot, change: Change) -> None:
    apply(rows, Stamp(dot, dot.sequence, 1000, VersionVector()), change)


def test_an_update_wins_over_a_removal_that_has_not_seen_it() -> None:
    rows = DictRows()
    applied(rows, Dot(A, 1), put(rows, "k", b"old"))
    applied(rows, Dot(A, 2), add(rows, A, "k", 5))
    removal = ormap.removal(rows, "k")
    applied(rows, Dot(B, 1), put(rows, "k", b"new"))
    applied(rows, Dot(A, 3), removal)
    assert [sibling.value for sibling in register.siblings(ormap.register_of(rows, "k"))] == [b"new"]
    assert ormap.value(rows, "k") is None


def test_writing_and_removing_repeatedly_leaves_nothing() -> None:
    rows = DictRows()
    for n in range(50):
        applied(rows, Dot(A, 4 * n + 1), put(rows, "k", b"v"))
        applied(rows, Dot(A, 4 * n + 2), add(rows, A, "k", 1))
        applied(rows, Dot(A, 4 * n + 3), Alter("k", (orset.named(ormap.set_of(rows, "k"), b"e"),)))
        applied(rows, Dot(A, 4 * n + 4), ormap.removal(rows, "k"))
    assert rows.rows == {}


def test_adds_of_one_origin_are_one_row() -> None:
    rows = DictRows()
    for n in range(50):
        applied(rows, Dot(A, n + 1), add(rows, A, "k", 2))
    assert ormap.value(rows, "k") == 100
    assert len(rows.rows) == 2


# ── folds ─────────────────────────────────────────────────────────────────────


class Folding:
    """As `deciding`, with folds of what was stable and expired when all replicas last held the same."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._others = deciding(choose)
        self._settled, self._epoch = VersionVector(), 0
        self.removes = choose(2) == 1
        self.past: defaultdict[int, set[Origin]] = defaultdict(set)  # By replica, the origins that its directory remembers.
        self._opened = 0
        self.made: dict[tuple[str, object], tuple[Dot, int]] = {}  # By key, and by request or dot: the least dot's amount.

    def decide(self, replica: Replica, everyone: list[Replica]) -> list[Change]:
        choose, rows, key = self._choose, replica.rows, KEYS[self._choose(len(KEYS))]
        self.past[id(replica)].add(replica.origin)
        match choose(6):
            case 5:
                self._reopen(replica)
                return []
            case 0:
                everything = [operation for each in everyone for operation in each.applied]
                for each in everyone:
                    each.receive(everything)
                self._settled, self._epoch = replica.vector, self._epoch + 1
                return []
            case 1:
                fold = ormap.fold(
                    rows,
                    key,
                    directory=self._directory(replica),
                    own=lambda part: self._is_own(replica, part),
                    settled=lambda part: self._settled.covers(part.dot),
                    least=1,
                    most=2 + choose(4),
                )
                return [] if fold is None else [fold]
            case 2 | 3:
                request = f"{self._epoch} r{choose(2)}" if choose(4) else None
                dot, amount = Dot(replica.origin, replica.vector[replica.origin] + 1), 1 + choose(9)
                self.made[key, request or dot] = min((dot, amount), self.made.get((key, request or dot), (dot, amount)))
                return [add(rows, replica.origin, key, amount, request)]
            case _:
                made = self._others(replica, everyone)
                return [each for each in made if not isinstance(each, Add) and (self.removes or not isinstance(each, Remove))]

    def _directory(self, replica: Replica) -> bytes:
        return id(replica).to_bytes(8, "big")

    def _is_own(self, replica: Replica, part: ormap.Part) -> bool:
        if part.directory:
            return part.directory == self._directory(replica)
        return part.dot.origin in self.past[id(replica)]

    def _reopen(self, replica: Replica) -> None:
        """Go on under another origin, and forget past ones that have no adds which were not merged."""
        self._opened += 1
        replica.origin = origin(100 + self._opened if self._choose(2) else 99 - self._opened)
        past = self.past[id(replica)]
        left = set[Origin]().union(*(ormap.adders(replica.rows, key, _is_whole) for key in KEYS))
        past.difference_update([each for each in sorted(past) if each not in left and self._choose(2)])
        past.add(replica.origin)


def check_folds(choose: Choose) -> None:
    folding = Folding(choose)
    rows = check_converges(choose, apply, folding.decide, steps=40)[0].rows
    if not folding.removes:
        for key in KEYS:
            expected = sum(amount for (of, _), (_, amount) in folding.made.items() if of == key)
            assert (ormap.value(rows, key) or 0) == expected


@pytest.mark.answers("request-that-two-nodes-took-counts-twice-once", "two-directories-fold-one-merged-add")
@examples(200)
@given(st.data())
def test_replicas_hold_equal_rows_and_the_sum_of_all_adds_whatever_is_folded_when(data: st.DataObject) -> None:
    check_folds(chooser(data))


def test_the_check_finds_a_fold_of_adds_that_are_not_stable() -> None:
    sound = ormap.fold

    def fold(rows: Rows, key: str, **options: Any) -> ormap.Fold | None:
        return sound(rows, key, **options | {"settled": lambda part: True})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ormap, "fold", fold)
        assert fails_for_some_seed(check_folds)


@pytest.mark.parametrize("bug", [lambda part: True, lambda part: bool(part.directory)])
def test_the_check_finds_a_fold_of_what_another_directory_added_or_merged(bug: Callable[[ormap.Part], bool]) -> None:
    sound = Folding._is_own
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Folding, "_is_own", lambda self, replica, part: sound(self, replica, part) or bug(part))
        assert fails_for_some_seed(check_folds)


@pytest.mark.parametrize("forgotten", ["lost", "place"])
def test_the_check_finds_a_fold_that_forgets(forgotten: str) -> None:
    sound = ormap._fold

    def fold(rows: Rows, change: ormap.Fold) -> None:
        sound(rows, replace(change, lost=()) if forgotten == "lost" else replace(change, over=change.over[-1:]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ormap, "_fold", fold)
        assert fails_for_some_seed(check_folds)


def folded(rows: Rows, of: Origin) -> ormap.Fold | None:
    """The fold of all adds of an origin."""
    return ormap.fold(
        rows, "k", directory=b"", own=lambda part: part.dot.origin == of, settled=lambda part: True, least=1, most=100
    )


def test_many_adds_with_keys_become_one_row() -> None:
    rows = DictRows()
    for n in range(50):
        applied(rows, Dot(A, n + 1), add(rows, A, "k", 2, f"r{n}"))
    fold = ormap.fold(
        rows, "k", directory=b"", own=lambda part: part.dot.origin == A, settled=lambda part: True, least=1, most=100
    )
    assert fold is not None
    applied(rows, Dot(A, 51), fold)
    assert ormap.value(rows, "k") == 100
    assert len(rows.rows) == 2
    applied(rows, Dot(A, 52), add(rows, A, "k", 1))
    assert ormap.value(rows, "k") == 101
    assert len(rows.rows) == 2


def test_a_folded_add_leaves_its_repetition_at_another_node_without_effect() -> None:
    rows = DictRows()
    for n in range(16):
        applied(rows, Dot(A, n + 1), add(rows, A, "k", 2, f"r{n}"))
    applied(rows, Dot(B, 1), add(rows, B, "k", 2, "r0"))
    fold = ormap.fold(
        rows, "k", directory=b"", own=lambda part: part.dot.origin == A, settled=lambda part: True, least=1, most=100
    )
    assert fold is not None
    applied(rows, Dot(A, 99), fold)
    assert ormap.value(rows, "k") == 2 * 16


def test_a_removal_that_has_not_seen_the_fold_removes_all_of_it() -> None:
    rows = DictRows()
    for n in range(16):
        applied(rows, Dot(A, n + 1), add(rows, A, "k", 2, f"r{n}"))
    removal = ormap.removal(rows, "k")
    fold = ormap.fold(
        rows, "k", directory=b"", own=lambda part: part.dot.origin == A, settled=lambda part: True, least=1, most=100
    )
    assert fold is not None
    orders: list[list[Change]] = [[fold, removal], [removal, fold]]
    for changes in orders:
        copy = DictRows()
        copy.rows.update(rows.rows)
        for number, change in enumerate(changes):
            applied(copy, Dot(B, number + 1), change)
        assert copy.canonical() == []


@pytest.mark.answers("adds-to-keys-of-maps-stay-for-ever-once")
@pytest.mark.parametrize("merged", [False, True])
def test_an_add_that_was_merged_is_folded_by_later_openings_of_its_directory(merged: bool) -> None:
    """They do not know its origin any more."""
    rows, (mine, other) = DictRows(), (b"m" * 16, b"o" * 16)

    def fold(of: Origin, directory: bytes, least: int = 1) -> ormap.Fold | None:
        return ormap.fold(
            rows,
            "k",
            directory=directory,
            own=lambda part: part.directory == directory if part.directory else part.dot.origin == of,
            settled=lambda part: True,
            least=least,
            most=100,
        )

    applied(rows, Dot(B, 1), add(rows, B, "k", 1))
    if merged:
        first = fold(B, mine)
        assert first is not None
        applied(rows, Dot(B, 2), first)
        assert fold(B, mine) is None
    assert ormap.adders(rows, "k", _is_whole) == (set() if merged else {B})
    applied(rows, Dot(A, 1), add(rows, A, "k", 2))
    assert fold(A, other, 2) is None
    second = fold(A, mine, 2)
    assert (second is not None) == merged
    if second is not None:
        applied(rows, Dot(A, 2), second)
        assert len(rows.rows) == 2
    assert ormap.value(rows, "k") == 3


def test_an_add_of_an_older_version_is_read() -> None:
    rows = DictRows()
    for n in (1, 2):
        applied(rows, Dot(A, n), add(rows, A, "k", 2, f"r{n}"))
    fold = folded(rows, A)
    assert fold is not None
    applied(rows, Dot(A, 3), fold)
    (_, stored), *_ = rows.scan(b"Ek")
    assert stored == msgspec.msgpack.encode([4, None])
    assert ormap.value(rows, "k") == 4
