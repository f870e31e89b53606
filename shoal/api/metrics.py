"""A node's metrics, for Prometheus.

Laws:

- Labels are bounded: kinds and outcomes are a fixed set, the first `SPACES_LABELLED_MAX` spaces have labels
  of their own, and all other spaces share one.
- Requests are counted in one place: `Metered` wraps each session that the API opens.
- Nothing is global: each node has its own registry.
- Names follow Prometheus's conventions: counters end in `_total`, units are seconds and bytes.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from shoal.errors import ShoalError
from shoal.protocol.requests import (
    AnyReply,
    AnyRequest,
    ClusterView,
    ConditionsView,
    Durability,
    NodeStatus,
    Push,
    R,
    Request,
    Subscription,
    space_of,
)
from shoal.protocol.session import Prompt, Session, Told, Wrapper
from shoal.records import NamedTuple

SPACES_LABELLED_MAX = 100
OTHER_SPACES = "(other)"
LATENESS_INTERVAL_S = 0.25  # Short enough to see a stall of a second, too rare to cost anything.
_SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.5, 1, 2, 4, 8, 16)


class Backlog(NamedTuple):
    """Values that the node computes when it is asked."""

    writes_pending: int = 0  # Written, not yet durable.
    durable_lag_s: float = 0.0  # How long the oldest of them has waited.


class Quantiles(Struct):
    """So long took the half, and all but one in 100 or in 1,000, in milliseconds: at most, as far as the buckets tell."""

    p50: float  # Of the half.
    p99: float  # Of all but one in 100.
    p999: float  # Of all but one in 1,000.


class KindFigures(Struct):
    """The requests of one kind."""

    kind: str
    outcomes: dict[str, int]  # "ok", or the code of an error, such as "outcome-unknown", with how often.
    ms: Quantiles  # How long the answers took.


class Figures(Struct):
    """The work of a node since its process began. Two of them and the time between make a throughput."""

    kinds: list[KindFigures]  # Those that were asked for.
    spaces: dict[str, int]  # Requests that were answered, by space; the first 100, and "(other)".
    late_ms: Quantiles  # How late the event loop ran its timers.
    writes_pending: int  # Writes that are not yet durable.
    durable_lag_s: float  # How long the oldest of these has waited.


class Metrics:
    """The metrics of one node. `backlog` is called at each scrape; `version` is Shoal's."""

    def __init__(self, backlog: Callable[[], Backlog] | None = None, *, version: str = "") -> None:
        self.registry = registry = CollectorRegistry()
        self._backlog = backlog
        self._requests = Counter(
            "shoal_requests_total", "Requests, by kind and outcome", ["kind", "outcome"], registry=registry
        )
        self._seconds = Histogram(
            "shoal_request_seconds", "Time to answer, by kind", ["kind"], registry=registry, buckets=_SECONDS
        )
        self._by_space = Counter("shoal_space_requests_total", "Requests answered, by space", ["space"], registry=registry)
        self.sessions = Gauge("shoal_sessions", "Open session sockets", registry=registry)
        self.yjs_connections = Gauge("shoal_yjs_connections", "Open connections of Yjs clients", registry=registry)
        self.subscriptions = Gauge("shoal_subscriptions", "Subscriptions under way", registry=registry)
        self.received_bytes = Counter("shoal_received_bytes_total", "Bytes of session messages received", registry=registry)
        self.sent_bytes = Counter("shoal_sent_bytes_total", "Bytes of session messages sent", registry=registry)
        self.lateness = Histogram(
            "shoal_loop_lateness_seconds", "How late the event loop ran a timer", registry=registry, buckets=_SECONDS
        )
        build = Gauge("shoal_build_info", "1; the labels name the versions that run", ["version", "python"], registry=registry)
        build.labels(version, platform.python_version()).set(1)
        ProcessCollector(registry=registry)
        self._kinds: dict[type[AnyRequest], tuple[Counter, Histogram]] = {}
        self._spaces: dict[str, Counter] = {}

    def count(self, request: AnyRequest, outcome: str, seconds: float) -> None:
        """Count one answered request. `outcome` is "ok" or an error's code; `seconds` is how long it took."""
        answered, duration = self._kind(type(request))
        duration.observe(seconds)
        if outcome != "ok":
            self._requests.labels(_tag(type(request)), outcome).inc()
            return
        answered.inc()
        # Only successes: a rejected request may name a space of any length.
        space = space_of(request)
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

    def scrape(self, status: NodeStatus, cluster: ClusterView, conditions: ConditionsView) -> bytes:
        """The text that Prometheus reads."""
        backlog = self._backlog() if self._backlog is not None else Backlog()
        told = [*_of_node(status, backlog), *_of_cluster(cluster), *_of_conditions(conditions)]
        return generate_latest(_Scraped(told, self.registry))

    def figures(self) -> Figures:
        """The same for people: since the process began, at this node."""
        outcomes: dict[str, dict[str, int]] = {}
        for labels, value in _samples(self._requests, "_total"):
            outcomes.setdefault(labels["kind"], {})[labels["outcome"]] = int(value)
        buckets: dict[str, list[tuple[float, float]]] = {}
        for labels, value in _samples(self._seconds, "_bucket"):
            buckets.setdefault(labels["kind"], []).append((float(labels["le"]), value))
        lateness = [(float(labels["le"]), value) for labels, value in _samples(self.lateness, "_bucket")]
        spaces = {labels["space"]: int(value) for labels, value in _samples(self._by_space, "_total")}
        backlog = self._backlog() if self._backlog is not None else Backlog()
        kinds = [KindFigures(kind, found, _quantiles(buckets.get(kind, []))) for kind, found in sorted(outcomes.items())]
        return Figures(kinds, spaces, _quantiles(lateness), backlog.writes_pending, backlog.durable_lag_s)

    async def watch_loop(self) -> None:
        """Measure how late the event loop runs timers, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LATENESS_INTERVAL_S
            await asyncio.sleep(LATENESS_INTERVAL_S)
            self.lateness.observe(max(0.0, loop.time() - due))


def _samples(metric: Counter | Histogram, suffix: str) -> Iterator[tuple[dict[str, str], float]]:
    for family in metric.collect():
        for sample in family.samples:
            if sample.name.endswith(suffix):
                yield sample.labels, sample.value


def _quantiles(buckets: list[tuple[float, float]]) -> Quantiles:
    """From the bounds of buckets, in seconds, with how many are at most that; 0 if there are none."""
    total = buckets[-1][1] if buckets else 0.0

    def at(share: float) -> float:
        # Beyond the last bound nothing is known but that it was longer.
        return next((min(bound, _SECONDS[-1]) * 1000 for bound, count in buckets if total and count >= share * total), 0.0)

    return Quantiles(at(0.5), at(0.99), at(0.999))


class _Scraped:
    """The values that the node computed for this scrape, and the counters.

    The times at which counters were created are left out: they double the series, and Prometheus does not use them.
    """

    def __init__(self, told: list[Metric], counted: CollectorRegistry) -> None:
        self._told = told
        self._counted = counted

    def collect(self) -> Iterator[Metric]:
        yield from self._told
        for metric in self._counted.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def _of_node(status: NodeStatus, backlog: Backlog) -> Iterator[Metric]:
    gauge, counter = GaugeMetricFamily, CounterMetricFamily
    yield gauge("shoal_ready", "1 if the node takes reads and writes", status.state == "ready")
    yield counter("shoal_group_commits", "Group commits in this opening", status.commits)
    yield counter("shoal_operations", "Operations issued in this opening", status.operations)
    yield gauge("shoal_storage_bytes", "Bytes on disk", status.bytes_on_disk)
    if status.tls_ends_ms:
        yield gauge(
            "shoal_tls_expires_seconds", "When the certificate expires, in seconds since 1970", status.tls_ends_ms / 1000
        )
        yield gauge("shoal_tls_trouble", "1 if the TLS files or their dates need attention", bool(status.tls_trouble))
    if status.tokens_end_ms:
        yield gauge(
            "shoal_token_expires_seconds",
            "When the next author whose tokens were shown here has none any more, in seconds since 1970",
            status.tokens_end_ms / 1000,
        )
    yield gauge("shoal_tokens_ending", "Authors whose newest token ends soon", len(status.tokens_ending))
    refused = counter("shoal_refused_tokens", "Tokens that were not accepted, by reason", labels=["reason"])
    for reason, count in {"expired": 0, **status.tokens_refused}.items():
        refused.add_metric([reason], count)
    yield refused
    if status.cluster_keys:
        yield gauge("shoal_cluster_keys", "Keys that peers may prove: 2 while it is changed", len(status.cluster_keys))
        yield gauge("shoal_cluster_key_trouble", "1 if the key's file cannot be used", bool(status.cluster_key_trouble))
    if status.master_key:
        yield gauge("shoal_data_keys", "Data keys of the encrypted directory", status.data_keys)
        yield gauge(
            "shoal_keys_waiting",
            "Spaces without objects whose keys are not destroyed yet (1,000 at most)",
            len(status.keys_wait_for),
        )
    yield gauge(
        "shoal_register_quorum", "0 if the quorum register has no quorum: leases and the like wait", not status.register
    )
    if status.backup:
        yield gauge("shoal_backup_failing", "1 if this node cannot ship to the cluster's backup", bool(status.backup_trouble))
        yield gauge(
            "shoal_backup_lag_seconds",
            "The recovery point: how long ago all that this node held was in the backup",
            status.backup_lag_ms / 1000,
        )
        yield gauge("shoal_backup_bytes", "Bytes of the objects in the backup that count", status.backup_bytes)
        yield gauge(
            "shoal_backup_verified_seconds",
            "When the backup was last restored and found sound, in seconds since 1970; 0: never",
            status.backup_verified_ms / 1000,
        )
    yield gauge("shoal_writes_pending", "Writes that are not yet durable", backlog.writes_pending)
    yield gauge("shoal_durable_lag_seconds", "How long the oldest of these writes has waited", backlog.durable_lag_s)
    yield gauge("shoal_garbage_entries", "Deletions and prunes whose rows are not swept yet (1,000 at most)", status.garbage)
    yield gauge("shoal_garbage_waits_for_owners", "Owners that these wait for", len(status.garbage_waits_for))
    yield gauge("shoal_quotas_reached", "Quotas of spaces that were reached in the last seconds", len(status.quotas_reached))
    yield counter("shoal_quota_refusals", "Requests that were refused because of a quota", status.quota_refusals)
    yield from _of_retention(status)
    yield counter("shoal_died_changes", "Changes that arrived after their object was deleted", status.died)
    yield counter("shoal_repaired_rows", "Damaged rows that were fetched from a peer", status.repaired)
    yield counter("shoal_failed_repairs", "Requests that met damage that no peer could repair", status.repairs_failed)


def _of_retention(status: NodeStatus) -> Iterator[Metric]:
    gauge, counter = GaugeMetricFamily, CounterMetricFamily
    went = "that went by rules of retention"
    yield counter("shoal_retention_pruned_checkpoints", f"Checkpoints {went}", status.retention_checkpoints)
    yield counter("shoal_retention_pruned_events", f"Events of journals {went}", status.retention_events)
    yield counter("shoal_retention_deleted_threads", f"Threads {went}", status.retention_threads)
    yield counter("shoal_retention_freed_bytes", f"Stored bytes of all {went}", status.retention_bytes)
    yield gauge("shoal_retention_due", "What rules of retention let go and is still there", status.retention_due)
    last_s = status.retention_last_ms / 1000
    yield gauge("shoal_retention_last_timestamp_seconds", "When the rules were carried out last; 0: not yet", last_s)
    yield gauge("shoal_retention_waits", "1 if nothing goes by rules of retention now", bool(status.retention_waits_for))


def _of_conditions(view: ConditionsView) -> Iterator[Metric]:
    about = "1 if the condition stands, 0 if not; left out if that is not known"
    stands = GaugeMetricFamily("shoal_condition", about, labels=["condition"])
    standing = {each.name for each in view.standing}
    for name in view.looked:
        stands.add_metric([name], name in standing)
    yield stands
    begun = CounterMetricFamily("shoal_condition_begun", "How often the condition began", labels=["condition"])
    for name, count in view.begun.items():
        begun.add_metric([name], count)
    yield begun


def _of_cluster(cluster: ClusterView) -> Iterator[Metric]:
    gauge, counter = GaugeMetricFamily, CounterMetricFamily
    yield gauge("shoal_early_operations", "Operations that wait for those they depend on", cluster.early)
    yield gauge("shoal_quarantined_operations", "Operations that could not be applied", len(cluster.quarantined))
    others = "Nodes that have other members, or the address of another node"
    yield gauge("shoal_member_disagreements", others, len(cluster.disagreements))
    yield gauge("shoal_learner", "1 if the node is a learner, which counts in no quorum", bool(cluster.learning))
    yield gauge(
        "shoal_rows_differ", "Objects whose rows differ from a peer's at equal vectors, by peer", len(cluster.differing)
    )
    yield counter("shoal_replaced_objects", "Objects whose rows were rebuilt from the log", cluster.replaced)
    unshown = "Times that a peer said that its log decides about rows, and did not show it"
    yield counter("shoal_unshown_logs", unshown, cluster.unshown)
    ahead_s = cluster.clock_ahead_ms / 1000
    yield gauge("shoal_clock_ahead_seconds", "How far operations' times are ahead of the clock", ahead_s)
    yield gauge(
        "shoal_clocks_differ", "Clocks of members that differ too much, and this node's if it is wrong", len(cluster.clocks)
    )
    peers = cluster.members[1:]
    linked = gauge("shoal_peer_linked", "1 if there is a link to the peer", labels=["peer"])
    lacks = gauge("shoal_peer_lacks_operations", "Operations durable here that the peer is not known to hold", labels=["peer"])
    lag = gauge("shoal_peer_lag_seconds", "The age of the oldest operation that the peer lacks", labels=["peer"])
    ahead = gauge("shoal_peer_ahead_operations", "Operations that the peer holds and this node does not", labels=["peer"])
    clock = gauge("shoal_peer_clock_ahead_seconds", "How far the peer's clock is ahead of this node's", labels=["peer"])
    waiting = gauge("shoal_peer_waiting_bytes", "Bytes that wait to be sent to the peer", labels=["peer"])
    dropped = counter("shoal_peer_dropped_messages", "Messages that did not fit the queue", labels=["peer"])
    for peer in peers:
        linked.add_metric([peer.name], peer.state == "linked")
        if peer.told:
            lacks.add_metric([peer.name], peer.lacks)
            lag.add_metric([peer.name], peer.lag_ms / 1000)
            ahead.add_metric([peer.name], peer.ahead)
        if peer.clock_ms is not None:
            clock.add_metric([peer.name], peer.clock_ms / 1000)
        waiting.add_metric([peer.name], peer.waiting_bytes)
        dropped.add_metric([peer.name], peer.dropped)
    yield from (linked, lacks, lag, ahead, clock, waiting, dropped)


class Metered(Wrapper):
    """A `Session` that counts the answers of another one.

    `monotonic` is a clock in seconds. The default is the event loop's own clock, which
    counts whole milliseconds under uvloop.
    """

    __slots__ = ("_metrics", "_monotonic", "_prompt")

    def __init__(self, session: Session, metrics: Metrics, *, monotonic: Callable[[], float] | None = None) -> None:
        super().__init__(session)
        self._prompt = session if isinstance(session, Prompt) else None
        self._metrics = metrics
        self._monotonic = monotonic or asyncio.get_running_loop().time

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """Answer `request` (`Session.call`); counts the request with its outcome and duration, also if it is cancelled."""
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
        """Begin `request`, and call `told` with its answer, now or later (`Prompt.begin`); counts the request once it is
        answered. False if the session inside is not a `Prompt`.
        """
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
        """Deliver pushes until the context is left (`Session.subscribe`); a gauge shows how many are open."""
        async with self._session.subscribe(subscription) as pushes:
            self._metrics.subscriptions.inc()
            try:
                yield pushes
            finally:
                self._metrics.subscriptions.dec()


def _tag(kind: type[AnyRequest]) -> str:
    return str(kind.__struct_config__.tag)
