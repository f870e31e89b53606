from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.crdt.chunking import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, cuts, shared_prefix

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
@settings(max_examples=60)
def test_chunks_cover_the_data_and_keep_their_bounds(data: bytes) -> None:
    ends = cuts(data)
    sizes = [end - start for start, end in pairwise([0, *ends])]
    assert sum(sizes) == len(data)
    assert all(CHUNK_BYTES_MIN <= size <= CHUNK_BYTES_MAX for size in sizes[:-1])
    assert all(0 < size <= CHUNK_BYTES_MAX for size in sizes[-1:])


@given(slices, slices)
@settings(max_examples=60)
def test_an_append_keeps_all_chunks_but_the_last(data: bytes, more: bytes) -> None:
    before = cuts(data)[:-1]
    assert cuts(data + more)[: len(before)] == before


@given(slices, st.data())
@settings(max_examples=60)
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
    assert cuts(Random(7).randbytes(30_000)) == [1622, 10506, 26890, 28826, 30000]


@given(st.binary(max_size=50), st.binary(max_size=50), st.binary(max_size=50))
def test_shared_prefix_is_the_longest(start: bytes, a: bytes, b: bytes) -> None:
    a, b = start + a, start + b
    size = shared_prefix(a, b)
    assert a[:size] == b[:size]
    assert size == min(len(a), len(b)) or a[size] != b[size]


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES_MIN])
def test_small_data_is_one_chunk_or_none(size: int) -> None:
    assert cuts(bytes(size)) == ([size] if size else [])
