"""Pieces, walks and differences: the comparison of rows without any node."""

from __future__ import annotations

import pytest

from shoal.cluster.scrub import UNSURE, Difference, Differences, Piece, Walk

A, B = b"object-a/", b"object-b/"
PEER = b"p" * 16


def _piece(
    rows: dict[bytes, bytes], *, unsure: frozenset[bytes] = frozenset(), start: bytes = b"object", stop: bytes = b"p"
) -> Piece:
    return Piece(1, b"v", start, stop, 0, [(key[: len(A)], key, value) for key, value in sorted(rows.items())], unsure)


def test_equal_rows_have_equal_hashes_and_no_other_rows_have() -> None:
    rows = {A + b"1": b"x", A + b"2": b"y"}
    assert _piece(rows).digest() == _piece(rows).digest()
    for other in ({A + b"1": b"x"}, {**rows, A + b"2": b"z"}, {A + b"1x": b"", A + b"2": b"y"}):
        assert _piece(other).digest() != _piece(rows).digest()


def test_the_object_that_differs_is_named_until_it_is_equal() -> None:
    found = Differences(10)
    ours = _piece({A + b"1": b"x", B + b"1": b"y"})
    assert found.compare(PEER, ours, _piece({A + b"1": b"x", B + b"1": b"other"}).objects(), now=0.0) == [B]
    assert found.all() == [Difference(PEER, B)]
    assert found.compare(PEER, ours, ours.objects(), now=1.0) == []
    assert found.all() == []


def test_an_object_that_only_one_has_differs() -> None:
    found = Differences(10)
    assert found.compare(PEER, _piece({A + b"1": b"x"}), {}, now=0.0) == [A]
    assert found.compare(PEER, _piece({}), {B: b"digest"}, now=0.0) == [B]


@pytest.mark.answers("differing-rows-are-replaced")
def test_an_object_that_either_is_sweeping_is_not_compared() -> None:
    found = Differences(10)
    assert found.compare(PEER, _piece({A + b"1": b"x"}), {A: UNSURE}, now=0.0) == []
    assert found.compare(PEER, _piece({}, unsure=frozenset([A])), {A: b"digest"}, now=0.0) == []


def test_a_piece_that_holds_an_object_in_part_does_not_show_it_equal() -> None:
    found = Differences(10)
    found.compare(PEER, _piece({A + b"1": b"x"}), {A: b"digest"}, now=0.0)
    found.equal(PEER, _piece({A + b"2": b"x"}, start=A + b"2"))
    found.equal(PEER, _piece({A + b"2": b"x"}, stop=A + b"3"))
    assert found.all() == [Difference(PEER, A)]
    found.equal(PEER, _piece({A + b"1": b"x"}))
    assert found.all() == []


def test_differences_are_bounded() -> None:
    found = Differences(1)
    assert found.compare(PEER, _piece({A + b"1": b"x", B + b"1": b"y"}), {}, now=0.0) == [A, B]
    assert len(found) == 1


def test_differences_that_a_pass_misses_are_over() -> None:
    found = Differences(10)
    found.compare(PEER, _piece({A + b"1": b"x"}), {}, now=0.0)
    found.expire(100.0, 1.0, linked=[])
    assert len(found) == 1
    found.expire(102.0, 1.0, linked=[PEER])
    assert len(found) == 1
    found.expire(104.0, 1.0, linked=[PEER])
    assert len(found) == 0


def test_a_walk_goes_through_every_partition_once_an_interval_within_its_budget() -> None:
    walk = Walk(interval_s=10.0, bytes_per_s=100.0)
    read: list[tuple[int, bytes, float]] = []
    assert walk.passed is None
    for step in range(400):
        now = step / 10
        place = walk.due(now, lambda: [3, 1])
        if place is not None:
            read.append((*place, now))
            walk.done(50, b"middle" if place == (3, b"") else None, now)
    assert [place[:2] for place in read] == [(1, b""), (3, b""), (3, b"middle")] * 3
    assert [place[2] for place in read[:4]] == [10.0, 10.5, 11.0, 20.0]
    assert walk.passed == 31.0
