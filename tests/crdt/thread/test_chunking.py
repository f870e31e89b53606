from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kinds.thread.state import chunking
from shoal.kinds.thread.state.chunking import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, cuts
from tests.support.examples import examples

DATA = {
    "random": Random(1).randbytes(200_000),
    "text": "".join(f'{{"role": "user", "content": "turn {n} of {n * 7919 % 1000}"}}, ' for n in range(4000)).encode(),
    "zeros": bytes(100_000),
}

slices = st.builds(
    lambda kind, start, size: DATA[kind][start : start + size],
    st.sampled_from(sorted(DATA)),
    st.integers(0, 50_000),
    st.integers(0, 60_000),
)


@given(slices)
@examples(60)
def test_chunks_keep_their_bounds_and_leave_less_than_one(data: bytes) -> None:
    ends = cuts(data)
    assert all(CHUNK_BYTES_MIN <= end - start <= CHUNK_BYTES_MAX for start, end in pairwise([0, *ends]))
    assert 0 <= len(data) - (ends[-1] if ends else 0) < CHUNK_BYTES_MAX


def test_hashes_are_the_same_at_the_end_of_a_block() -> None:
    data, end = DATA["random"], chunking._BLOCK
    rolling = chunking.rolling(data)
    for at in range(end - 10, end + 10):
        assert chunking._hashes(data[at : at + chunking._WINDOW])[0] == rolling[at]


@pytest.mark.answers("whole-history-is-stored-again-at-each-step")
@given(slices, slices)
@examples(60)
def test_an_append_moves_no_cut(data: bytes, more: bytes) -> None:
    before = cuts(data)
    assert cuts(data + more)[: len(before)] == before


@given(slices, slices)
@examples(60)
def test_nothing_is_looked_for_in_what_is_known_to_have_no_cut(data: bytes, more: bytes) -> None:
    before = cuts(data)
    last = before[-1] if before else 0
    assert cuts(data + more, last, settled=len(data)) == cuts(data + more)[len(before) :]


@given(slices, st.data())
@examples(60)
def test_cutting_goes_on_from_any_cut(data: bytes, draw: st.DataObject) -> None:
    ends = cuts(data)
    if ends:
        index = draw.draw(st.integers(0, len(ends) - 1))
        assert cuts(data, ends[index]) == ends[index + 1 :]


def test_an_insertion_changes_few_chunks() -> None:
    data = DATA["random"]

    def pieces(of: bytes) -> set[bytes]:
        return {of[start:end] for start, end in pairwise([0, *cuts(of)])}

    before, after = pieces(data), pieces(data[:90_000] + b"inserted" + data[90_000:])
    assert len(after - before) <= 4


def test_cuts_never_move_between_versions() -> None:
    assert cuts(Random(7).randbytes(30_000)) == [
        1295,
        3109,
        6280,
        7848,
        9090,
        10677,
        12227,
        15429,
        16633,
        19266,
        23265,
        27860,
    ]


def test_a_cut_follows_nine_bytes_whose_two_hashes_match() -> None:
    """The obvious twin: each position's hash by itself."""
    data = DATA["text"][:3000] + DATA["random"][:70_000]

    def hashed(at: int) -> int:
        mixed = 0
        for place, byte in enumerate(data[at : at + 8]):
            entry = chunking._BEFORE[byte]
            mixed ^= (entry << place | entry >> 8 - place) & 255
        return chunking._AFTER[mixed]

    hashes = [hashed(at) for at in range(len(data) - 8)]
    expected, start = [], 0
    while start < len(data):
        places = range(start + CHUNK_BYTES_MIN, min(start + CHUNK_BYTES_MAX, len(data)) + 1)
        found = next((at for at in places if hashes[at - 9] == 0 and hashes[at - 8] < 32), None)
        if found is None and len(data) - start >= CHUNK_BYTES_MAX:
            found = start + CHUNK_BYTES_MAX
        if found is None:
            break
        expected.append(start := found)
    assert cuts(data) == expected


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES_MIN - 1])
def test_small_data_has_no_cut(size: int) -> None:
    assert cuts(bytes(size)) == []


def test_data_without_a_pattern_is_cut_at_the_most_bytes_that_a_chunk_may_have() -> None:
    assert cuts(b"x" * (CHUNK_BYTES_MAX - 1)) == []
    assert cuts(b"x" * CHUNK_BYTES_MAX) == [CHUNK_BYTES_MAX]
