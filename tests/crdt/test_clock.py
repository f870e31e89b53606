"""The hybrid clock never goes back, and stays near wall time where that is possible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import COUNTER_BITS, END_MS, HybridClock, is_plausible, wall_ms_of

walls = st.integers(0, 2**40)
events = st.lists(st.one_of(st.tuples(st.just("issue"), walls), st.tuples(st.just("observe"), st.integers(0, 2**60))))


@given(events)
def test_a_reading_is_above_all_that_was_issued_or_seen(steps: list[tuple[str, int]]) -> None:
    clock, highest = HybridClock(), 0
    for what, number in steps:
        if what == "observe":
            clock.observe(number)
            highest = max(highest, number)
        else:
            reading = clock.issue(number)
            assert reading > highest
            highest = reading


@given(walls, walls)
def test_a_reading_is_never_behind_the_wall_clock(earlier: int, wall_ms: int) -> None:
    clock = HybridClock()
    clock.issue(earlier)
    assert wall_ms_of(clock.issue(wall_ms)) >= wall_ms


def test_a_clock_that_was_never_ahead_reads_the_wall_time() -> None:
    assert wall_ms_of(HybridClock().issue(1234)) == 1234


def test_more_readings_than_the_counter_holds_run_into_the_milliseconds() -> None:
    clock = HybridClock((5 << COUNTER_BITS) + (1 << COUNTER_BITS) - 1)
    assert clock.issue(5) == 6 << COUNTER_BITS


@given(walls, walls)
def test_ahead_ms_is_the_distance_to_the_wall_clock_and_never_negative(seen: int, wall_ms: int) -> None:
    clock = HybridClock()
    clock.observe(seen << COUNTER_BITS)
    assert clock.ahead_ms(wall_ms) == max(0, seen - wall_ms)


@given(st.integers(0, 2**62), st.lists(st.integers(0, 2**50), max_size=20))
def test_readings_are_plausible_to_those_who_saw_the_same(seen: int, walls_ms: list[int]) -> None:
    clock, known = HybridClock(seen), seen
    for wall_ms in walls_ms:
        hlc = clock.issue(wall_ms)
        assert is_plausible(hlc, seen=known)
        known = max(known, hlc)


def test_a_time_at_the_end_is_not_plausible_to_whoever_saw_nothing_near_it() -> None:
    assert not is_plausible(END_MS << COUNTER_BITS, seen=0)
    assert not is_plausible((1 << 64) - 1, seen=END_MS << COUNTER_BITS)


def test_observing_an_older_reading_changes_nothing() -> None:
    clock = HybridClock(100)
    clock.observe(99)
    assert clock.last == 100
