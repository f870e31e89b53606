"""The order in which a group commit's operations go to the peers."""

from __future__ import annotations

from typing import Any, cast

import pytest

from shoal.cluster.messages import Shipment
from shoal.crdt.dot import Dot, Origin
from shoal.node.peers.outgoing import Settling
from shoal.node.writes.issuing import Logged

ORIGIN = Origin(b"o" * 16)


class Place:
    """Stands for a partition."""

    def __init__(self, number: int) -> None:
        self.number = number

    def settle(self, last: Dot, operations: int) -> None:
        """Nothing is shown here."""


def settled(*writes: tuple[str, int], beside: bool = True) -> list[tuple[int, int]]:
    """Partition and sequence of each operation as it goes out, beside its sync or after it. A write: space and partition."""
    settling, sequences = Settling(cast("Any", None)), dict[int, int]()
    for number, (space, partition) in enumerate(writes, 1):
        sequence = sequences[partition] = sequences.get(partition, 0) + 1
        shipment = Shipment(partition, ORIGIN, sequence, b"", b"", b"")
        settling.issued(Logged(number, cast("Any", Place(partition)), shipment, space))
    sent = settling.begun(len(writes)) if beside else settling.settle(len(writes)).unsent
    assert not settling.settle(len(writes)).unsent
    return [(each.partition, each.sequence) for each in sent]


def test_an_operation_that_must_wait_holds_up_its_partition() -> None:
    settling = Settling(cast("Any", None))
    for number, (partition, may_precede) in enumerate([(1, True), (1, False), (1, True), (2, True)], 1):
        shipment = Shipment(partition, ORIGIN, number, b"", b"", b"")
        settling.issued(Logged(number, cast("Any", Place(partition)), shipment, may_precede=may_precede))
    assert [each.sequence for each in settling.begun(3)] == [1]
    assert [each.sequence for each in settling.begun(4)] == [4]
    settled = settling.settle(4)
    assert [each.sequence for each in settled.unsent] == [2, 3]
    assert settled.issued == {(1, ORIGIN): 3, (2, ORIGIN): 4}


@pytest.mark.parametrize("beside", [True, False])
def test_spaces_take_turns_towards_peers(beside: bool) -> None:
    sent = settled(*[("busy", 1)] * 50, ("quiet", 2), beside=beside)
    assert sent.index((2, 1)) == 1


def test_a_partition_keeps_its_order() -> None:
    sent = settled(*[("busy", 1)] * 5, ("quiet", 1), ("busy", 2), ("quiet", 2), ("busy", 1))
    for partition in (1, 2):
        sequences = [sequence for place, sequence in sent if place == partition]
        assert sequences == sorted(sequences)


def test_one_space_keeps_its_order() -> None:
    assert settled(("a", 1), ("a", 2), ("a", 1)) == [(1, 1), (2, 1), (1, 2)]
