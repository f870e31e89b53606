from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster import delivery, operation
from shoal.cluster.delivery import Arrival, Delivery, Sorted
from shoal.cluster.messages import Shipment
from shoal.cluster.operation import Body, Reach, Readiness, readiness
from shoal.crdt.dot import Dot, Origin, VersionVector
from tests.cluster.replicas import ToyCluster
from tests.support.examples import examples

A, B = Origin(b"a" * 16), Origin(b"b" * 16)
PLENTY = 1 << 20


def arrival(dot: Dot, hlc: int, *after: Dot, partition: int = 0) -> Arrival:
    body = Body(hlc, 0, [(each.origin, each.sequence) for each in after], None, b"")
    packed = operation.encode(body)
    return Arrival(Shipment(partition, *dot, bytes(32), packed, b""), body, dot)


class Sink:
    """A replica that applies whatever is handed out, and checks that it may."""

    def __init__(self, bytes_max: int = PLENTY) -> None:
        self.vectors: dict[int, VersionVector] = {}
        self.applied: list[Dot] = []
        self.delivery = Delivery(lambda partition: self.vectors.get(partition, VersionVector()), bytes_max=bytes_max)

    def take(self, *arrivals: Arrival) -> Sorted:
        found = self.delivery.take(arrivals)
        for each in found.ready:
            vector = self.vectors.get(each.shipment.partition, VersionVector())
            assert readiness(vector, each.dot, each.body.context) is Readiness.READY
            self.vectors[each.shipment.partition] = vector.advance(each.dot)
            self.applied.append(each.dot)
        return found


def test_following_operations_are_handed_out_at_once() -> None:
    sink = Sink()
    sink.take(arrival(Dot(A, 1), 1), arrival(Dot(A, 2), 2))
    assert sink.applied == [(A, 1), (A, 2)]


@pytest.mark.answers("updates-are-applied-out-of-causal-order")
def test_early_operations_wait_for_what_they_need() -> None:
    sink = Sink()
    late, early, last = arrival(Dot(A, 1), 1), arrival(Dot(B, 1), 2, Dot(A, 1)), arrival(Dot(B, 2), 3)
    assert sink.take(last, early).early == [last, early]
    assert (sink.applied, len(sink.delivery)) == ([], 2)
    sink.take(late)
    assert sink.applied == [(A, 1), (B, 1), (B, 2)]
    assert (len(sink.delivery), sink.delivery.waiting_bytes) == (0, 0)


def test_applied_operations_are_handed_out_as_seen() -> None:
    sink = Sink()
    first = arrival(Dot(A, 1), 1)
    sink.take(first)
    assert sink.take(first).again == [first]
    assert sink.applied == [(A, 1)]


def test_waiting_operations_are_kept_once() -> None:
    sink = Sink()
    second = arrival(Dot(A, 2), 2)
    sink.take(second)
    assert sink.take(second).again == [second]
    assert sink.delivery.waiting_bytes == second.bytes


def test_partitions_do_not_wait_for_each_other() -> None:
    sink = Sink()
    sink.take(arrival(Dot(A, 2), 2, partition=1), arrival(Dot(A, 1), 1, partition=2))
    assert sink.applied == [(A, 1)]


@pytest.mark.answers("seed-20059")
def test_operations_that_waited_too_long_may_come_again() -> None:
    """What it depends on may be lost with a disk."""
    sink = Sink()
    first, orphan, other = arrival(Dot(A, 1), 1), arrival(Dot(A, 2), 2), arrival(Dot(B, 2), 3)
    sink.delivery.take([orphan], 10.0)
    sink.delivery.take([other], 20.0)
    sink.delivery.expire(15.0)
    assert (len(sink.delivery), sink.delivery.waiting_bytes) == (1, other.bytes)
    sink.take(first)
    assert sink.applied == [(A, 1)]
    sink.take(orphan)
    assert sink.applied == [(A, 1), (A, 2)]


def test_a_waiting_operation_keeps_nothing_decoded() -> None:
    """Its bound counts its bytes."""
    sink = Sink()
    sink.take(arrival(Dot(A, 2), 2)._replace(changes=["decoded"]))
    ready = sink.take(arrival(Dot(A, 1), 1)._replace(changes=["decoded"])).ready
    assert [each.changes for each in ready] == [["decoded"], None]


