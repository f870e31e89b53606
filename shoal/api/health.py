"""Liveness, readiness, the state of the cluster, and metrics for Prometheus; and the identity of the caller.

Laws:
- The token that a browser's cookie holds came in a header, so that no URL and no page's script keeps it.
- Labels are bounded: kinds and outcomes are a fixed set, the first `SPACES_LABELLED_MAX` spaces have labels
  of their own, and all other spaces share one.
- Requests are counted in one place: `Metered` wraps each session that the API opens.
- Nothing is global: each node has its own registry.
- Names follow Prometheus's conventions: counters end in `_total`, units are seconds and bytes.
- Slow requests are named by their ids, which are short: an exemplar that is too long would end the scrape.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal

from aiohttp import web
from msgspec import Struct, structs
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics

from shoal.api.derived import show, view_of
from shoal.api.http import origins as credentials
from shoal.api.http.exchange import Exchange
from shoal.errors import CatchingUp, NotAMember, ReadOnly, ShoalError, ShuttingDown, Unsupported
from shoal.logs import events
from shoal.logs.lines import log, request_id
from shoal.protocol.requests import (
    AnyReply,
    AnyRequest,
    Cluster,
    ClusterView,
    ConditionsView,
    Durability,
    NodeStatus,
    Push,
    R,
    ReadConditions,
    Request,
    Status,
    Subscription,
    space_of,
)
from shoal.protocol.session import Prompt, Session, Told, Wrapper
from shoal.protocol.tracing import Stages, stages
from shoal.workflows import measured
from shoal.workflows.measured import Backlog as Backlog

SPACES_LABELLED_MAX = 100
OTHER_SPACES = "(other)"
EXEMPLAR_S = 0.064  # A request that took as long is named by its id in its bucket.
LATENESS_INTERVAL_S = 0.25  # Short enough to see a stall of a second, too rare to cost anything.
_EXEMPLAR_CHARS_MAX = 100  # OpenMetrics has 128 for names and values of an exemplar together.
_SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.5, 1, 2, 4, 8, 16)


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
            "shoal_request_duration_seconds", "Time to answer, by kind", ["kind"], registry=registry, buckets=_SECONDS
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

    def count(self, request: AnyRequest, outcome: str, seconds: float, traced: Stages | None = None) -> None:
        """Count one answered request. `outcome` is "ok" or an error's code; `seconds` is how long it took; `traced`: its span,
        if it has one.
        """
        answered, duration = self._kind(type(request))
        duration.observe(seconds, _exemplar(traced) if seconds >= EXEMPLAR_S else None)
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

    def scrape(self, status: NodeStatus, cluster: ClusterView, conditions: ConditionsView, *, is_open: bool = False) -> bytes:
        """The text that Prometheus reads, or, if `is_open`, that of OpenMetrics, which has exemplars."""
        backlog = self._backlog() if self._backlog is not None else Backlog()
        write = openmetrics.generate_latest if is_open else generate_latest
        return write(_Scraped(measured.families(status, cluster, conditions, backlog), self.registry))

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


def _exemplar(traced: Stages | None) -> dict[str, str] | None:
    """The request under way: by its trace, else by its id, as the log has it. Both are too long for one exemplar."""
    if traced is not None:
        return {"trace_id": traced.name}
    id = request_id()
    return {"request": id} if id and len(id) <= _EXEMPLAR_CHARS_MAX else None


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


_NO_REFUSAL = frozenset({"ok", "cancelled", "bug"})
"""Outcomes that are no error told to a caller; a bug has a line of its own."""


class Metered(Wrapper):
    """A `Session` that counts the answers of another one, and has a line at level debug for each that is an error.

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
        begun, outcome, traced = self._monotonic(), "bug", stages.get()
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
            self._count(request, outcome, begun, traced)

    def _count(self, request: AnyRequest, outcome: str, begun: float, traced: Stages | None) -> None:
        self._metrics.count(request, outcome, self._monotonic() - begun, traced)
        if outcome not in _NO_REFUSAL:
            log(events.REQUEST_REFUSED, kind=_tag(type(request)), code=outcome)

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
        begun, traced = self._monotonic(), stages.get()

        def answered(answer: AnyReply | ShoalError) -> None:
            outcome = answer.code if isinstance(answer, ShoalError) else "ok"
            self._count(request, outcome, begun, traced)
            told(answer)

        try:
            return self._prompt.begin(request, answered, key=key, durability=durability, stale=stale)
        except BaseException as error:
            outcome = error.code if isinstance(error, ShoalError) else "bug"
            self._count(request, outcome, begun, traced)
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
