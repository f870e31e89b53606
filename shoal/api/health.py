"""Is it alive, is it ready, what does it count: for orchestrators and people."""

from __future__ import annotations

from typing import Literal

from aiohttp import web
from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST

from shoal.api.exchange import Exchange
from shoal.api.metrics import Metrics
from shoal.errors import ReadOnly, ShuttingDown
from shoal.protocol.requests import NodeStatus, Status

METRICS: web.AppKey[Metrics] = web.AppKey("metrics", Metrics)


class Alive(Struct):
    status: Literal["alive"] = "alive"


class Ready(Struct):
    status: Literal["ready"]
    node: str


class NodeView(Struct):
    node: str
    version: str
    origin: str
    state: Literal["ready", "read-only", "stopping"]
    reason: str
    started_ms: int
    bytes_on_disk: int
    operations: int
    commits: int
    connections: int
    spaces: int


class ClusterView(Struct):
    nodes: list[NodeView]


async def healthz(exchange: Exchange) -> web.Response:
    """200 as long as the process answers: asks nothing of the node, so that a full disk does not restart it."""
    return exchange.answer(Alive())


async def readyz(exchange: Exchange) -> web.Response:
    """200 only when the node takes reads and writes.

    Raises:
        ShuttingDown, ReadOnly: with the reason.
    """
    status = await node_status(exchange)
    if exchange.stopping.is_set() or status.state == "stopping":
        raise ShuttingDown(f"the node is stopping{_because(status)}. Nothing was written. Ask another node.", state="stopping")
    if status.state == "read-only":
        raise ReadOnly(f"the node only reads{_because(status)}. Nothing was written. Ask another node.", state="read-only")
    return exchange.answer(Ready("ready", status.node))


async def metrics(exchange: Exchange) -> web.Response:
    text = exchange.request.app[METRICS].scrape(await node_status(exchange))
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def cluster(exchange: Exchange) -> web.Response:
    s = await node_status(exchange)
    node = NodeView(
        node=s.node,
        version=s.version,
        origin=s.origin,
        state=s.state,
        reason=s.reason,
        started_ms=s.started_ms,
        bytes_on_disk=s.bytes_on_disk,
        operations=s.operations,
        commits=s.commits,
        connections=s.connections,
        spaces=s.spaces,
    )
    return exchange.answer(ClusterView([node]))


async def node_status(exchange: Exchange) -> NodeStatus:
    reply = await exchange.call(Status())
    assert isinstance(reply, NodeStatus)
    return reply


def _because(status: NodeStatus) -> str:
    return f": {status.reason.rstrip('.')}" if status.reason else ""
