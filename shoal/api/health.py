"""Liveness, readiness, metrics and the state of the cluster, for orchestrators and people; and the identity of the caller.

Law: the token that a browser's cookie holds came in a header, so that no URL and no page's script keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from aiohttp import web
from msgspec import Struct, structs
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics import exposition as openmetrics

from shoal.api.derived import show, view_of
from shoal.api.http import origins as credentials
from shoal.api.http.exchange import Exchange
from shoal.api.metrics import Metrics
from shoal.errors import CatchingUp, NotAMember, ReadOnly, ShuttingDown, Unsupported
from shoal.protocol.requests import Cluster, ClusterView, NodeStatus, ReadConditions, Status

_ELSEWHERE = "Nothing was written. Ask another node."
_OPEN = "application/openmetrics-text"
METRICS: web.AppKey[Metrics] = web.AppKey("metrics", Metrics)


class Alive(Struct):
    """The process answers."""

    status: Literal["alive"] = "alive"


class Ready(Struct, omit_defaults=True):
    """The node takes reads and writes."""

    status: Literal["ready"]
    node: str
    reason: str = ""  # Why it counts in no quorum yet: it is a learner.
    register: str = ""  # Why leases, claims and the like wait: the quorum register has no quorum.
    conditions: list[str] = []  # The names of those that stand (docs/CONDITIONS.md): whoever asks needs no token.


if TYPE_CHECKING:
    from msgspec import Struct as NodeStatusView
    from msgspec import Struct as _ClusterView
else:
    NodeStatusView, _ClusterView = view_of(NodeStatus), view_of(ClusterView)


class ClusterDocument(_ClusterView):
    """The owners and the node itself, as the node that answers sees them."""

    node: NodeStatusView  # More about the node that answers.


async def healthz(exchange: Exchange) -> web.Response:
    """200 as long as the process answers. It does not ask the node, so that a full disk causes no restart."""
    return await exchange.answer(Alive())


async def readyz(exchange: Exchange) -> web.Response:
    """200 only when the node takes reads and writes.

    Raises:
        ShuttingDown, ReadOnly, CatchingUp, NotAMember: with the reason.
    """
    status = await node_status(exchange)
    told = {"conditions": _names(status)}
    because = f": {status.reason.rstrip('.')}" if status.reason else ""
    if exchange.stopping.is_set() or status.state == "stopping":
        raise ShuttingDown(f"the node is stopping{because}. {_ELSEWHERE}", state="stopping", **told)
    if status.state == "read-only" and not status.serves:
        raise NotAMember(f"the node is no member of its cluster{because}. Nothing was written.", state="no-member", **told)
    if status.state == "read-only":
        raise ReadOnly(f"the node only reads{because}. {_ELSEWHERE}", state="read-only", **told)
    if status.state == "refilling":
        raise CatchingUp(f"the node is catching up{because}. {_ELSEWHERE}", state="refilling", **told)
    return await exchange.answer(Ready("ready", status.node, status.reason, status.register, told["conditions"]))


async def metrics(exchange: Exchange) -> web.Response:
    """The metrics in Prometheus's text format, or in OpenMetrics if the caller takes that; each scrape asks the node."""
    is_open = _OPEN in exchange.request.headers.get("Accept", "")
    text = exchange.request.app[METRICS].scrape(
        await node_status(exchange), await _view(exchange), await exchange.call(ReadConditions()), is_open=is_open
    )
    return web.Response(
        body=text, headers={"Content-Type": openmetrics.CONTENT_TYPE_LATEST if is_open else CONTENT_TYPE_LATEST}
    )


async def figures(exchange: Exchange) -> web.Response:
    """The node's latencies and outcomes; who may not read the node's status may not read these."""
    await node_status(exchange)
    return await exchange.answer(exchange.request.app[METRICS].figures())


async def cluster(exchange: Exchange) -> web.Response:
    """The members as this node sees them, and more of this node."""
    view, status = show(exchange, await _view(exchange)), show(exchange, await node_status(exchange))
    return await exchange.answer(ClusterDocument(**structs.asdict(view), node=status))


async def _view(exchange: Exchange) -> ClusterView:
    return await exchange.call(Cluster())


async def node_status(exchange: Exchange) -> NodeStatus:
    """Ask the session for the node's status."""
    return await exchange.call(Status())


def _names(status: NodeStatus) -> list[str]:
    return list(dict.fromkeys(each.name for each in status.conditions))


class AccessView(Struct):
    """The caller's token, as the node has verified it."""

    open: bool  # Whether the node asks for no token. All other fields are empty then.
    author: str = ""  # The name that the caller's writes may carry.
    id: str = ""  # By which the token is revoked.
    issuer: str = ""  # By whom it was made; "shoal" by `shoal token create`.
    ends: int = 0  # When it expires, in seconds since 1970.
    grants: list[str] = []  # As `shoal token create --allow` takes them.


async def access(exchange: Exchange) -> web.Response:
    """The claims of the caller's token."""
    return await exchange.answer(_view_of_caller(exchange))


async def keep_cookie(exchange: Exchange) -> web.Response:
    """Keep the token of the header as a cookie.

    Raises:
        Unsupported: this node asks for no token, or the header has none.
    """
    bearer, token = exchange.bearer, credentials.presented(exchange.request)
    if bearer is None or token is None:
        raise Unsupported("this node asks for no token, so that a cookie would hold none. Nothing was written.")
    response = await exchange.answer(_view_of_caller(exchange))
    credentials.keep(response, token, lasts_s=bearer.lasts_s)
    return response


async def drop_cookie(exchange: Exchange) -> web.Response:
    """Let the browser forget the cookie."""
    response = await exchange.answer(AccessView(open=exchange.bearer is None))
    credentials.drop(response)
    return response


def _view_of_caller(exchange: Exchange) -> AccessView:
    bearer = exchange.bearer
    if bearer is None:
        return AccessView(open=True)
    told = bearer.token.told()
    return AccessView(False, told["author"], told["id"], told["issuer"], told["ends"], told["grants"])
