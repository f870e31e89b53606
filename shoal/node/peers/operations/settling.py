"""Operations that are written and not durable yet, in the order of their writes.

Law: those that were issued here go to the peers one of each space in turn, and in the order of their writes within a partition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from operator import itemgetter

from shoal.cluster.delivery import Arrival
from shoal.cluster.messages import Shipment
from shoal.crdt.dot import Dot, Origin
from shoal.node.partitions import Partition, Partitions
from shoal.node.writes.issuing import Logged
from shoal.records import NamedTuple

Run = tuple[bytes, int, Dot, int]
"""The peer that sent operations of one origin, their partition, the last of them, and their number."""


class _Unsettled(NamedTuple):
    """Operations of one origin."""

    number: int  # Of the storage write.
    partition: Partition
    last: Dot
    operations: int
    shipment: Shipment | None  # If it is one that was issued here;
    peer: bytes  # else the peer that sent them.
    space: str = ""


class Settling:
    """The queue of these operations; bounded by `writes_pending_max` writes."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._unsettled: deque[_Unsettled] = deque()

    def issued(self, logged: Logged) -> None:
        """An operation of this node was written."""
        shipment = logged.shipment
        self._unsettled.append(_Unsettled(logged.number, logged.partition, shipment.dot, 1, shipment, b"", logged.space))

    def applied(self, peer: bytes, number: int, arrivals: Iterable[Arrival]) -> set[int]:
        """Operations of a peer were written, with this number. Returns their partitions."""
        runs: dict[tuple[int, Origin], list[int]] = {}
        for arrival in arrivals:
            runs.setdefault((arrival.shipment.partition, arrival.dot.origin), []).append(arrival.dot.sequence)
        for (partition, origin), sequences in runs.items():
            last = Dot(origin, sequences[-1])
            self._unsettled.append(_Unsettled(number, self._partitions.load(partition), last, len(sequences), None, peer))
        return {partition for partition, _ in runs}

    def settle(self, number: int) -> tuple[list[Shipment], list[Run]]:
        """All writes up to this number are durable. Returns the operations that were issued here, and those of peers."""
        issued: list[_Unsettled] = []
        stored: list[Run] = []
        while self._unsettled and self._unsettled[0].number <= number:
            settled = self._unsettled.popleft()
            settled.partition.settle(settled.last, settled.operations)
            if settled.shipment is None:
                stored.append((settled.peer, settled.partition.number, settled.last, settled.operations))
            else:
                issued.append(settled)
        return _in_turns(issued), stored


def _in_turns(issued: Sequence[_Unsettled]) -> list[Shipment]:
    """One of each space in turn, but none before an older one of its partition."""
    shipments = [each.shipment for each in issued if each.shipment is not None]
    if len({each.space for each in issued}) < 2:
        return shipments
    rounds: dict[str, int] = {}
    reached: dict[int, int] = {}  # By partition.
    ranks: list[int] = []
    for each in issued:
        number = each.partition.number
        nth = rounds[each.space] = rounds.get(each.space, 0) + 1
        reached[number] = max(nth, reached.get(number, 0))
        ranks.append(reached[number])
    return [shipment for _, shipment in sorted(zip(ranks, shipments, strict=True), key=itemgetter(0))]
