from __future__ import annotations

from itertools import permutations

from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.crdt.rows import Stamp
from shoal.kinds.thread.state import ownership
from shoal.kinds.thread.state.ownership import LeaseMark, TakeOwnership
from tests.support.rows import DictRows


def test_the_latest_claim_holds_whatever_the_order() -> None:
    claims = [(5, b"a"), (7, b"b"), (7, b"c"), (6, b"z")]
    for order in permutations(claims):
        rows = DictRows()
        for number, (hlc, token) in enumerate(order):
            stamp = Stamp(Dot(Origin(b"o" * 16), number + 1), hlc, 0, VersionVector())
            ownership.apply(rows, stamp, TakeOwnership(token))
        assert ownership.owner(rows) == b"c"


def test_nobody_owns_a_thread_that_was_not_claimed() -> None:
    assert ownership.owner(DictRows()) == b""


def test_the_greatest_mark_counts_whatever_the_order() -> None:
    marks = [LeaseMark(1, "a"), LeaseMark(2, "b"), LeaseMark(2, "b", over=True)]
    for order in permutations(marks):
        rows = DictRows()
        for number, mark in enumerate(order, 1):
            ownership.apply_mark(rows, Stamp(Dot(Origin(b"o" * 16), number), number, 0, VersionVector()), mark)
        assert ownership.marked(rows) == (2, True, "b")
