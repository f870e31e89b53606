"""Records, offsets, and which records count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import END_MS
from shoal.errors import InvalidInput
from shoal.workflows.streams.record import BEGINNING, Chosen, Offset, Record, State, packed, time_ms, unpacked

STATE = State(0, "text/plain", BEGINNING, BEGINNING, 0)
positions = st.builds(Offset, st.integers(0, 10**16 - 1), st.integers(0, 10**13 - 1), st.integers(0, 10**12 - 1))


@given(positions, positions)
def test_tokens_sort_as_their_positions_do(one: Offset, other: Offset) -> None:
    assert Offset.parse(str(one)) == one
    if one.data != other.data:
        assert (str(one) < str(other)) == (one.data < other.data)


@pytest.mark.parametrize(
    "token", ["", "-2", "a", "1_2", "1,2", "0" * 16, f"{0:016d}_{0:017d}", f"{0:016d}_{0:026d}", "٣" * 16 + "_" + "0" * 16]
)
def test_malformed_offsets_are_refused(token: str) -> None:
    with pytest.raises(InvalidInput):
        Offset.parse(token)


@pytest.mark.parametrize("value", [b"", b"\xc0", b"\x81\xa1a\x01", b"\xff", packed(Record(1, 1, 0, 0, STATE))[:-1]])
def test_malformed_records_are_passed_over(value: bytes) -> None:
    assert unpacked(value) is None
    assert Chosen(first=0, committed=9).take("0" * 68, value) is None


def event(ms: int) -> str:
    return f"{ms << 16:016x}" + "0" * 52


def chosen(*written: tuple[int, int], first: int = 0, committed: int = 9) -> list[tuple[int, int]]:
    """The (fence, index) of the records that count, of those that were written, in the order of their journal."""
    found = Chosen(first=first, committed=committed)
    taken = [found.take(event(ms), packed(Record(fence, index, 0, 0, STATE))) for ms, (fence, index) in enumerate(written)]
    return [(record.fence, record.index) for record in [*taken, found.last()] if record is not None]


def test_a_record_of_a_fenced_holder_does_not_count() -> None:
    assert chosen((1, 0), (1, 1), (2, 1), (2, 2)) == [(1, 0), (2, 1), (2, 2)]
    assert chosen((1, 0), (2, 1), (1, 1), (2, 2)) == [(1, 0), (2, 1), (2, 2)]


def test_a_record_that_arrives_late_shows_nothing_new() -> None:
    assert chosen((1, 0), (2, 1), (2, 2), (1, 1), (2, 3)) == [(1, 0), (2, 1), (2, 2), (2, 3)]
    assert chosen((1, 0), (1, 1), (9, 0)) == [(1, 0), (1, 1)]


def test_uncommitted_records_are_not_shown() -> None:
    assert chosen((1, 0), (1, 1), (3, 1), committed=1) == [(1, 0)]


def test_records_before_an_offset_are_not_shown() -> None:
    assert chosen((1, 3), (5, 7), (5, 8), first=7) == [(5, 7), (5, 8)]


def test_the_time_of_an_event_is_in_its_id() -> None:
    assert time_ms(event(1234)) == 1234
    found = Chosen(first=0, committed=1)
    found.take(event(77), packed(Record(1, 0, 0, 0, STATE)))
    assert time_ms(found.event) == 77


def test_a_clock_that_is_centuries_ahead_leaves_offsets_that_can_be_read() -> None:
    """Shoal takes times up to the year 6429 (shoal.crdt.dot)."""
    offset = Offset(1, time_ms(event(END_MS - 1)), 2)
    assert Offset.parse(str(offset)) == offset
