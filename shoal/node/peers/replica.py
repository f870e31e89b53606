"""The view of the node that the replication protocol needs: its vectors, bounds, and its clock beside its peers'.

The links on which messages go out to peers, and what waits in them.

When a node among peers looks for work that is due: often while something happens, seldom while nothing does.

Law: looks stay on one grid of `tick_s`, so that those which find nothing can be left out without moving the others.

Compares this node's clock with its peers', and refuses to issue operations while it is wrong.

Law: a clock that is wrong stops nothing but what would carry its time. Reads, replication and votes go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from math import ceil

from shoal.cluster import messages
from shoal.cluster.comparing import ANY, NOT_HEARD, Clock, Clocks
from shoal.cluster.consensus.ballots import Known
from shoal.cluster.handshake import PEER_PROTOCOL
from shoal.cluster.messages import Digest, Message, Objects, Present, Rows
from shoal.cluster.peer_state import Limits, SnapshotLimits
from shoal.cluster.peering import Identity, Outlet
from shoal.config import Config
from shoal.crdt.dot import NOTHING_SEEN, Origin, VersionVector
from shoal.errors import ClockWrong
from shoal.logs import events
from shoal.logs.lines import log
from shoal.node.database import Database
from shoal.node.environment import Environment
from shoal.node.incarnation import Incarnation
from shoal.node.peers.members import Members
from shoal.node.snapshots.exchange import SNAPSHOT_IDLE_S

QUARANTINE_MAX = 1024  # Operations that were rejected and are not requested again.
TICK_QUIET_S = 1.0  # Once nothing has happened for this long, a node looks for due work less often.
TICK_IDLE_S = 0.25  # Between two looks for due work on a quiet node.
PUSH_BYTES_MAX = 256 * 1024  # Operations in one message; the first one may exceed it.
VECTORS_BYTES_MAX = 256 * 1024  # Version vectors in one message; the first one may exceed it.
EARLY_OPERATIONS_S = 60.0  # How long operations wait for those they depend on, which may have been lost with a disk.
SNAPSHOT_PIECES_AHEAD_MAX = 2  # Pieces of one snapshot that were asked for and have not arrived.
SNAPSHOT_OPERATIONS_MIN = 64  # If no more operations of a partition are missing, its log is fetched.
PEER_PAUSE_S_MAX = 10.0  # Longest pause before a peer that answers no request for operations is asked again.


class NodeReplica:
    """The vectors of this node: the `Replica` of the protocol."""

    def __init__(self, database: Database, incarnation: Incarnation) -> None:
        self._partitions = database.partitions
        self._incarnation = incarnation

    def applied(self, partition: int, /) -> VersionVector:
        """The operations that were applied, durable or not (`Replica.applied`)."""
        return self._partitions.load(partition).vector

    def durable(self, partition: int, /) -> VersionVector:
        """The applied operations that are synced to disk (`Replica.durable`)."""
        return self._partitions.load(partition).durable

    def endings(self, partition: int, /) -> VersionVector:
        """A vector that covers every deletion that was applied there (`Replica.endings`)."""
        return self._partitions.load(partition).endings

    def partitions(self) -> Iterable[int]:
        """The partitions that hold anything durable (`Replica.partitions`)."""
        return self._partitions.holding()

    def retirements(self, partition: int, known: VersionVector, /) -> tuple[VersionVector, VersionVector]:
        """The retired origins, with their last sequences and the times of their retirement (`Replica.retirements`)."""
        retired = self._partitions.load(partition).retired
        if known.dominates(retired.summary.floor):
            return NOTHING_SEEN, NOTHING_SEEN
        rows = list(retired.all())
        return VersionVector((o, row.sequence) for o, row in rows), VersionVector((o, row.time) for o, row in rows)

    def own_origin(self) -> Origin | None:
        """The origin of this opening; None before its first write (`Replica.own_origin`)."""
        return self._incarnation.current


def limits_of(config: Config) -> Limits:
    """The bounds of the protocol."""
    return Limits(
        sync_interval_s=config.sync_interval_s,
        grace_s=config.tick_s,
        answer_s=config.quorum_timeout_s,
        pause_s_max=PEER_PAUSE_S_MAX,
        push_bytes_max=PUSH_BYTES_MAX,
        vectors_bytes_max=VECTORS_BYTES_MAX,
        early_bytes_max=config.early_bytes_max,
        quarantine_max=QUARANTINE_MAX,
        quarantine_s=config.quarantine_s,
        early_s=EARLY_OPERATIONS_S,
        claims_max=config.peer_logs_max,
        snapshots=SnapshotLimits(
            operations_min=SNAPSHOT_OPERATIONS_MIN,
            open_max=config.snapshots_open_max,
            ahead=SNAPSHOT_PIECES_AHEAD_MAX,
            # A lost piece is asked for again several times before its snapshot is given up.
            answer_s=min(config.quorum_timeout_s, SNAPSHOT_IDLE_S / 4),
            idle_s=SNAPSHOT_IDLE_S,
            pause_s=config.sync_interval_s,
            pause_s_max=PEER_PAUSE_S_MAX,
        ),
    )


class Outlets:
    """One outlet for each linked node. `dropped` is told of each message that the queue of a node's link did not take.

    Above `bytes_max` waiting bytes a peer is behind: it gets no more hints, and no bulk. Every message names this node's
    `epoch`.
    """

    def __init__(
        self, *, dropped: Callable[[bytes, Message], None], bytes_max: int, epoch: Callable[[], int] = lambda: 0
    ) -> None:
        self._dropped = dropped
        self._epoch = epoch
        self._bytes_max = bytes_max
        self._outlets: dict[bytes, Outlet] = {}
        self._older: dict[bytes, int] = {}  # Nodes that speak an older protocol, and which.
        self.oldest = PEER_PROTOCOL
        """The oldest protocol that a peer spoke when it was linked last."""

    def __bool__(self) -> bool:
        return bool(self._outlets)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._outlets)

    def linked(self, peer: Identity, outlet: Outlet) -> None:
        """A link to a node begins; it takes the place of an older one."""
        self._outlets[peer.node] = outlet
        self._older.pop(peer.node, None)
        if 0 < peer.protocol < PEER_PROTOCOL:
            self._older[peer.node] = peer.protocol
        self.oldest = min(self._older.values(), default=PEER_PROTOCOL)

    def forget(self, node: bytes) -> None:
        """This node does not take part any more."""
        self._older.pop(node, None)
        self.oldest = min(self._older.values(), default=PEER_PROTOCOL)

    def unlinked(self, node: bytes, outlet: Outlet) -> bool:
        """A link has ended. Returns whether it was the node's present one."""
        if self._outlets.get(node) is not outlet:
            return False
        del self._outlets[node]
        return True

    def send(self, nodes: Iterable[bytes], message: Message) -> None:
        """Send a message, encoded once, to those nodes that have a link and know this kind of message."""
        if self._older and (since := messages.SINCE.get(type(message), 0)):
            nodes = [node for node in nodes if self._older.get(node, since) >= since]
        packed = messages.stamped(messages.encode(message), self._epoch())
        for node in nodes:
            outlet = self._outlets.get(node)
            if outlet is not None and not outlet.offer(packed):
                self._dropped(node, message)

    def offer(self, node: bytes, message: Message) -> bool:
        """Send a message to a node, unless the queue of its link has no room for it. Returns whether it was queued."""
        outlet = self._outlets.get(node)
        return outlet is not None and outlet.offer(messages.stamped(messages.encode(message), self._epoch()))

    def hint(self, nodes: Collection[bytes], message: Message) -> None:
        """Send a message that may be lost, to the nodes that have little waiting."""
        self.send([node for node in nodes if not self.is_behind(node)], message)

    def is_behind(self, node: bytes) -> bool:
        """Whether too many bytes wait to be sent to a node."""
        outlet = self._outlets.get(node)
        return outlet is not None and outlet.waiting_bytes > self._bytes_max


