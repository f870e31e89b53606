"""What a service has to know of the other owners: whether copies were made, and what they can bring.

`SingleNode` is the answer of a store without peers; `shoal.node.peers.replicator` has that of a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from shoal.cluster.stability import Holding
from shoal.crdt.dot import VersionVector
from shoal.crdt.thread import dag
from shoal.errors import BookmarkLost, StoreCorrupt
from shoal.node.target import Target
from shoal.protocol.requests import ClusterView, Durability


@dataclass(slots=True)
class Repairs:
    """What came of damage in this incarnation."""

    rows: int = 0  # Fetched again from a peer.
    failed: int = 0  # Requests that met damage which no peer could mend.


class ReadRepair(Protocol):
    """Of what one request finds damaged in an object."""

    async def repair(self, error: StoreCorrupt, /) -> None:
        """Return once it is worth trying again.

        Raises:
            StoreCorrupt: no peer has what is lost; it says who was asked.
        """
        ...


class Replicas(Protocol):
    async def wait_applied(self, partition: int, wanted: VersionVector, /) -> None:
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

    async def wait_replicated(self, partition: int, wanted: VersionVector, durability: Durability, /) -> None:
        """Return once enough owners hold what `wanted` covers, which is durable here, within `quorum_timeout_s`.

        Raises:
            OutcomeUnknown: too few were known to; the error says who.
        """
        ...

    @property
    def size(self) -> int:
        """How many there are, this node included."""
        ...

    @property
    def refilling(self) -> bool:
        """Whether this node is a learner, and an owner told it of more than has come yet."""
        ...

    @property
    def learning(self) -> list[str]:
        """If this node is a learner: why, and how far it is with each of the others."""
        ...

    async def catch_up(self, partition: int, durability: Durability = "quorum", /) -> None:
        """Return once this replica has applied whatever a quorum (or all) held of a partition when this was called.

        Raises:
            NoQuorum: too few owners said in time what they hold, or what they hold could not be had.
        """
        ...

    async def heard(self, partition: int, /) -> None:
        """Ask whoever is linked, and return once this replica has applied what they held of a partition when
        this was called, or `rights_wait_s` is over.
        """
        ...

    @property
    def linked(self) -> frozenset[bytes]:
        """The other owners that can be sent to now, as nodes."""
        ...

    async def seek(self, target: Target, amount: int, known: Mapping[bytes, int], /, *, spare: bool = False) -> None:
        """Ask others for rights to spend of a budget, until there are so many more or all were asked; those that are
        known to have more of them are asked first. With `spare` only the known ones are asked, for what they can spare.
        """
        ...

    def holdings(self, partition: int, /) -> dict[str, Holding]:
        """What the other owners, by their addresses, are known to hold there."""
        ...

    def read_repair(self, target: Target, /) -> ReadRepair:
        """For one request about an object."""
        ...

    @property
    def mended(self) -> Repairs: ...

    def view(self) -> ClusterView: ...


def mendable(row: bytes) -> bool:
    """Whether a peer can be asked for a row, and what it answers be checked."""
    return len(row) == 1 + dag.ID_BYTES and row.startswith((dag.CHUNK, dag.CHECKPOINT))


def unmended(target: Target, error: StoreCorrupt, why: str, asked: list[str]) -> StoreCorrupt:
    """The error of a damage that stays."""
    if not error.lost:
        return error  # There was nothing to ask for.
    return StoreCorrupt(f"{named(target)}: {error.message}{why}", lost=error.lost, asked=asked)


def named(target: Target) -> str:
    """An object, for people."""
    return f"{target.kind.label} {target.name!r} of space {target.space!r}"


class SingleNode:
    """A single node is every owner there is: its own fsync is quorum, and all."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self.mended = Repairs()

    async def wait_applied(self, partition: int, wanted: VersionVector, /) -> None:
        raise BookmarkLost(
            "this store has no peers and lacks operations that the bookmark names: the bookmark is from another "
            "store, or this store is "
            "an older copy. Nothing was written. Read with stale=True to continue from the state here."
        )

    async def reachable(self, durability: Durability, /) -> None:
        return None

    async def wait_replicated(self, partition: int, wanted: VersionVector, durability: Durability, /) -> None:
        return None

    size = 1
    refilling = False

    @property
    def learning(self) -> list[str]:
        return []

    async def catch_up(self, partition: int, durability: Durability = "quorum", /) -> None:
        return None

    async def heard(self, partition: int, /) -> None:
        return None

    linked: frozenset[bytes] = frozenset()

    async def seek(self, target: Target, amount: int, known: Mapping[bytes, int], /, *, spare: bool = False) -> None:
        return None

    def holdings(self, partition: int, /) -> dict[str, Holding]:
        return {}

    def read_repair(self, target: Target, /) -> ReadRepair:
        return _Unmendable(self.mended, target)

    def view(self) -> ClusterView:
        return self._view


class _Unmendable:
    def __init__(self, mended: Repairs, target: Target) -> None:
        self._mended = mended
        self._target = target

    async def repair(self, error: StoreCorrupt, /) -> None:
        self._mended.failed += 1
        raise unmended(self._target, error, " This store has no peers that could be asked for it.", [])
