"""The operations that a node must hold before it counts as an owner.

A node whose directory is new, wiped, restored or copied may have forgotten operations that it
acknowledged, and cannot know which. Until it holds everything that a
majority of the other owners hold it is a *learner*: it counts in no quorum.

Why a majority of the others: a write that a quorum acknowledged, of n owners and with
this node among them, is on at least a majority less one of the n - 1 others. Every
majority of the others meets that set, and so names the write. Another learner may have
forgotten the write as well, so it is not counted unless all the others were heard.

While a change of the members is joint, the same tells whether a node holds everything that the old list holds
(`shoal.cluster.membership.epochs`).

A peer may tell a node that its directory was set back (`shoal.cluster.marks`). Then the node must also
hold what it once held, as far as any owner still holds it.

Laws:
- For each owner, the vectors count that it sent after this node became a learner: first a hash for each
  partition, then its whole vector of each that differs.
- Connections do not matter here: the vectors that an owner sent stay a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from shoal.crdt.dot import NOTHING_SEEN, VersionVector


class Learning:
    """`durable` returns this node's own vector of a partition; `owed` is what its directory is known to have held once."""

    def __init__(self, durable: Callable[[int], VersionVector], owed: Mapping[int, VersionVector] | None = None) -> None:
        self._durable = durable
        self._owed = dict(owed or {})
        self._told: dict[bytes, dict[int, VersionVector | None]] = {}  # Per peer: what is still to be held; None: not told yet.

    def equal(self, peer: bytes) -> None:
        """The peer holds the same as this node."""
        self._told[peer] = {}

    def differs(self, peer: bytes, partitions: Iterable[int]) -> None:
        """The peer's vectors of these partitions differ from this node's, and will follow.

        Only the first set of differing partitions counts, although the peer may hold more later: a learner
        acknowledges nothing, so it owes nothing that the peer gets after this.
        """
        differing = set(partitions)
        before = self._told.get(peer)
        if before is None:
            self._told[peer] = dict.fromkeys(differing)
            return
        for partition in [one for one, vector in before.items() if vector is None and one not in differing]:
            del before[partition]  # The two are equal there by now.

    def vector(self, peer: bytes, partition: int, vector: VersionVector) -> None:
        """Take a vector that the peer sent. It matters only for partitions in which the peer differs."""
        told = self._told.get(peer, {})
        if partition in told:
            told[partition] = vector

    def forget(self, peer: bytes) -> None:
        """Forget a peer that was a learner until now: its vectors may lack operations that it once acknowledged."""
        self._told.pop(peer, None)

    def owe(self, owed: Mapping[int, VersionVector]) -> None:
        """Add operations that this node's directory once held, as a peer says."""
        for partition, vector in owed.items():
            self._owed[partition] = self._owed.get(partition, NOTHING_SEEN).join(vector)

    @property
    def owed(self) -> dict[int, VersionVector]:
        """By partition, the operations that this node's directory once held and does not hold now."""
        for partition, vector in list(self._owed.items()):
            if self._durable(partition).dominates(vector):
                del self._owed[partition]
        return dict(self._owed)

    def lacks(self, peers: Collection[bytes]) -> bool:
        """Whether one of these peers told of operations that this node does not hold."""
        return any(peer in self._told and not self._is_held(peer) for peer in peers)

    def is_done(
        self, others: Collection[bytes], *, needed: int, everyone: int, learners: Collection[bytes] = frozenset()
    ) -> bool:
        """Whether this node holds all that it once held and all that `needed` other owners hold; `learners` do not count.

        If it holds everything that `everyone` of them holds, it is done too: nobody has the rest, so it is lost.
        """
        held = {peer for peer in others if self._is_held(peer)}
        return len(held) >= everyone or (len(held.difference(learners)) >= needed and not self.owed)

    def holds(self, peer: bytes) -> bool:
        """Whether this node holds everything that this owner told."""
        return self._is_held(peer)

    def heard(self, peer: bytes) -> bool:
        """Whether that owner has told all that it holds."""
        return None not in self._told.get(peer, {0: None}).values()

    @property
    def lacking(self) -> int:
        """How many operations this node's directory once held and does not hold now."""
        return sum(
            len(missing)
            for partition, vector in self._owed.items()
            for missing in vector.missing(self._durable(partition)).values()
        )

    def _is_held(self, peer: bytes) -> bool:
        told = self._told.get(peer)
        if told is None:
            return False
        while told:  # Up to the first that is not held: this is asked after every message.
            partition, vector = next(iter(told.items()))
            if vector is None or not self._durable(partition).dominates(vector):
                return False
            del told[partition]
        return True