_OF_IDLE_NODES = (Digest, Clock, Known, Rows, Objects, Present)
"""Messages that come from time to time, and leave nothing to be looked for."""

_LATE = 1e-6  # In ticks: a moment that is so little after a point of the grid is on it.


class Pace:
    """`stir` or `heard` is called when something happens, `next` by the one task that looks."""

    def __init__(self, config: Config) -> None:
        self._tick_s = config.tick_s
        self._idle_ticks = max(1, round(TICK_IDLE_S / config.tick_s))
        self._quiet_ticks = round(TICK_QUIET_S / config.tick_s)
        self._quiet = 0  # So many looks in a row found that nothing had happened since the one before.
        self._is_stirred = False
        self._woken: asyncio.Event | None = None  # While a long pause lasts, which
        self._began = 0.0  # began then.

    def stir(self) -> None:
        """Something happened: look again soon, and often for a while. Cheap."""
        self._is_stirred = True
        if self._woken is not None:
            self._woken.set()

    def heard(self, message: Message) -> None:
        """A peer sent this."""
        if not isinstance(message, _OF_IDLE_NODES):
            self.stir()

    async def next(self, *, due_s: float) -> int:
        """Wait for the next look, and return the ticks that passed. Some work is due in `due_s`, even if nothing happens."""
        self._quiet = 0 if self._is_stirred else self._quiet + 1
        self._is_stirred = False
        ticks = min(self._idle_ticks, ceil(due_s / self._tick_s - _LATE))
        if ticks <= 1 or self._quiet < self._quiet_ticks:
            await asyncio.sleep(self._tick_s)
            return 1
        if not await self._stirred_within(ticks * self._tick_s):
            return ticks
        passed = (asyncio.get_running_loop().time() - self._began) / self._tick_s
        ticks = max(1, ceil(passed - _LATE))
        await asyncio.sleep((ticks - passed) * self._tick_s)
        return ticks

    async def _stirred_within(self, seconds: float) -> bool:
        self._began, self._woken = asyncio.get_running_loop().time(), asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return False
        finally:
            self._woken = None
        return True


