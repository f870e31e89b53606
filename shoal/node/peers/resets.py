"""The partitions in which this node lacks operations that have left the logs of its peers.

Law: only a snapshot brings what these operations made. A partition is listed until this node holds what the peer's base
covers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from shoal.cluster.effects import Reset
from shoal.crdt.dot import VersionVector

_log = logging.getLogger("shoal.node")


class Resets:
    """At most one entry for each peer and partition. `vector_of` is what this node has applied; `named` names a peer."""

    def __init__(self, *, vector_of: Callable[[int], VersionVector], named: Callable[[bytes], str]) -> None:
        self._vector_of = vector_of
        self._named = named
        self._due: dict[tuple[int, bytes], Reset] = {}

    def note(self, reset: Reset) -> None:
        """A peer says that what this node lacks has left its log. The first time it is logged."""
        place = reset.partition, reset.peer
        if place not in self._due:
            _log.warning("%s", self._text(reset))
        self._due[place] = reset

    def forget(self, peer: bytes) -> None:
        """Another directory is at this peer's address now."""
        self._due = {place: reset for place, reset in self._due.items() if reset.peer != peer}

    @property
    def told(self) -> list[str]:
        """The partitions that wait for a snapshot, for people."""
        self._due = {
            place: reset for place, reset in self._due.items() if not self._vector_of(reset.partition).dominates(reset.base)
        }
        return [self._text(reset) for _, reset in sorted(self._due.items())]

    def _text(self, reset: Reset) -> str:
        lacking = sum(map(len, reset.base.missing(self._vector_of(reset.partition)).values()))
        return (
            f"partition {reset.partition}: this node lacks {lacking:,} operations that have left the log of "
            f"{self._named(reset.peer)}, and needs a snapshot of the partition"
        )
