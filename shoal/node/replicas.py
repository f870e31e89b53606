"""The view of the other owners that a service needs: whether they hold copies of a write, and missing data from them.

`SingleNode` serves a store without peers; `shoal.node.peers.quorum` serves a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from shoal.cluster.truncation import Holding
from shoal.crdt.dot import VersionVector
from shoal.errors import BookmarkLost, InvalidInput, OutcomeUnknown, StoreCorrupt
from shoal.kinds.thread.state import dag
from shoal.node.consensus.quorum_register import QuorumRegister
from shoal.node.context import NodeContext
from shoal.node.handler import Target
from shoal.protocol.requests import ChangeMembers, ClusterView, Durability, Member, MembersView, Rebuild, RebuildView, Seat
from shoal.records import NamedTuple
from shoal.storage.cold import FILE_CHUNKS


@dataclass(slots=True)
class Repairs:
    """The outcome of damage that this incarnation met."""

    rows: int = 0  # Fetched again from a peer.
    failed: int = 0  # Requests that met damage that no peer could repair.


class Estate(NamedTuple):
    """The work of this node on the directories that were removed from the cluster."""

    epoch: int = 0
    directories: tuple[bytes, ...] = ()  # Their ids; empty: there are none, or another node retires their origins.
    is_open: bool = False  # Whether it may retire some now: no change is under way, and every owner is linked and counts.


class ReadRepair(Protocol):
    """Repairs the damage that one request meets in an object."""

    async def repair(self, error: StoreCorrupt, /) -> None:
        """Fetch the rows that `error` lost from peers; return when the request can be tried again.

        Raises:
            StoreCorrupt: no peer has the lost rows; it names the peers that were asked.
            Unavailable: not every peer could be asked yet. Nothing was written.
        """
        ...


class Company(Protocol):
    """The members of the cluster, and changes of them."""

    @property
    def trouble(self) -> str:
        """Why a quorum register that has no quorum does not go on by itself, for people; empty if nothing is known."""
        ...

    @property
    def second(self) -> str:
        """Why all other members refuse this node as a second one at its address, for people; empty if they do not."""
        ...

    def members(self) -> MembersView:
        """The members as this node knows them."""
        ...

    async def change(self, request: ChangeMembers, /) -> MembersView:
        """Begin a change of the members, or take one back.

        Raises:
            ChangeUnderWay, InvalidInput, NoQuorum, NotAMember: nothing was written.
            OutcomeUnknown: the change may have begun.
        """
        ...

    async def rebuild(self, request: Rebuild, /) -> RebuildView:
        """The remains of a cluster that lost its majority; with a plan, go on with that.

        Raises:
            InvalidInput, NotAMember, Unavailable: nothing was founded.
            OutcomeUnknown: it may be founded.
        """
        ...


class Cluster(Protocol):
    """The cluster of a node, also if that has no peers."""

    @property
    def quorum(self) -> Replicas:
        """The owners of the data."""
        ...

    @property
    def memberships(self) -> Company:
        """The members."""
        ...

    @property
    def register(self) -> QuorumRegister:
        """Compare-and-set for a few small keys; without peers, with this node's vote alone."""
        ...


