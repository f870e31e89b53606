"""The state of the cluster, as one node knows it: for `shoal status`, `GET /v1/cluster` and the metrics."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from itertools import islice

from shoal.cluster.fetching import Learning
from shoal.cluster.knowledge import Knowledge, Totals
from shoal.cluster.membership.notices import is_placeholder
from shoal.cluster.replication import Replication
from shoal.crdt.dot import Dot
from shoal.errors import StoreCorrupt
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.node.peers.admission import Resets
from shoal.node.peers.members import Members, MemberState
from shoal.node.peers.replica import ClockComparison
from shoal.node.verification.scrubbing import Scrubber
from shoal.protocol.requests import ClusterView, Member

STATUS_ORIGINS_MAX = 1000  # Origins listed per member in the cluster view; the counts include all.

_VERSION_CHARS_MAX = 40  # It is a peer's word.
_LAGGING_READ_MAX = 256  # Operations that are read to find the oldest one that a peer lacks,
_LAGGING_PARTITIONS_MAX = 8  # from so many partitions.


class ClusterState:
    """Looks at what the parts of a node know. It changes nothing."""

    def __init__(
        self,
        context: NodeContext,
        protocol: Replication,
        database: Database,
        *,
        members: Members,
        scrubber: Scrubber,
        clocks: ClockComparison,
        resets: Resets,
    ) -> None:
        self._protocol = protocol
        self._database = database
        self.members = members
        self._incarnation = context.incarnation
        self._config = context.config
        self._environment = context.environment
        self._scrubber = scrubber
        self._clocks = clocks
        self._resets = resets

    def view(self) -> ClusterView:
        """The cluster as this node sees it, for `shoal status` and the API (`Replicas.view`)."""
        change = self.members.roster.record.change
        progress = self._protocol.snapshots.progress
        return ClusterView(
            cluster=self._config.cluster,
            size=self.members.size,
            quorum=self.members.needed("quorum"),
            members=[self._itself(), *map(self._member, self.members.all)],
            digest=self._protocol.digest().hex(),
            early=self._protocol.early,
            quarantined=self._protocol.quarantined(),
            clock_ahead_ms=self._database.clock_ahead_ms(),
            disagreements=self.members.disagreements,
            learning=self.learning,
            differing=self._scrubber.told,
            replaced=self._scrubber.replaced,
            clocks=self._clocks.differing,
            truncated=self._resets.told,
            epoch=self.members.roster.epoch,
            change="" if change is None else change.told,
            snapshots_due=progress.due,
            snapshots_taken=progress.taken,
            snapshot_bytes=progress.bytes,
            unshown=self._scrubber.unshown,
            compared_ms=self._scrubber.passed_ms(self._environment.monotonic()),
        )

    def incomplete(self, partition: int) -> Collection[bytes]:
        """The threads of a partition that lack data which a save builds on, as row prefixes (`Replicas.incomplete`)."""
        return self._scrubber.dangling_in(partition)

    @property
    def clock_wrong(self) -> str:
        """If a majority of the owners contradict this node's clock: by how much, and what to do; else empty
        (`Replicas.clock_wrong`).
        """
        return self._clocks.wrong

    @property
    def learning(self) -> list[str]:
        """If this node is a learner: the reason, and its progress with each of the others; else empty (`Replicas.learning`)."""
        learning = self._protocol.learning
        if learning is None:
            return []
        told_by = self._incarnation.told_by
        fallen = (
            [f"set back, as {told_by} knows: {learning.lacking:,} operations once held are still missing"] if told_by else []
        )
        return fallen + [f"{member.address}: {self._shown_progress(learning, member.node)}" for member in self.members.all]

    @property
    def awaited(self) -> str:
        """The condition for which a node that began with an empty directory waits, and what to do, for people."""
        learning, others = self._protocol.learning, self.members.all
        unheard = [] if learning is None else [each.address for each in others if not learning.heard(each.node)]
        if any(map(is_placeholder, unheard)):
            return "the seeds have not led to all first members yet; the log says what is missing. Start those that are down"
        needed = len(others) // 2 + 1
        told = (
            f"its directory began empty, so it must first hear what {needed} of the {len(others)} other members hold, or all, "
            "while some of these began empty too"
        )
        if not unheard:
            return f"{told}; all were heard, and it is fetching that"
        return (
            f"{told}, and has not heard {', '.join(unheard)}. Start what is down; or, if the cluster is new and one of these "
            "will never be up, start the others with a list of members (SHOAL_JOIN) without it"
        )

    def _shown_progress(self, learning: Learning, node: bytes) -> str:
        known = self._protocol.known(node)
        if known.totals.operations > known.shared:
            return f"{known.totals.operations - known.shared:,} operations to fetch"
        return "all fetched" if learning.heard(node) else "not heard yet"

    def _itself(self) -> Member:
        totals = self._database.partitions.totals
        return Member(
            self._config.advertise,
            self._incarnation.node.hex(),
            "self",
            operations=totals.operations,
            lacks=0,
            ahead=0,
            lag_ms=0,
            waiting_bytes=0,
            dropped=0,
            linked_ms=0,
            reason="",
            vector=self._shown(totals),
            origins=len(totals),
            part=self.members.roster.record.state_of(self._config.advertise),
        )

    def _oldest_ms(self, known: Knowledge) -> int | None:
        """When the oldest operation that a peer lacks was issued; None: it cannot be read, as others tell."""
        with suppress(StoreCorrupt):
            return self._database.exchange.outgoing.oldest_wall_ms(self._lacking(known))
        return None

    def _member(self, member: MemberState) -> Member:
        known = self._protocol.known(member.node)
        lacks = self._database.partitions.totals.operations - known.shared
        oldest_ms = self._oldest_ms(known) if lacks else None
        return Member(
            member.address,
            member.node.hex(),
            "unreachable" if member.outlet is None else "linked",
            operations=known.totals.operations,
            lacks=lacks,
            ahead=known.totals.operations - known.shared,
            lag_ms=0 if oldest_ms is None else max(0, self._environment.now_ms() - oldest_ms),
            waiting_bytes=0 if member.outlet is None else member.outlet.waiting_bytes,
            dropped=member.dropped,
            linked_ms=member.linked_ms,
            reason=self.members.reasons.get(member.address, "") or self._lost_by(member.node) or member.trouble,
            vector=self._shown(known.totals),
            origins=len(known.totals),
            clock_ms=self._clocks.ahead_ms(member.node),
            part=self.members.roster.record.state_of(member.address),
            told=known.is_told,
            version="" if member.identity is None else member.identity.software.removeprefix("shoal ")[:_VERSION_CHARS_MAX],
        )

    def _lost_by(self, node: bytes) -> str:
        if not node or not self._protocol.mark(node).is_behind:
            return ""
        return "its directory was set back: it once held more, and does not count until it has fetched that"

    def _lacking(self, known: Knowledge) -> list[tuple[int, Dot]]:
        """The first durable operations of some partitions and origins that a peer is not known to hold."""
        partitions = map(self._database.partitions.load, self._database.partitions.holding())
        behind = (partition for partition in partitions if known.shared_in(partition.number) < partition.operations)
        found: list[tuple[int, Dot]] = []
        for partition in islice(behind, _LAGGING_PARTITIONS_MAX):
            missing = partition.durable.missing(known.vector(partition.number))
            found += [(partition.number, Dot(origin, lacking.start)) for origin, lacking in missing.items()]
            if len(found) >= _LAGGING_READ_MAX:
                break
        return found[:_LAGGING_READ_MAX]

    def _shown(self, totals: Totals) -> dict[str, int]:
        """The counts of at most `STATUS_ORIGINS_MAX` origins, the same ones on every node that knows the same origins."""
        return {origin.hex(): count for origin, count in totals.first(STATUS_ORIGINS_MAX)}
