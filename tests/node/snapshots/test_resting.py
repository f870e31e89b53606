"""How a node that takes snapshots makes room for writes."""

from __future__ import annotations

import pytest

from shoal.cluster.taking import Snapshots
from shoal.node.snapshots.receiving import Rests
from tests.cluster.test_snapshots import LIMITS, Holding


class Joining:
    """A node that takes snapshots; it stands for its group commit too."""

    def __init__(self) -> None:
        self.now = 100.0
        self.written = 7  # Before the first piece arrives.
        self.snapshots = Snapshots(Holding(), LIMITS)
        self.rests = Rests(self.snapshots, self, lambda: self.now)  # type: ignore[arg-type]

    def work(self, seconds: float, *, writes: int = 0) -> None:
        with self.rests.work():
            self.now += seconds
            self.rests.writes += writes
            self.written += writes

    @property
    def rest_s(self) -> float:
        return self.snapshots.rests_for(self.now)


@pytest.fixture
def joining() -> Joining:
    return Joining()


def test_a_node_to_which_nobody_writes_does_not_rest(joining: Joining) -> None:
    for _ in range(3):
        joining.work(0.01, writes=2)
        assert joining.rest_s == 0.0


@pytest.mark.answers("snapshots-hold-up-clients")
def test_beside_writes_it_rests_four_times_as_long_as_it_worked(joining: Joining) -> None:
    joining.written += 1
    joining.work(0.01, writes=1)
    assert joining.rest_s == pytest.approx(0.04)


def test_pieces_that_arrive_in_a_rest_make_it_longer_up_to_a_second(joining: Joining) -> None:
    joining.written += 1
    joining.work(0.01)
    joining.work(0.01)
    assert joining.rest_s == pytest.approx(0.07), "0.03 s were left when the second piece was done"
    joining.work(5.0)
    assert joining.rest_s == 0.0, "the last write was long ago"
    joining.written += 1
    joining.work(5.0)
    assert joining.rest_s == pytest.approx(1.0)


def test_a_write_counts_for_a_moment(joining: Joining) -> None:
    joining.written += 1
    joining.work(0.01)
    joining.now += 0.05
    joining.work(0.01)
    assert joining.rest_s == pytest.approx(0.04)
    joining.now += 0.2
    joining.work(0.01)
    assert joining.rest_s == 0.0


def test_work_within_work_counts_once(joining: Joining) -> None:
    joining.written += 1
    with joining.rests.work():
        joining.now += 0.01
        joining.work(0.01)
    assert joining.rest_s == pytest.approx(0.08)


def test_work_that_failed_counts(joining: Joining) -> None:
    joining.written += 1
    with pytest.raises(ValueError, match="bad piece"), joining.rests.work():
        joining.now += 0.01
        raise ValueError("bad piece")
    joining.work(0.01)
    assert joining.rest_s == pytest.approx(0.07)
