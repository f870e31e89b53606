"""What the replication protocol keeps of one peer."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.cluster.knowledge import Knowledge
from shoal.cluster.marks import Mark
from shoal.crdt.dot import Origin


@dataclass(slots=True)
class PeerState:
    """A peer, linked or not. Mutable."""

    known: Knowledge
    mark: Mark
    linked: bool = False
    heard: int = 0  # The number of the last `Digest.once` from it.
    member: bool = False  # Whether it said, on the current link from it, that it is no learner.
    caught_up: set[int] | None = None  # The partitions of its mark in which it says that it has caught up.
    unheard: set[int] = field(default_factory=set)  # Those of them of which it has not sent its vector since.
    unsaid: dict[tuple[int, Origin], int] = field(default_factory=dict)  # Operations that we hold and have not told it of.
