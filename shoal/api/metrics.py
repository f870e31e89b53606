"""What a node counts, for Prometheus.

Laws:

- Labels are bounded: kinds and outcomes are ours, and of spaces the first
  `SPACES_LABELLED_MAX` have their own, all others share one.
- Counting happens in one place: `Metered` wraps the session, and every door of
  the API goes through it.
- Nothing global: each node has its own registry.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from shoal.errors import ShoalError
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import (
    AnyReply,
    AnyRequest,
    Batch,
    ClusterView,
    Durability,
    MultiRead,
    NodeStatus,
    Push,
    Subscription,
)
from shoal.protocol.session import Prompt, Session, Told

SPACES_LABELLED_MAX = 100
OTHER_SPACES = "(other)"
LATENESS_INTERVAL_S = 0.25  # Short enough to see a stall of a second, too rare to cost anything.
_SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.5, 1, 2, 4, 8, 16)


class Backlog(NamedTuple):
    """What only the node can say of itself at this moment."""

    writes_pending: int = 0  # Written, not yet durable.
    durable_lag_s: float = 0.0  # How long the oldest of them has waited.


class Metrics:
    """One node's. `backlog` is asked at each scrape."""

    def __init__(self, backlog: Callable[[], Backlog] | None = None) -> None:
        self.registry = registry = CollectorRegistry()
        self._backlog = backlog
        self._requests = Counter("shoal_requests", "Requests, by kind and outcome", ["kind", "outcome"], registry=registry)
        self._seconds = Histogram(
            "shoal_request_seconds", "Time to answer, by kind", ["kind"], registry=registry, buckets=_SECONDS
        )
        self._by_space = Counter("shoal_space_requests", "Requests answered, by space", ["space"], registry=registry)
        self.sessions = Gauge("shoal_sessions", "Open session sockets", registry=registry)
        self.yjs_connections = Gauge("shoal_yjs_connections", "Open connections of Yjs clients", registry=registry)
        self.subscriptions = Gauge("shoal_subscriptions", "Subscriptions under way", registry=registry)
        self.received_bytes = Counter("shoal_received_bytes", "Bytes of session messages received", registry=registry)
        self.sent_bytes = Counter("shoal_sent_bytes", "Bytes of session messages sent", registry=registry)
        self.lateness = Histogram(
            "shoal_loop_lateness_seconds", "How late the event loop ran a timer", registry=registry, buckets=_SECONDS
        )
        self._commits = Gauge("shoal_group_commits", "Group commits in this opening", registry=registry)
        self._operations = Gauge("shoal_operations", "Operations issued in this opening", registry=registry)
        self._storage = Gauge("shoal_storage_bytes", "Bytes on disk", registry=registry)
        self._pending = Gauge("shoal_writes_pending", "Writes that are not yet durable", registry=registry)
        self._lag = Gauge("shoal_durable_lag_seconds", "How long the oldest of them has waited", registry=registry)
        self._ready = Gauge("shoal_ready", "1 if the node takes reads and writes", registry=registry)
        self._members = {
            name: Gauge(f"shoal_peer_{name}", text, ["peer"], registry=registry)
            for name, text in (
                ("linked", "1 if the peer can be sent to"),
                ("lacks_operations", "Operations that are durable here and that it is not known to hold"),
                ("lag_seconds", "How old the oldest of them is"),
                ("ahead_operations", "Operations that it holds and this node does not"),
                ("waiting_bytes", "Bytes that wait to be sent to it"),
                ("dropped_messages", "Messages that did not fit, and were left to sync"),
            )
        }
        self._early = Gauge("shoal_early_operations", "Operations that wait for those they depend on", registry=registry)
        self._quarantined = Gauge("shoal_quarantined_operations", "Operations that were refused", registry=registry)
        self._disagreements = Gauge(
            "shoal_member_disagreements", "Nodes that have other members, or the address of another node", registry=registry
        )
        self._ahead = Gauge("shoal_clock_ahead_seconds", "How far operations' times are ahead of the clock", registry=registry)
        self._garbage = Gauge(
            "shoal_garbage_entries", "Erasures whose rows are not gone yet (1,000 at most)", registry=registry
        )
        self._garbage_waits = Gauge("shoal_garbage_waits_for_owners", "Owners that these wait for", registry=registry)
        self._died = Gauge("shoal_died_changes", "Changes that came after their object was deleted", registry=registry)
        self._repaired = Gauge("shoal_repaired_rows", "Damaged rows that were fetched again from a peer", registry=registry)
        self._repairs_failed = Gauge(
            "shoal_failed_repairs", "Requests that met damage which no peer could mend", registry=registry
        )
        self._kinds: dict[type[AnyRequest], tuple[Counter, Histogram]] = {}
        self._spaces: dict[str, Counter] = {}

    def count(self, request: AnyRequest, outcome: str, seconds: float) -> None:
        """Take note of one answered request; `outcome` is "ok" or an error's code."""
        answered, duration = self._kind(type(request))
        duration.observe(seconds)
        if outcome != "ok":
            self._requests.labels(_tag(type(request)), outcome).inc()
            return
        answered.inc()
        # Only what was answered: a refused name is no space, and may be of any length.
        space = _space(request)
        if space is not None:
            self._space(space).inc()

    def _kind(self, kind: type[AnyRequest]) -> tuple[Counter, Histogram]:
        children = self._kinds.get(kind)
        if children is None:
            tag = _tag(kind)
            children = self._kinds[kind] = (self._requests.labels(tag, "ok"), self._seconds.labels(tag))
        return children

    def _space(self, space: str) -> Counter:
        child = self._spaces.get(space)
        if child is not None:
            return child
        if len(self._spaces) >= SPACES_LABELLED_MAX:
            return self._by_space.labels(OTHER_SPACES)
        child = self._spaces[space] = self._by_space.labels(space)
        return child

    def scrape(self, status: NodeStatus, cluster: ClusterView) -> bytes:
        """The text that Prometheus reads."""
        self._set_members(cluster)
        backlog = self._backlog() if self._backlog is not None else Backlog()
        self._commits.set(status.commits)
        self._garbage.set(status.garbage)
        self._garbage_waits.set(len(status.garbage_waits_for))
        self._died.set(status.died)
        self._repaired.set(status.repaired)
        self._repairs_failed.set(status.repairs_failed)
        self._operations.set(status.operations)
        self._storage.set(status.bytes_on_disk)
        self._ready.set(status.state == "ready")
        self._pending.set(backlog.writes_pending)
        self._lag.set(backlog.durable_lag_s)
        return generate_latest(self.registry)

    def _set_members(self, cluster: ClusterView) -> None:
        for member in cluster.members[1:]:
            for name, value in (
                ("linked", member.state == "linked"),
                ("lacks_operations", member.lacks),
                ("lag_seconds", member.lag_ms / 1000),
                ("ahead_operations", member.ahead),
                ("waiting_bytes", member.waiting_bytes),
                ("dropped_messages", member.dropped),
            ):
                self._members[name].labels(member.name).set(value)
        self._early.set(cluster.early)
        self._quarantined.set(len(cluster.quarantined))
        self._disagreements.set(len(cluster.disagreements))
        self._ahead.set(cluster.clock_ahead_ms / 1000)

    async def watch_loop(self) -> None:
        """Measure how late the event loop runs timers, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LATENESS_INTERVAL_S
            await asyncio.sleep(LATENESS_INTERVAL_S)
            self.lateness.observe(max(0.0, loop.time() - due))


class Metered:
    """A `Session` that counts what another one answers.

    `monotonic` is a clock in seconds; the event loop's own, which stands in for
    it, counts whole milliseconds under uvloop.
    """

    __slots__ = ("_metrics", "_monotonic", "_prompt", "_session")

    def __init__(self, session: Session, metrics: Metrics, *, monotonic: Callable[[], float] | None = None) -> None:
        self._session = session
        self._prompt = session if isinstance(session, Prompt) else None
        self._metrics = metrics
        self._monotonic = monotonic or asyncio.get_running_loop().time

    @property
    def bookmark(self) -> Bookmark:
        return self._session.bookmark

    async def call(
        self, request: AnyRequest, /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> AnyReply:
        begun, outcome = self._monotonic(), "bug"
        try:
            reply = await self._session.call(request, key=key, durability=durability, stale=stale)
            outcome = "ok"
            return reply
        except ShoalError as error:
            outcome = error.code
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self._metrics.count(request, outcome, self._monotonic() - begun)

    def begin(
        self,
        request: AnyRequest,
        told: Told,
        /,
        *,
        key: str | None = None,
        durability: Durability = "local",
        stale: bool = False,
    ) -> bool:
        if self._prompt is None:
            return False
        begun = self._monotonic()

        def answered(answer: AnyReply | ShoalError) -> None:
            outcome = answer.code if isinstance(answer, ShoalError) else "ok"
            self._metrics.count(request, outcome, self._monotonic() - begun)
            told(answer)

        try:
            return self._prompt.begin(request, answered, key=key, durability=durability, stale=stale)
        except BaseException as error:
            outcome = error.code if isinstance(error, ShoalError) else "bug"
            self._metrics.count(request, outcome, self._monotonic() - begun)
            raise

    @asynccontextmanager
    async def subscribe(self, subscription: Subscription, /) -> AsyncIterator[AsyncIterator[Push]]:
        async with self._session.subscribe(subscription) as pushes:
            self._metrics.subscriptions.inc()
            try:
                yield pushes
            finally:
                self._metrics.subscriptions.dec()

    async def close(self) -> None:
        await self._session.close()


def _tag(kind: type[AnyRequest]) -> str:
    return str(kind.__struct_config__.tag)


def _space(request: AnyRequest) -> str | None:
    if type(request) is Batch:
        return request.writes[0].space if request.writes else None
    if type(request) is MultiRead:
        return request.reads[0].space  # One that reads nothing is refused.
    space: str | None = getattr(request, "space", None)  # Some requests are about all spaces.
    return space
