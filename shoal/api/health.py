"""Liveness, readiness, metrics and the state of the cluster, for orchestrators and people."""

from __future__ import annotations

from typing import Literal

from aiohttp import web
from msgspec import Struct, structs
from prometheus_client import CONTENT_TYPE_LATEST

from shoal.api.http.exchange import Exchange
from shoal.api.metrics import Metrics
from shoal.errors import CatchingUp, ReadOnly, ShuttingDown
from shoal.protocol.requests import Cluster, ClusterView, NodeStatus, Status

METRICS: web.AppKey[Metrics] = web.AppKey("metrics", Metrics)


class Alive(Struct):
    """The process answers."""

    status: Literal["alive"] = "alive"


class Ready(Struct, omit_defaults=True):
    """The node takes reads and writes."""

    status: Literal["ready"]
    node: str
    reason: str = ""  # Why it counts in no quorum yet: it is a learner.


class NodeView(Struct):
    """The state and the counts of the node that answers; `requests.NodeStatus` describes each field."""

    node: str
    version: str
    origin: str
    state: Literal["ready", "read-only", "refilling", "stopping"]
    reason: str
    started_ms: int
    bytes_on_disk: int
    operations: int
    commits: int
    connections: int
    spaces: int
    garbage: int
    garbage_waits_for: list[str]
    died: int
    repaired: int
    repairs_failed: int


class MemberView(Struct):
    """An owner, as the node that answers sees it; `requests.Member` describes each field."""

    name: str
    node: str
    state: Literal["self", "linked", "unreachable"]
    operations: int
    lacks: int
    ahead: int
    lag_ms: int
    waiting_bytes: int
    dropped: int
    linked_ms: int
    reason: str
    vector: dict[str, int]
    origins: int
    clock_ms: int | None


class ClusterDocument(Struct):
    """The owners and the node itself, as the node that answers sees them."""

    cluster: str
    size: int
    quorum: int
    digest: str  # Equal on nodes that hold the same operations.
    early: int
    quarantined: list[str]
    clock_ahead_ms: int
    disagreements: list[str]  # Nodes with other members, or with the address of another node, and how to mend that.
    learning: list[str]  # If the node is a learner and so counts in no quorum: how far it is with each of the others.
    differing: list[str]  # Objects whose rows differ from a peer's at equal vectors, and how this node settled it.
    replaced: int  # Objects whose rows were rebuilt from the log, since the node started.
    clocks: list[str]  # Clocks that differ by more than `clock_skew_max_ms`, and what to do.
    truncated: list[str]  # Partitions of this node that need a snapshot: what they lack has left a peer's log.
    members: list[MemberView]  # The node that answers first.
    node: NodeView  # More about the node that answers.


async def healthz(exchange: Exchange) -> web.Response:
    """200 as long as the process answers. It does not ask the node, so that a full disk causes no restart."""
    return exchange.answer(Alive())


async def readyz(exchange: Exchange) -> web.Response:
    """200 only when the node takes reads and writes.

    Raises:
        ShuttingDown, ReadOnly, CatchingUp: with the reason.
    """
    status = await node_status(exchange)
    if exchange.stopping.is_set() or status.state == "stopping":
        raise ShuttingDown(f"the node is stopping{_because(status)}. Nothing was written. Ask another node.", state="stopping")
    if status.state == "read-only":
        raise ReadOnly(f"the node only reads{_because(status)}. Nothing was written. Ask another node.", state="read-only")
    if status.state == "refilling":
        raise CatchingUp(
            f"the node is catching up{_because(status)}. Nothing was written. Ask another node.", state="refilling"
        )
    return exchange.answer(Ready("ready", status.node, status.reason))


async def metrics(exchange: Exchange) -> web.Response:
    """The metrics in Prometheus's text format; each scrape asks the node for its status."""
    text = exchange.request.app[METRICS].scrape(await node_status(exchange), await _view(exchange))
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def cluster(exchange: Exchange) -> web.Response:
    """The members as this node sees them, and more of this node."""
    view, status = await _view(exchange), await node_status(exchange)
    document = ClusterDocument(
        cluster=view.cluster,
        size=view.size,
        quorum=view.quorum,
        digest=view.digest,
        early=view.early,
        quarantined=view.quarantined,
        clock_ahead_ms=view.clock_ahead_ms,
        disagreements=view.disagreements,
        learning=view.learning,
        differing=view.differing,
        replaced=view.replaced,
        clocks=view.clocks,
        truncated=view.truncated,
        members=[MemberView(**structs.asdict(member)) for member in view.members],
        node=NodeView(**structs.asdict(status)),
    )
    return exchange.answer(document)


async def _view(exchange: Exchange) -> ClusterView:
    return await exchange.call(Cluster())


async def node_status(exchange: Exchange) -> NodeStatus:
    """Ask the session for the node's status."""
    return await exchange.call(Status())


def _because(status: NodeStatus) -> str:
    return f": {status.reason.rstrip('.')}" if status.reason else ""
