"""The state that the replication protocol keeps of each peer, and the rounds in which it compares with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.cluster.knowledge import Knowledge, Replica, is_retired
from shoal.cluster.marks import Mark
from shoal.cluster.messages import Have
from shoal.crdt.dot import Origin, VersionVector

NEEDS_BYTES_MAX = 64 * 1024  # Of vectors in one Have, unless a single one is longer.


@dataclass(slots=True)
class PeerState:
    """A peer, linked or not. Mutable."""

    known: Knowledge
    mark: Mark
    linked: bool = False
    fenced: bytes = b""  # The run of it of which alone anything is taken; empty: not told yet.
    unended: bool = False  # Whether it said that it does not know where its past origins end.
    fences: bool = True  # Whether it knows of `fenced`.
    heard: int = 0  # The number of the last `Digest.once` from it.
    member: bool = False  # Whether it said, on the current link from it, that it is no learner.
    caught_up: set[int] | None = None  # The partitions of its mark in which it says that it has caught up.
    unheard: set[int] = field(default_factory=set)  # Those of them of which it has not sent its vector since.
    unsaid: dict[tuple[int, Origin], int] = field(default_factory=dict)  # Operations that we hold and have not told it of.

    def have(self, said: dict[tuple[int, Origin], int]) -> Have:
        """The message about these operations, which are held. Those beyond its bound are left in `unsaid`."""
        needs: list[tuple[int, bytes]] = []
        size = 0
        for partition in dict.fromkeys(partition for partition, _ in said):
            needed = self.known.needs(partition)
            if needed is None:
                continue
            packed = needed.pack()
            if needs and size + len(packed) > NEEDS_BYTES_MAX:
                for place in [place for place in said if place[0] == partition]:
                    self.unsaid[place] = max(said.pop(place), self.unsaid.get(place, 0))
                continue
            needs.append((partition, packed))
            size += len(packed)
        return Have([(partition, origin, sequence) for (partition, origin), sequence in said.items()], needs)

    def drop_retired(self, partition: int, applied: VersionVector) -> None:
        """Forget the origins that this replica, which has applied so much of a partition, has retired there."""
        retired = _retired(self.known.vector(partition).join(self.mark.vector(partition)), applied)
        self.known.retire(partition, retired)
        self.mark.retire(partition, retired)


def marked(vectors: Mapping[int, VersionVector], replica: Replica) -> Mark:
    """The mark of a peer as it was stored, without the origins that this replica has retired since."""
    mark = Mark(vectors)
    for number, vector in vectors.items():
        mark.retire(number, _retired(vector, replica.applied(number)))
    return mark


def _retired(vector: VersionVector, applied: VersionVector) -> list[Origin]:
    """The origins in `vector` that a replica which has applied so much has retired."""
    return [origin for origin, sequence in vector.items() if is_retired(applied, origin, sequence)]


class Rounds:
    """Whom a node compares its operations with next, and when. `random` returns a number in [0, 1).

    In a round each linked peer has its turn, in random order: what hangs on the comparison with one peer, as sweeping
    does, waits for one round at most. The times are random, so that nodes which started together do not stay together.
    """

    def __init__(self, *, interval_s: float, random: Callable[[], float]) -> None:
        self.due = 0.0
        """When the next comparison is to be made."""
        self._interval_s = interval_s
        self._random = random
        self._compared: set[bytes] = set()  # In this round.

    def next(self, linked: Sequence[bytes], now: float) -> bytes | None:
        """The peer to compare with now, of these; None if there is none."""
        self.due = now + self._interval_s * (0.5 + self._random())
        if not linked:
            return None
        left = [peer for peer in linked if peer not in self._compared]
        if not left:
            self._compared.clear()
        peer = (left or linked)[int(self._random() * len(left or linked))]
        self._compared.add(peer)
        return peer