def test_a_step_looks_at_the_next_of_each_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Dot] = []

    def counted(reach: Reach, dot: Dot, context: Sequence[tuple[bytes, int]]) -> Readiness:
        looked.append(dot)
        return readiness(reach, dot, context)

    monkeypatch.setattr(delivery, "readiness", counted)
    sink = Sink()
    for sequence in range(3, 103):
        sink.take(arrival(Dot(A, sequence), sequence), arrival(Dot(B, sequence), sequence, Dot(A, 200)))
    looked.clear()
    sink.take(arrival(Dot(B, 1), 1))
    assert len(looked) <= 3
    sink.take(arrival(Dot(A, 1), 1))
    sink.take(arrival(Dot(A, 2), 2))
    assert sink.applied == [(B, 1), *((A, sequence) for sequence in range(1, 103))]
    assert len(looked) <= 120


def test_past_its_bound_the_newcomer_is_dropped_and_can_come_again() -> None:
    second, third = arrival(Dot(A, 2), 2), arrival(Dot(A, 3), 3)
    sink = Sink(bytes_max=second.bytes)
    assert sink.take(second, third).early == [second, third]
    assert sink.delivery.waits(0, third.dot) is None
    sink.take(arrival(Dot(A, 1), 1))
    sink.take(third)
    assert sink.applied == [(A, 1), (A, 2), (A, 3)]


def test_of_one_partition_few_wait_so_that_one_step_releases_few(monkeypatch: pytest.MonkeyPatch) -> None:
    later = [arrival(Dot(A, n), n) for n in range(2, 8)]
    elsewhere = arrival(Dot(A, 2), 2, partition=1)
    monkeypatch.setattr(delivery, "EARLY_PARTITION_BYTES", 3 * later[0].bytes)
    sink = Sink()
    assert sink.take(*later, elsewhere).early == [*later, elsewhere]
    sink.take(arrival(Dot(A, 1), 1))
    assert sink.applied == [(A, n) for n in range(1, 5)], "one step released them"
    sink.take(*later)
    assert sink.applied == [(A, n) for n in range(1, 8)], "what was dropped came again"
    assert sink.delivery.waits(1, elsewhere.dot) is not None
    assert sink.delivery.waiting_bytes == elsewhere.bytes


def test_one_long_operation_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "EARLY_PARTITION_BYTES", 1)
    sink = Sink()
    sink.take(arrival(Dot(A, 2), 2))
    sink.take(arrival(Dot(A, 1), 1))
    assert sink.applied == [(A, 1), (A, 2)]


def test_waiting_operations_are_dropped_once_they_came_otherwise() -> None:
    sink = Sink()
    sink.take(arrival(Dot(A, 2), 2))
    sink.take(arrival(Dot(A, 1), 1), arrival(Dot(A, 2), 2))
    assert sink.applied == [(A, 1), (A, 2)]
    assert len(sink.delivery) == 0


def test_a_partition_can_be_forgotten_whole() -> None:
    sink = Sink()
    sink.take(arrival(Dot(A, 2), 2), arrival(Dot(A, 2), 2, partition=1))
    sink.delivery.drop(0)
    assert sink.delivery.waits(0, Dot(A, 2)) is None
    assert sink.delivery.waits(1, Dot(A, 2)) is not None
    assert len(sink.delivery) == 1


@pytest.mark.answers("vectors-cover-durable-prefixes")
@examples(60)
@given(seed=st.integers(0, 2**32), bytes_max=st.sampled_from([0, 1500, PLENTY]))
def test_any_history_in_any_order_is_handed_out_causally_and_within_the_bound(seed: int, bytes_max: int) -> None:
    random = Random(seed)
    cluster = ToyCluster(3, random)
    for _ in range(80):
        cluster.step()
    cluster.settle()
    shipments = [shipment for log in cluster.replicas[0].logs.values() for shipment in log.values()]
    arrivals = [Arrival(shipment, operation.decode(shipment.packed), shipment.dot) for shipment in shipments]
    sink = Sink(bytes_max)
    while len(sink.applied) < len(arrivals):  # What was dropped comes again.
        random.shuffle(arrivals)
        at = 0
        while at < len(arrivals):
            size = random.randrange(1, 6)
            sink.take(*arrivals[at : at + size])
            assert sink.delivery.waiting_bytes <= bytes_max
            at += size
    assert len(sink.delivery) == sink.delivery.waiting_bytes == 0
    assert all(vector == cluster.replicas[0].applied(partition) for partition, vector in sink.vectors.items())


@pytest.mark.answers("operation-of-a-removed-directory-arrives-late")
def test_nothing_waits_once_it_is_cleared() -> None:
    sink = Sink()
    sink.take(arrival(Dot(A, 2), 1), arrival(Dot(A, 2), 2, partition=7))
    sink.delivery.clear()
    assert (len(sink.delivery), sink.delivery.waiting_bytes) == (0, 0)
    sink.take(arrival(Dot(A, 1), 1))
    assert sink.applied == [(A, 1)]