class Replicas(Protocol):
    """The owners of the data, as the service of one node sees them."""

    async def wait_applied(self, partition: int, wanted: VersionVector, /) -> None:
        """Return once this replica has applied all operations that `wanted` covers, within `session_wait_s`.

        Raises:
            SessionBehind: they did not arrive in time.
            BookmarkLost: all owners are linked, and none holds them.
        """
        ...

    async def reachable(self, durability: Durability, /) -> None:
        """Return once enough owners are linked, within `quorum_timeout_s`.

        Raises:
            NoQuorum: too few are; nothing was written.
        """
        ...

    def reaches(self, durability: Durability, /) -> bool:
        """Whether enough owners are linked now."""
        ...

    def when_replicated(
        self, partition: int, wanted: VersionVector, durability: Durability, told: Callable[[OutcomeUnknown | None], None], /
    ) -> Callable[[], None]:
        """Call `told` once enough owners hold what `wanted` covers, now or within `quorum_timeout_s`.

        It is durable here already. If too few are known to hold it by then, `told` gets the error, which names those that
        do. Returns a function that ends the wait.
        """
        ...

    def when_each_holds(self, partition: int, wanted: VersionVector, told: Callable[[str, bool], None], /) -> list[str]:
        """Call `told` with the address of each other owner: with True once it is known to hold what `wanted` covers, with False
        if it is not within `quorum_timeout_s`. Returns these addresses.
        """
        ...

    @property
    def size(self) -> int:
        """The number of owners, this node included."""
        ...

    @property
    def refilling(self) -> bool:
        """Whether this node is a learner that has not yet fetched everything that an owner reported."""
        ...

    @property
    def awaited(self) -> str:
        """If this node began with an empty directory and was not admitted: what it waits for, and what to do; else empty."""
        ...

    @property
    def learning(self) -> list[str]:
        """If this node is a learner: the reason, and its progress with each of the others; else empty. For people."""
        ...

    @property
    def clock_wrong(self) -> str:
        """If a majority of the owners contradict this node's clock: by how much, and what to do; else empty. For people."""
        ...

    async def catch_up(self, partition: int, durability: Durability = "quorum", /) -> None:
        """Return once this replica has applied everything that a quorum (or all) held of a partition when this was called.

        Raises:
            NoQuorum: too few owners reported in time what they hold, or it could not be fetched in time.
        """
        ...

    async def heard(self, partition: int, /) -> None:
        """Ask the linked owners; return once this replica has applied what they held of a partition when this was called.

        It also returns, without an error, when `RIGHTS_WAIT_S` is over.
        """
        ...

    @property
    def linked(self) -> frozenset[bytes]:
        """The ids of the other owners that have a link to this node now."""
        ...

    async def seek(self, target: Target, amount: int, known: Mapping[bytes, int], /, *, spare: bool = False) -> None:
        """Ask the others for rights of a budget, until `amount` more have arrived or all were asked.

        `known` says how many each node holds; those with more are asked first. With `spare` only these are asked, and
        only for rights that they can spare.
        """
        ...

    def holdings(self, partition: int, /) -> dict[str, Holding]:
        """The operations of a partition that each of the other owners, by its address, is known to hold."""
        ...

    def incomplete(self, partition: int, /) -> Collection[bytes]:
        """The threads of a partition that lack data which a save builds on, as prefixes of their rows. Peers may have it."""
        ...

    @property
    def estate(self) -> Estate:
        """The removed directories whose origins this node retires."""
        ...

    def read_repair(self, target: Target, /) -> ReadRepair:
        """A read repair for one request about an object."""
        ...

    @property
    def mended(self) -> Repairs:
        """The counts of this incarnation's read repairs."""
        ...

    def view(self) -> ClusterView:
        """The cluster as this node sees it, for `shoal status` and the API."""
        ...


def mendable(row: bytes) -> bool:
    """Whether a row can be fetched from a peer and checked: only chunks, of files too, and checkpoints, which hashes name."""
    return row[: -dag.ID_BYTES] in (dag.CHUNK, dag.CHECKPOINT, FILE_CHUNKS)


def unmended(target: Target, error: StoreCorrupt, why: str, asked: list[str]) -> StoreCorrupt:
    """The error for damage that could not be repaired; `asked` names the peers."""
    if not error.lost:
        return error  # It names no rows that a peer could send.
    return StoreCorrupt(f"{named(target)}: {error.message}{why}", lost=error.lost, asked=asked)


def named(target: Target) -> str:
    """The object's kind, name and space, for error texts."""
    return f"{target.kind.label} {target.name!r} of space {target.space!r}"


