"""What follows from the metrics: docs/METRICS.md and deploy/grafana/shoal.json. `tests.reference` writes both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from prometheus_client.metrics_core import Metric

from shoal.api.health import Metrics
from shoal.node.conditions.watcher import CONDITIONS
from shoal.protocol.requests import ClusterView, ConditionsView, Member, NodeStatus, ReadCounter
from shoal.workflows import measured

PAGE = """# Metrics

`python -m tests.reference` generates this page. `/metrics` of each node has all of these, in Prometheus's text format or, if
the caller accepts it, in OpenMetrics, in which a slow request is named (an exemplar) by its trace or, if it has none, by its
`X-Request-Id`.
`await store.metrics()` gives the same text for any store, also one in your own program, but for what only a server counts.
`watch_metrics` gives it as values again and again, to be sent on to the metrics of your program:

```python
async for samples in store.watch_metrics(every=15):
    for each in samples:
        mine.gauge(each.name, each.value, each.labels)
```

Alerts are in [deploy/prometheus](../deploy/prometheus/shoal.rules.yml), which follow from the [conditions](CONDITIONS.md), and
a board for Grafana in [deploy/grafana](../deploy/grafana/shoal.json). To scrape:

```yaml
scrape_configs:
  - job_name: shoal
    scrape_interval: 15s
    static_configs:
      - targets: [n1:7400, n2:7400, n3:7400]
rule_files: [shoal.rules.yml]
```

With [tokens](ACCESS.md) the scraper needs one with `*:cluster:read` (`authorization: {credentials_file: …}`), with
[TLS](TLS.md) `scheme: https` and `tls_config: {ca_file: …}`.

Names end in their unit: `_seconds`, `_bytes`, `_total` for what only grows, `_timestamp_seconds` for a moment since 1970.
Labels are bounded: the first 100 spaces have one of their own, and all others share `(other)`.

| metric | type | labels | it says |
|---|---|---|---|
"""

NODE = NodeStatus(
    "0.1.0",
    "ab12",
    "cd34",
    "ready",
    "",
    1,
    2,
    3,
    4,
    5,
    6,
    tls_ends_ms=1,
    master_key="file",
    tokens_end_ms=1,
    backup="current",
    disk_free_bytes=1,
    disk_full_ms=1,
)


def families() -> list[Metric]:
    """All metrics of a node with a peer, TLS, tokens, a backup and encryption, after one request."""
    own = Member("n1:7400", NODE.node, "self", 3, 0, 0, 0, 0, 0, 0, "", {"aa": 3})
    peer = msgspec.structs.replace(own, name="n2:7400", state="linked", clock_ms=5)
    view = ConditionsView(NODE.node, "n1:7400", [], list(CONDITIONS), begun=dict.fromkeys(CONDITIONS, 0))
    metrics = Metrics()
    metrics.lateness.observe(0.1)
    metrics.count(ReadCounter("crew", "hits"), "ok", 0.1)
    cluster = ClusterView("shoal", 2, 2, [own, peer], "d1", 0, [], 0)
    return [*measured.families(NODE, cluster, view, measured.Backlog()), *metrics.registry.collect()]


def page() -> str:
    """docs/METRICS.md."""
    return PAGE + "".join(map(_row, sorted(families(), key=lambda family: family.name)))


def _row(family: Metric) -> str:
    labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return f"| `{name}` | {family.type} | {', '.join(labels)} | {family.documentation} |\n"


def names() -> set[str]:
    """The names of all series."""
    return {sample.name for family in families() for sample in family.samples}


# ── the board ─────────────────────────────────────────────────────────────────


class Panel(NamedTuple):
    title: str
    unit: str  # Grafana's.
    series: dict[str, str]  # Legend → expression.
    kind: str = "timeseries"


_AT = "{{instance}}"
PANELS = (
    Panel("Conditions that stand", "short", {f"{_AT} {{{{condition}}}}": "shoal_condition == 1"}, "table"),
    Panel("Nodes that answer", "short", {_AT: "shoal_ready"}, "stat"),
    Panel("Answers a second", "reqps", {"{{outcome}}": "sum by (outcome) (rate(shoal_requests_total[1m]))"}),
    Panel(
        "Latency, 99 of 100",
        "s",
        {"{{kind}}": "histogram_quantile(0.99, sum by (le, kind) (rate(shoal_request_duration_seconds_bucket[5m])))"},
    ),
    Panel("Answers a second, by space", "reqps", {"{{space}}": "sum by (space) (rate(shoal_space_requests_total[1m]))"}),
    Panel("The disk: oldest write that waits", "s", {_AT: "shoal_durable_lag_seconds"}),
    Panel(
        "The processor: lateness of the loop, 99 of 100",
        "s",
        {_AT: "histogram_quantile(0.99, sum by (le, instance) (rate(shoal_loop_lateness_seconds_bucket[5m])))"},
    ),
    Panel("The network: bytes that wait for a peer", "bytes", {f"{_AT} → {{{{peer}}}}": "shoal_peer_waiting_bytes"}),
    Panel("How far a peer is behind", "s", {f"{_AT} → {{{{peer}}}}": "shoal_peer_lag_seconds"}),
    Panel("Bytes on disk", "bytes", {_AT: "shoal_storage_bytes", f"{_AT} free": "shoal_disk_free_bytes"}),
    Panel("The disk is full in", "s", {_AT: "shoal_disk_full_timestamp_seconds - time()"}),
    Panel("Memory", "bytes", {_AT: "process_resident_memory_bytes"}),
    Panel("Processor", "percentunit", {_AT: "rate(process_cpu_seconds_total[5m])"}),
    Panel("The backup: recovery point", "s", {_AT: "shoal_backup_lag_seconds"}),
    Panel(
        "Sessions, subscriptions", "short", {f"{_AT} sessions": "shoal_sessions", f"{_AT} subscriptions": "shoal_subscriptions"}
    ),
)


def board() -> str:
    """deploy/grafana/shoal.json: import it, and choose the Prometheus that scrapes the nodes."""
    document = {
        "title": "Shoal",
        "uid": "shoal",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [{"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}]},
        "panels": list(_panels()),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _panels() -> Iterator[dict[str, Any]]:
    source = {"type": "prometheus", "uid": "${source}"}
    for number, panel in enumerate(PANELS):
        targets = [
            {"refId": chr(65 + nth), "datasource": source, "expr": expression, "legendFormat": legend}
            for nth, (legend, expression) in enumerate(panel.series.items())
        ]
        yield {
            "id": number + 1,
            "type": panel.kind,
            "title": panel.title,
            "datasource": source,
            "gridPos": {"x": 12 * (number % 2), "y": 8 * (number // 2), "w": 12, "h": 8},
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "targets": targets,
        }
