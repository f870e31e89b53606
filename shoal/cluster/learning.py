"""What a node must hold before its word counts.

A node whose directory is new, wiped, restored or copied may have forgotten what it once
acknowledged, and cannot know by itself what that was. Until it holds all that a
majority of the other owners hold it is a *learner*: it counts in no quorum.

Why a majority of the others: a write that a quorum acknowledged, of n owners and with
this node among them, is on at least a majority less one of the n - 1 others. Every
majority of the others meets that set, and so names the write.

Laws:
- What an owner holds is what it said after this node started: first a hash for each
  partition, then its whole vector of each that differs.
- Nothing here looks at what is connected now: what an owner said stays a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from shoal.crdt.dot import VersionVector


class Progress(NamedTuple):
    """How far a learner is with one other owner."""

    heard: bool  # Whether that owner has said all that it holds.
    lacking: int  # Operations that it named and this node does not hold durably yet.


class Learning:
    """`durable` gives this node's own vector of a partition."""

    def __init__(self, durable: Callable[[int], VersionVector]) -> None:
        self._durable = durable
        self._told: dict[bytes, dict[int, VersionVector | None]] = {}  # What is still to be held; None: not told yet.

    def equal(self, peer: bytes) -> None:
        """It holds what this node holds."""
        self._told[peer] = {}

    def differs(self, peer: bytes, partitions: Iterable[int]) -> None:
        """It said in which partitions it holds something else; its vectors of them follow.

        What it holds by then is enough, however much more it holds later: a learner has acknowledged nothing since.
        """
        differing = set(partitions)
        before = self._told.get(peer)
        if before is None:
            self._told[peer] = dict.fromkeys(differing)
            return
        for partition in [one for one, vector in before.items() if vector is None and one not in differing]:
            del before[partition]  # They are equal by now.

    def vector(self, peer: bytes, partition: int, vector: VersionVector) -> None:
        told = self._told.get(peer, {})
        if partition in told:
            told[partition] = vector

    def lacks(self, peers: Collection[bytes]) -> bool:
        """Whether one of these told of what this node does not hold."""
        return any(peer in self._told and not self._is_held(peer) for peer in peers)

    def is_done(self, others: Collection[bytes], *, needed: int) -> bool:
        """Whether this node holds all that `needed` of the other owners hold."""
        return sum(self._is_held(peer) for peer in others) >= needed

    def progress(self, peer: bytes) -> Progress:
        told = self._told.get(peer)
        if told is None:
            return Progress(heard=False, lacking=0)
        self._is_held(peer)
        vectors = {partition: vector for partition, vector in told.items() if vector is not None}
        lacking = sum(
            len(missing)
            for partition, vector in vectors.items()
            for missing in vector.missing(self._durable(partition)).values()
        )
        return Progress(len(vectors) == len(told), lacking)

    def _is_held(self, peer: bytes) -> bool:
        told = self._told.get(peer)
        if told is None:
            return False
        for partition, vector in list(told.items()):
            if vector is not None and self._durable(partition).dominates(vector):
                del told[partition]
        return not told