class Alone:
    """The `Company` of a node without peers."""

    trouble = ""
    second = ""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def members(self) -> MembersView:
        """The node itself."""
        seats = [Seat(member.name, member.node, "member", "self") for member in self._view.members]
        return MembersView(0, "", "", seats)

    async def change(self, request: ChangeMembers, /) -> MembersView:
        """
        Raises:
            InvalidInput: always.
        """
        raise self._refusal()

    async def rebuild(self, request: Rebuild, /) -> RebuildView:
        """
        Raises:
            InvalidInput: always.
        """
        raise self._refusal()

    def _refusal(self) -> InvalidInput:
        [own] = self._view.members
        return InvalidInput(
            f"this node runs without peers, so it has no list of members to change. Nothing was written. Start it with "
            f"SHOAL_JOIN={own.name} (its own address), and ask again."
        )


class SingleNode:
    """The `Replicas` of a node without peers: it is the only owner, so its own fsync is a quorum, and all."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self.mended = Repairs()

    async def wait_applied(self, partition: int, wanted: VersionVector, /) -> None:
        """There is nobody to wait for.

        Raises:
            BookmarkLost: always; it is called only if this node lacks `wanted`.
        """
        raise BookmarkLost(
            "this store has no peers and does not know operations that the bookmark names: the bookmark is from another store, "
            "this store is an older copy, or the bookmark is so old that the openings it names are retired and forgotten "
            "(forget_after_s, retired_origins_max). Nothing was written. Read with stale=True to continue from the state here.",
            partition=partition,
        )

    async def reachable(self, durability: Durability, /) -> None:
        """Return at once."""

    def reaches(self, durability: Durability, /) -> bool:
        """Yes."""
        return True

    def when_replicated(
        self, partition: int, wanted: VersionVector, durability: Durability, told: Callable[[OutcomeUnknown | None], None], /
    ) -> Callable[[], None]:
        """Call `told` at once."""
        told(None)
        return lambda: None

    def when_each_holds(self, partition: int, wanted: VersionVector, told: Callable[[str, bool], None], /) -> list[str]:
        """There is no other owner."""
        return []

    size = 1
    refilling = False
    awaited = ""

    @property
    def learning(self) -> list[str]:
        """Empty: a single node is no learner."""
        return []

    @property
    def clock_wrong(self) -> str:
        """Never: there is no other clock."""
        return ""

    async def catch_up(self, partition: int, durability: Durability = "quorum", /) -> None:
        """Return at once."""

    async def heard(self, partition: int, /) -> None:
        """Return at once."""

    linked: frozenset[bytes] = frozenset()

    async def seek(self, target: Target, amount: int, known: Mapping[bytes, int], /, *, spare: bool = False) -> None:
        """Return at once: nobody else holds rights."""

    def holdings(self, partition: int, /) -> dict[str, Holding]:
        """Empty: there are no other owners."""
        return {}

    def incomplete(self, partition: int, /) -> Collection[bytes]:
        """None: no peer has sent a save that builds on what is gone here."""
        return ()

    estate = Estate()

    def read_repair(self, target: Target, /) -> ReadRepair:
        """A repair that always fails, and counts that."""
        return _Unmendable(self.mended, target)

    def view(self) -> ClusterView:
        """A cluster of one member."""
        return self._view


class Unreplicated(NamedTuple):
    """The `Cluster` of a node without peers."""

    quorum: SingleNode
    memberships: Alone
    register: QuorumRegister


def unreplicated(context: NodeContext) -> Unreplicated:
    """The cluster that has this node as its only member."""
    config, node = context.config, context.incarnation.node.hex()
    own = Member(config.advertise, node, "self", 0, 0, 0, 0, 0, 0, 0, "", {})
    view = ClusterView(config.cluster, 1, 1, [own], "", 0, [], 0)
    return Unreplicated(SingleNode(view), Alone(view), QuorumRegister(context))


class _Unmendable:
    def __init__(self, mended: Repairs, target: Target) -> None:
        self._mended = mended
        self._target = target

    async def repair(self, error: StoreCorrupt, /) -> None:
        self._mended.failed += 1
        raise unmended(self._target, error, " This store has no peers that could be asked for it.", [])
