"""A thread's status: the latest move counts, every move stays, a request counts once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import Stamp
from shoal.errors import StoreCorrupt
from shoal.kinds.step import state as status
from shoal.kinds.step.state import Move
from tests.support.causal import Choose, Replica, check_converges, origin
from tests.support.examples import examples
from tests.support.rows import DictRows
from tests.support.samples import chooser, fails_for_some_seed

STATUSES: tuple[status.Status, ...] = ("running", "paused", "waiting", "done", "failed")


def check(choose: Choose) -> None:
    def decide(_replica: Replica, _all: list[Replica]) -> list[Move]:
        return [Move(STATUSES[choose(5)], by="ab"[choose(2)], key=(None, "k", "l")[choose(3)])]

    replica = check_converges(choose, status.apply_status, decide)[0]
    made = sorted(
        [pair for operation in replica.applied for pair in operation.stamped()], key=lambda pair: (pair[0].dot, pair[0].nth)
    )
    counted: dict[object, tuple[bytes, Move]] = {}
    for number, (at, move) in enumerate(made):
        counted.setdefault(number if move.key is None else move.key, (at.pack_position(), move))
    current = status.current(replica.rows)
    last = max(counted.values(), key=lambda moved: moved[0], default=None)
    assert (None if current is None else current.status) == (None if last is None else last[1].status)
    assert len(list(replica.rows.scan(status.MOVE))) == len(counted)


@examples(60)
@given(st.data())
def test_replicas_agree_on_the_status_in_any_order_packet_and_repetition(data: st.DataObject) -> None:
    check(chooser(data))


def test_the_check_finds_moves_that_are_ranked_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "_status_rank", lambda position: position)
    assert fails_for_some_seed(check)


def test_a_thread_is_held_while_it_is_paused_or_waiting() -> None:
    rows = DictRows()
    assert not status.is_held(status.current(rows))
    for number, told in enumerate(STATUSES, 1):
        status.apply_status(rows, Stamp(Dot(origin(1), number), number, number, VersionVector()), Move(told))
        assert status.is_held(status.current(rows)) == (told in ("paused", "waiting"))


def test_a_damaged_status_is_said() -> None:
    rows = DictRows()
    rows.put(status.MOVE + b"x", b"\xc1")
    with pytest.raises(StoreCorrupt, match="Run `shoal verify`"):
        status.current(rows)
