"""Which updates a compaction covers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from random import Random

import pytest

from shoal.crdt.dot import NOTHING_SEEN, Dot, Floor, VersionVector
from shoal.kinds.document.state.compaction import NOTHING_COVERED, Coverage, End, coverage_of
from tests.support.causal import Choose, origin
from tests.support.retired import Past

ORIGINS = 3
# Of each origin three operations: no two at one time.
POSITIONS = {
    (number, sequence): (10 * sequence + number).to_bytes(8, "big") + Dot(origin(number), sequence).pack() + bytes(2)
    for number in range(1, ORIGINS + 1)
    for sequence in (1, 2, 3)
}


def hlc_of(number: int, sequence: int) -> int:
    return int.from_bytes(POSITIONS[number, sequence][:8], "big")


def drawn(choose: Choose) -> Coverage:
    """Of some origins the first operations, and maybe a floor."""
    named = [POSITIONS[number, 1 + choose(3)] for number in range(1, ORIGINS + 1) if choose(3)]
    hlc = choose(35) if choose(2) else 0
    return coverage_of(named).raised(NOTHING_SEEN.retire((), Past({}, 99, hlc)), 1 << 64)


def shown(coverage: Coverage) -> set[bytes]:
    return {position for position in POSITIONS.values() if coverage.covers(position)}


def test_a_join_covers_and_dominates_both() -> None:
    for seed in range(300):
        choose = Random(seed).randrange
        one, other = drawn(choose), drawn(choose)
        joined = one.join(other)
        assert shown(joined) == shown(one) | shown(other)
        assert joined.dominates(one)
        assert joined.dominates(other)
        assert joined.pack() == other.join(one).pack()
        assert one.join(one) == one


def test_one_that_dominates_covers_all_that_the_other_does() -> None:
    found = 0
    for seed in range(2000):
        choose = Random(seed).randrange
        one, other = drawn(choose), drawn(choose)
        if one.dominates(other):
            found += 1
            assert shown(one) >= shown(other)
    assert found > 100


def test_three_are_joined_in_any_order() -> None:
    for seed in range(100):
        choose = Random(seed).randrange
        some = [drawn(choose) for _ in range(3)]
        packed = set()
        for ordered in permutations(some):
            joined = NOTHING_COVERED
            for each in ordered:
                joined = joined.join(each)
            packed.add(joined.pack())
        assert len(packed) == 1


def test_a_packed_one_is_the_same_again() -> None:
    for seed in range(100):
        coverage = drawn(Random(seed).randrange)
        assert Coverage.unpack(coverage.pack()) == coverage


def raised(coverage: Coverage, *, forgotten_hlc: int, below: int = 1 << 64) -> Coverage:
    return coverage.raised(NOTHING_SEEN.retire((), Past({}, 99, forgotten_hlc)), below)


def test_ends_below_the_floor_need_no_name() -> None:
    whole = coverage_of(POSITIONS.values())
    assert raised(whole, forgotten_hlc=hlc_of(1, 3)).ends.keys() == {origin(2), origin(3)}
    assert raised(whole, forgotten_hlc=hlc_of(3, 3)) == Coverage(Floor(hlc_of(3, 3), 99))


@pytest.mark.answers("compaction-names-every-opening")
def test_the_floor_stays_below_what_is_not_covered() -> None:
    some = coverage_of([POSITIONS[1, 1], POSITIONS[2, 1]])
    assert raised(some, forgotten_hlc=hlc_of(3, 1), below=hlc_of(3, 1)) is some
    assert raised(some, forgotten_hlc=hlc_of(2, 1), below=hlc_of(3, 1)).floor == Floor(hlc_of(2, 1), 99)


def test_the_floor_is_never_lowered_and_a_replica_that_forgot_nothing_raises_none() -> None:
    some = coverage_of([POSITIONS[1, 1]])
    assert some.raised(VersionVector(), 1 << 64) is some
    assert some.raised(NOTHING_SEEN.retire((), Past({origin(1): 50}, 0)), 1 << 64) is some
    high = raised(some, forgotten_hlc=hlc_of(2, 2))
    assert raised(high, forgotten_hlc=hlc_of(2, 1)) is high


def test_a_request_is_settled_by_what_covers_its_edit_once_it_is_old() -> None:
    some = coverage_of([POSITIONS[1, 3], POSITIONS[2, 1]]).join(Coverage(settled=hlc_of(1, 2)))
    assert {position for position in POSITIONS.values() if some.settles(position)} == {
        POSITIONS[1, 1],
        POSITIONS[1, 2],
        POSITIONS[2, 1],
    }
    assert some.join(Coverage(settled=hlc_of(1, 1))).settled == hlc_of(1, 2)
    assert Coverage.unpack(some.pack()) == some


TWO = coverage_of([POSITIONS[1, 1], POSITIONS[2, 1]]).pack()
HEAD = len(NOTHING_COVERED.pack())


@pytest.mark.parametrize(
    "damage",
    [
        lambda: TWO[:-1],
        lambda: TWO[: HEAD - 1],
        lambda: b"\x02" + TWO[1:],
        lambda: TWO[:HEAD] + TWO[HEAD + 32 :] + TWO[HEAD : HEAD + 32],
        lambda: TWO + TWO[-32:],
        lambda: coverage_of([POSITIONS[1, 1]])._replace(floor=Floor(hlc_of(1, 1), 99)).pack(),
        lambda: Coverage(ends={origin(1): End(0, 11)}).pack(),
    ],
    ids=["torn", "torn floor", "newer", "out of order", "twice", "below the floor", "no operation"],
)
def test_bytes_that_are_none_are_refused(damage: Callable[[], bytes]) -> None:
    with pytest.raises(ValueError, match="coverage"):
        Coverage.unpack(damage())
