"""The metrics that follow from what a node tells of itself, for `/metrics` and for stores in a program.

Laws:
- Labels are bounded: members, conditions of the table, and reasons are fixed or few sets.
- What is not known is no sample.
- What a condition tells is told by `shoal_condition` alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from shoal.protocol.requests import ClusterView, ConditionsView, NodeStatus
from shoal.records import NamedTuple


class Backlog(NamedTuple):
    """Values that the node computes when it is asked."""

    writes_pending: int = 0  # Written, not yet durable.
    durable_lag_s: float = 0.0  # How long the oldest of them has waited.


def families(status: NodeStatus, cluster: ClusterView, conditions: ConditionsView, backlog: Backlog | None) -> list[Metric]:
    """All of them, with their samples. `backlog`: None if that is not known."""
    return [*_of_node(status, backlog), *_of_cluster(cluster), *_of_conditions(conditions)]


class Told:
    """A collector of these metrics, for a registry of `prometheus_client`: it shows what it was given last."""

    def __init__(self, found: list[Metric]) -> None:
        self.found = found

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        yield from self.found


def text(found: list[Metric]) -> str:
    """The metrics in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Told(found))
    return generate_latest(registry).decode()


def _of_node(status: NodeStatus, backlog: Backlog | None) -> Iterator[Metric]:
    gauge, counter = GaugeMetricFamily, CounterMetricFamily
    yield gauge("shoal_ready", "1 if the node takes reads and writes", status.state == "ready")
    yield counter("shoal_group_commits", "Group commits in this opening", status.commits)
    yield counter("shoal_operations", "Operations issued in this opening", status.operations)
    yield gauge("shoal_storage_bytes", "Bytes on disk", status.bytes_on_disk)
    if status.disk_free_bytes >= 0:
        yield gauge("shoal_disk_free_bytes", "Bytes that are free where the directory is", status.disk_free_bytes)
    if status.disk_full_ms:
        yield gauge(
            "shoal_disk_full_timestamp_seconds",
            "When the disk is full at the rate of the last days, in seconds since 1970; left out if that cannot be said",
            status.disk_full_ms / 1000,
        )
    if status.tls_ends_ms:
        yield gauge(
            "shoal_tls_expires_timestamp_seconds",
            "When the certificate ends, in seconds since 1970",
            status.tls_ends_ms / 1000,
        )
    if status.tokens_end_ms:
        yield gauge(
            "shoal_token_expires_timestamp_seconds",
            "When the next author whose tokens were shown here has none any more, in seconds since 1970",
            status.tokens_end_ms / 1000,
        )
    refused = counter("shoal_refused_tokens", "Tokens that were not accepted, by reason", labels=["reason"])
    for reason, count in {"expired": 0, **status.tokens_refused}.items():
        refused.add_metric([reason], count)
    yield refused
    if status.master_key:
        yield gauge("shoal_data_keys", "Data keys of the encrypted directory", status.data_keys)
        yield gauge(
            "shoal_keys_waiting",
            "Spaces without objects whose keys are not destroyed yet (1,000 at most)",
            len(status.keys_wait_for),
        )
    if status.backup:
        yield gauge(
            "shoal_backup_lag_seconds",
            "The recovery point: how long ago all that this node held was in the backup",
            status.backup_lag_ms / 1000,
        )
        yield gauge("shoal_backup_bytes", "Bytes of the objects in the backup that count", status.backup_bytes)
        yield gauge(
            "shoal_backup_verified_timestamp_seconds",
            "When the backup was last restored and found sound, in seconds since 1970; 0: never",
            status.backup_verified_ms / 1000,
        )
    if backlog is not None:
        yield gauge("shoal_writes_pending", "Writes that are not yet durable", backlog.writes_pending)
        yield gauge("shoal_durable_lag_seconds", "How long the oldest of these writes has waited", backlog.durable_lag_s)
    yield gauge("shoal_garbage_entries", "Deletions and prunes whose rows are not swept yet (1,000 at most)", status.garbage)
    yield counter("shoal_quota_refusals", "Requests that were refused because of a quota", status.quota_refusals)
    yield from _of_retention(status)
    yield counter("shoal_redaction_replaced", "Places in writes that rules of redaction replaced", status.redaction_replaced)
    yield counter("shoal_redaction_refused", "Writes that were refused for rules of redaction", status.redaction_refused)
    yield from _of_tiering(status)
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


def _of_tiering(status: NodeStatus) -> Iterator[Metric]:
    gauge, counter = GaugeMetricFamily, CounterMetricFamily
    yield gauge("shoal_tiering_away_bytes", "Bytes of chunks that the node has in object stores", status.tiering_away_bytes)
    yield counter("shoal_tiering_moved_bytes", "Bytes of chunks that it moved there", status.tiering_moved_bytes)
    yield counter("shoal_tiering_fetched_objects", "Objects that it fetched from there", status.tiering_fetched)
    yield counter("shoal_tiering_fetched_bytes", "Bytes of these objects", status.tiering_fetched_bytes)
    yield counter("shoal_tiering_failed_fetches", "Fetches from there that failed", status.tiering_failed)


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
    yield gauge(
        "shoal_rows_differ", "Objects whose rows differ from a peer's at equal vectors, by peer", len(cluster.differing)
    )
    yield counter("shoal_replaced_objects", "Objects whose rows were rebuilt from the log", cluster.replaced)
    unshown = "Times that a peer said that its log decides about rows, and did not show it"
    yield counter("shoal_unshown_logs", unshown, cluster.unshown)
    ahead_s = cluster.clock_ahead_ms / 1000
    yield gauge("shoal_clock_ahead_seconds", "How far operations' times are ahead of the clock", ahead_s)
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
