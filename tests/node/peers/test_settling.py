"""The order in which a group commit's operations go to the peers."""

from __future__ import annotations

from typing import Any, cast

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


def settled(*writes: tuple[str, int]) -> list[tuple[int, int]]:
    """Partition and sequence of each operation as it goes out; a write is its space and its partition."""
    settling, sequences = Settling(cast("Any", None)), dict[int, int]()
    for number, (space, partition) in enumerate(writes, 1):
        sequence = sequences[partition] = sequences.get(partition, 0) + 1
        shipment = Shipment(partition, ORIGIN, sequence, b"", b"", b"")
        settling.issued(Logged(number, cast("Any", Place(partition)), shipment, space))
    issued, _ = settling.settle(len(writes))
    return [(each.partition, each.sequence) for each in issued]


def test_spaces_take_turns_towards_peers() -> None:
    sent = settled(*[("busy", 1)] * 50, ("quiet", 2))
    assert sent.index((2, 1)) == 1


def test_a_partition_keeps_its_order() -> None:
    sent = settled(*[("busy", 1)] * 5, ("quiet", 1), ("busy", 2), ("quiet", 2), ("busy", 1))
    for partition in (1, 2):
        sequences = [sequence for place, sequence in sent if place == partition]
        assert sequences == sorted(sequences)


def test_one_space_keeps_its_order() -> None:
    assert settled(("a", 1), ("a", 2), ("a", 1)) == [(1, 1), (2, 1), (1, 2)]
