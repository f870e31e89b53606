from __future__ import annotations

from collections.abc import Iterable

import pytest

from shoal.cluster.delivery import Delivery, Quarantine
from shoal.cluster.fetching import OPERATIONS_WANTED, Fetching
from shoal.cluster.knowledge import Knowledge
from shoal.cluster.messages import Range, Want
from shoal.crdt.dot import NOTHING_SEEN, Dot, Origin, VersionVector
from tests.cluster.test_delivery import arrival

A = Origin(b"a" * 16)


class Empty:
    """A replica without operations."""

    def applied(self, partition: int, /) -> VersionVector:
        return NOTHING_SEEN

    durable = endings = applied

    def partitions(self) -> Iterable[int]:
        return ()

    def retirements(self, partition: int, known: VersionVector, /) -> tuple[VersionVector, VersionVector]:
        return NOTHING_SEEN, NOTHING_SEEN

    def own_origin(self) -> Origin | None:
        return None


def ahead(held: dict[int, int]) -> tuple[Fetching, Knowledge]:
    """A peer is known to hold so many operations of partitions."""
    replica = Empty()
    delivery = Delivery(replica.applied, bytes_max=1)
    quarantine = Quarantine(places_max=1, duration_s=1.0)
    fetching = Fetching(replica, delivery, quarantine, grace_s=0.0, answer_s=2.0, pause_s_max=10.0)
    known = Knowledge(replica)
    for partition, count in held.items():
        known.take([(partition, A, count)])
        fetching.note(b"peer", partition, 0.0)
    return fetching, known


def wanted(held: dict[int, int]) -> Want:
    """What is asked of a peer that holds so many operations of partitions."""
    fetching, known = ahead(held)
    want = fetching.want(b"peer", known, 0.0)
    assert want is not None
    return want


def test_many_partitions_with_few_operations_are_asked_for_at_once() -> None:
    assert wanted(dict.fromkeys(range(10), 3)).ranges == [(partition, A, 1, 3) for partition in range(10)]


@pytest.mark.answers("queues-are-bounded")
def test_no_more_is_asked_for_than_one_answer_can_hold() -> None:
    ranges = wanted(dict.fromkeys(range(10), OPERATIONS_WANTED // 2)).ranges
    assert [partition for partition, *_ in ranges] == [0, 1]


@pytest.mark.answers("seed-1166")
def test_a_want_that_found_no_room_is_asked_again_soon() -> None:
    fetching, known = ahead({1: 3})
    for at in (0.0, 0.2, 0.4, 0.6):  # However often: the peer has not failed to answer.
        want = fetching.want(b"peer", known, at)
        assert want is not None
        fetching.untaken(b"peer", want.id, at)
        assert fetching.want(b"peer", known, at + 0.01) is None
    assert fetching.want(b"peer", known, 0.8) is not None


def test_waiting_operations_are_not_asked_for() -> None:
    replica = Empty()
    delivery = Delivery(replica.applied, bytes_max=1 << 20)
    fetching = Fetching(replica, delivery, Quarantine(places_max=1, duration_s=1.0), grace_s=0.0, answer_s=1.0, pause_s_max=1.0)
    early = arrival(Dot(A, 1), 1, Dot(Origin(b"b" * 16), 1))
    delivery.take([early], sender=b"peer")
    known = Knowledge(replica)
    known.take([(0, A, 3)])

    def wanted_of(peer: bytes) -> list[Range]:
        fetching.note(peer, 0, 0.0)
        want = fetching.want(peer, known, 0.0)
        assert want is not None
        fetching.forget(peer)
        return want.ranges

    assert wanted_of(b"peer") == [(0, A, 2, 3)]
    assert wanted_of(b"other") == [(0, A, 1, 3)], "what one peer sent may be another operation than the true one"
    delivery.take([early], sender=b"other")
    assert wanted_of(b"other") == [(0, A, 2, 3)]


def test_a_partition_is_fetched_from_one_peer() -> None:
    replica = Empty()
    delivery = Delivery(replica.applied, bytes_max=1)
    fetching = Fetching(replica, delivery, Quarantine(places_max=1, duration_s=1.0), grace_s=0.0, answer_s=1.0, pause_s_max=1.0)
    known = Knowledge(replica)
    known.take([(0, A, 3)])
    for peer in (b"one", b"other"):
        fetching.note(peer, 0, 0.0)
    assert fetching.want(b"one", known, 0.0) is not None
    assert fetching.want(b"other", known, 0.0) is None
