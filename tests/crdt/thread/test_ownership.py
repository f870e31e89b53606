from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import COUNTER_BITS, Dot, Origin, VersionVector
from shoal.crdt.rows import Stamp
from shoal.kinds.label import state as labels
from shoal.kinds.label.state import LeaseMark, TakeOwnership, TimedMark
from tests.support.rows import DictRows


def test_the_latest_claim_holds_whatever_the_order() -> None:
    claims = [(5, b"a"), (7, b"b"), (7, b"c"), (6, b"z")]
    for order in permutations(claims):
        rows = DictRows()
        for number, (hlc, token) in enumerate(order):
            stamp = Stamp(Dot(Origin(b"o" * 16), number + 1), hlc, 0, VersionVector())
            labels.apply(rows, stamp, TakeOwnership(token))
        assert labels.owner(rows) == b"c"


def test_nobody_owns_a_thread_that_was_not_claimed() -> None:
    assert labels.owner(DictRows()) == b""


def test_the_greatest_mark_counts_whatever_the_order() -> None:
    marks = [LeaseMark(1, "a"), LeaseMark(2, "b"), LeaseMark(2, "b", over=True)]
    for order in permutations(marks):
        rows = DictRows()
        for number, mark in enumerate(order, 1):
            labels.apply_mark(rows, Stamp(Dot(Origin(b"o" * 16), number), number, 0, VersionVector()), mark)
        assert labels.marked(rows) == (2, True, "b")


def _terms(order: Iterable[tuple[int, TimedMark]]) -> DictRows:
    rows = DictRows()
    for number, (hlc, term) in enumerate(order, 1):
        labels.apply_term(rows, Stamp(Dot(Origin(b"o" * 16), number), hlc << COUNTER_BITS, 0, VersionVector()), term)
    return rows


def test_terms_are_kept_with_their_earliest_times_whatever_the_order() -> None:
    told = [(5, TimedMark(1, "a")), (9, TimedMark(1, "", over=True)), (7, TimedMark(1, "a")), (11, TimedMark(2, "b"))]
    found = [_terms(order) for order in permutations(told)]
    assert all(labels.tenures(rows) == [(2, "b", 11, 0), (1, "a", 5, 9)] for rows in found)
    assert all(rows.canonical() == found[0].canonical() for rows in found)
    assert [labels.is_open(found[0], fence) for fence in (1, 2, 3)] == [False, True, False]
    assert labels.marked(found[0]) == (2, False, "b")


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6), st.booleans()), max_size=30), st.randoms())
def test_the_terms_with_the_greatest_numbers_are_kept_whatever_the_order(
    told: list[tuple[int, int, bool]], random: Random
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labels, "TERMS_MAX", 2)
        terms = [(hlc, TimedMark(fence, "x", over)) for hlc, fence, over in told]
        rows = _terms(terms)
        mixed = terms.copy()
        random.shuffle(mixed)
        assert _terms(mixed).canonical() == rows.canonical()
        earliest: dict[tuple[int, bool], int] = {}
        for hlc, fence, over in told:
            earliest[fence, over] = min(hlc, earliest.get((fence, over), hlc))
        kept = dict(sorted(earliest.items())[-4:])
        begun = {fence: hlc for (fence, over), hlc in kept.items() if not over}
        assert {term.fence: (term.from_ms, term.until_ms) for term in labels.tenures(rows)} == {
            fence: (hlc, kept.get((fence, True), 0)) for fence, hlc in begun.items()
        }