_STEPPED_MS = 1000  # If the clock was set by so much, the peers are told at once.


class ClockComparison:
    """`own` is this node."""

    def __init__(self, own: bytes, members: Members, outlets: Outlets, *, environment: Environment, config: Config) -> None:
        self._own = own
        self._members = members
        self._environment = environment
        self._outlets = outlets
        self._interval_s = config.clock_interval_s
        self._skew_ms_max = config.clock_skew_max_ms
        self._clocks = Clocks(skew_ms_max=config.clock_skew_max_ms)
        self._allowed = ANY
        self._due = 0.0
        self._told_lead: float | None = None  # At the last time when all peers were told.
        self._logged: list[str] = []

    def check(self, now_ms: int) -> None:
        """Check whether an operation may carry the time that this node's clock shows.

        Raises:
            ClockWrong: a majority of the members have clocks that differ by more than `clock_skew_max_ms`.
        """
        least, most = self._allowed
        if not least <= now_ms - self._environment.monotonic() * 1000 <= most:
            raise ClockWrong(
                f"{self.wrong} Nothing was written. Write to another node, or send it again once the clock is set."
            )

    # ── links ─────────────────────────────────────────────────────────────────

    def admitted(self, node: bytes) -> None:
        """A link from a node begins."""
        self._clocks.began(node)

    def linked(self, node: bytes) -> None:
        """Messages can be sent to a node from now on."""
        self._tell(node)

    def forget(self, node: bytes) -> None:
        """Forget a node that is gone for good."""
        self._clocks.forget(node)
        self._compare()

    def heard(self, node: bytes, clock: Clock) -> None:
        """A node told the time."""
        self._clocks.heard(node, clock, steady_ms=self._steady_ms())
        if clock.echo_ms == NOT_HEARD:
            self._tell(node)
        self._compare()

    def tick(self, now: float) -> None:
        """Tell the time if it is due, or if the clock was set."""
        lead = self._lead()
        stepped = self._told_lead is not None and abs(lead - self._told_lead) > _STEPPED_MS
        if now >= self._due or stepped:
            self._due, self._told_lead = now + self._interval_s, lead
            for node in sorted(self._members.linked_nodes - {self._own}):
                self._tell(node)
        if stepped:
            self._compare()

    # ── for people ────────────────────────────────────────────────────────────

    @property
    def wrong(self) -> str:
        """If a majority of the members contradict this node's clock: by how much, and what to do; else empty."""
        lead = self._lead()
        if self._allowed.least <= lead <= self._allowed.most:
            return ""
        others = sorted(self._members.name_of(node) for node in self._others() if self._clocks.differs(node, lead))
        bound_s = self._skew_ms_max / 1000
        by_s = max(self._allowed.least - lead, lead - self._allowed.most) / 1000 + bound_s
        way = "ahead of" if lead > self._allowed.most else "behind"
        return (
            f"this node's clock is wrong: it is {by_s:,.1f} s {way} those of a majority of the members ({', '.join(others)}); "
            f"clock_skew_max_ms allows {bound_s:g} s. Set it, with NTP or by hand; the node notices at once."
        )

    @property
    def differing(self) -> list[str]:
        """The clocks that differ from this node's by more than the bound."""
        lead, wrong = self._lead(), self.wrong
        known = [node for node in self._others() if self._clocks.lead_of(node) is not None]
        differing = [node for node in known if self._clocks.differs(node, lead)]
        if wrong:
            advice = "."
        elif len(known) - len(differing) + 1 >= self._members.needed("quorum"):
            advice = ". Set its clock."
        else:
            advice = ". Set both: no majority tells which one is wrong."
        told = sorted(f"{self._members.name_of(node)}'s clock is {self._shown(node, lead)} this node's" for node in differing)
        return [each for each in (wrong, *(text + advice for text in told)) if each]

    def ahead_ms(self, node: bytes) -> int | None:
        """How far a node's clock is ahead of this one's; None if that is not known."""
        lead = self._clocks.lead_of(node)
        return None if lead is None else round(lead - self._lead())

    def _shown(self, node: bytes, lead: float) -> str:
        by_s = ((self._clocks.lead_of(node) or 0.0) - lead) / 1000
        return f"{abs(by_s):,.1f} s {'ahead of' if by_s > 0 else 'behind'}"

    # ── inside ────────────────────────────────────────────────────────────────

    def _others(self) -> set[bytes]:
        return self._members.nodes - {self._own}

    def _steady_ms(self) -> int:
        return int(self._environment.monotonic() * 1000)

    def _lead(self) -> float:
        return self._environment.now_ms() - self._environment.monotonic() * 1000

    def _tell(self, node: bytes) -> None:
        wall_ms = max(0, self._environment.now_ms())
        self._outlets.send((node,), self._clocks.message(node, wall_ms=wall_ms, steady_ms=self._steady_ms()))

    def _compare(self) -> None:
        """Follow what changed. The log tells each difference once, however its size drifts."""
        self._allowed = self._clocks.allowed(self._others(), size=self._members.size)
        lead = self._lead()
        found = ["wrong"] if self.wrong else []
        found += sorted(self._members.name_of(node) for node in self._others() if self._clocks.differs(node, lead))
        if found == self._logged:
            return
        self._logged = found
        for difference in self.differing:
            log(events.CLOCKS_DIFFER, difference=difference)
        if not found:
            log(events.CLOCKS_AGREE)
