"""What a service has to know of the other owners: whether copies were made, and what they can bring.

`Alone` is the answer of a store without peers; `shoal.node.replicator` has that of a cluster.
"""

from __future__ import annotations

from typing import Protocol

from shoal.cluster.stability import Holding
from shoal.crdt.dot import VersionVector
from shoal.errors import BookmarkLost
from shoal.protocol.requests import ClusterView, Durability


class Owners(Protocol):
    async def reached(self, partition: int, wanted: VersionVector, /) -> None:
        """Return once this replica has applied what `wanted` names, within `session_wait_s`.

        Raises:
            SessionBehind: it could not be had in time.
            BookmarkLost: all owners are linked, and none holds it.
        """
        ...

    async def reachable(self, durability: Durability, /) -> None:
        """Return once enough owners are linked, within `quorum_timeout_s`.

        Raises:
            NoQuorum: too few are; nothing was written.
        """
        ...

    async def spread(self, partition: int, wanted: VersionVector, durability: Durability, /) -> None:
        """Return once enough owners hold what `wanted` covers, which is durable here, within `quorum_timeout_s`.

        Raises:
            OutcomeUnknown: too few were known to; the error says who.
        """
        ...

    async def current(self, partition: int, /) -> None:
        """Return once this replica has applied whatever a quorum held of a partition when this was called.

        Raises:
            NoQuorum: too few owners said in time what they hold, or what they hold could not be had.
        """
        ...

    def holdings(self, partition: int, /) -> dict[str, Holding]:
        """What the other owners, by their addresses, are known to hold there."""
        ...

    def view(self) -> ClusterView: ...


class Alone:
    """A single node is every owner there is: its own fsync is quorum, and all."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    async def reached(self, partition: int, wanted: VersionVector, /) -> None:
        raise BookmarkLost(
            "this store has no peers, and does not hold what the bookmark names: it was made elsewhere, or this store is "
            "an older copy. Nothing was written. Read with stale=True to go on from what is here."
        )

    async def reachable(self, durability: Durability, /) -> None:
        return None

    async def spread(self, partition: int, wanted: VersionVector, durability: Durability, /) -> None:
        return None

    async def current(self, partition: int, /) -> None:
        return None

    def holdings(self, partition: int, /) -> dict[str, Holding]:
        return {}

    def view(self) -> ClusterView:
        return self._view
