"""Liveness, readiness, metrics and the state of the cluster, for orchestrators and people."""

from __future__ import annotations

from typing import Literal

from aiohttp import web
from msgspec import Struct, structs
from prometheus_client import CONTENT_TYPE_LATEST

from shoal.api.http.exchange import Exchange
from shoal.api.metrics import Metrics
from shoal.errors import CatchingUp, NotAMember, ReadOnly, ShuttingDown
from shoal.protocol.requests import ChangeMembers, Cluster, ClusterView, MembersView, NodeStatus, ReadMembers, Status

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
    tls_ends_ms: int
    tls_trouble: str
    master_key: str
    data_keys: int
    keys_wait_for: list[str]
    register: str
    serves: bool
    quotas_reached: list[str]
    quota_refusals: int
    tokens_end_ms: int
    tokens_ending: list[str]
    tokens_refused: dict[str, int]
    cluster_keys: list[str] | None
    cluster_key_file: bool
    cluster_key_trouble: str


class MembersDocument(Struct):
    """Who the members are, as the node that answers knows."""

    epoch: int  # It grows by one with each step of a change; 0: the configured list.
    change: str  # The change that is under way, as a command; else empty.
    step: Literal["", "prepared", "joint"]  # How far it is. While it is joint, a quorum needs majorities of both lists.
    members: list[SeatView]
    removed: list[RemovedView]  # Directories that are refused, the last first.
    waiting: list[str]  # Nodes that asked to be linked and are not added.
    trouble: str  # Why the change does not go on, if that is known.
    lost: list[LostView]  # Directories of members whose place others took, and that no command has forgotten yet.


class LostView(Struct):
    """A directory that lost its place."""

    name: str
    node: str


class SeatView(Struct):
    """A node that takes part."""

    name: str
    node: str
    part: Literal["member", "joining", "leaving"]  # Its part in this epoch.
    state: Literal["self", "linked", "unreachable"]
    progress: str  # How far it is with the change that is under way.


class RemovedView(Struct):
    """A directory that is refused."""

    name: str
    node: str
    epoch: int  # The first without it.
    handed_over: bool  # Whether the others hold all that it held.


class MembersBody(Struct, forbid_unknown_fields=True):
    """A change of the members."""

    change: Literal["add", "drain", "replace", "forget", "cancel"]  # `cancel` takes back the one that is under way.
    joins: str = ""  # The address of the node that joins: for `add` and `replace`.
    leaves: str = ""  # That of the member that leaves: for `drain`, `replace` and `forget`; or the id of a lost directory.


class MemberView(Struct):
    """An owner, as the node that answers sees it; `requests.Member` describes each field."""

    name: str
    node: str
    state: Literal["self", "linked", "unreachable"]
    operations: int | None  # These four are null until it has told what it holds.
    lacks: int | None
    ahead: int | None
    lag_ms: int | None
    waiting_bytes: int
    dropped: int
    linked_ms: int
    reason: str
    vector: dict[str, int]
    origins: int
    clock_ms: int | None
    part: Literal["member", "joining", "leaving", "removed"]  # In the present epoch of the members.
    told: bool  # Whether it has told what it holds, since it was linked last.


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
    epoch: int  # Of the list of members; 0: the configured list.
    change: str  # The change of the members that is under way, as a command; else empty.
    snapshots_due: int  # Partitions that this node is about to replace by peers' snapshots.
    snapshots_taken: int  # Those that it has replaced since it started.
    snapshot_bytes: int  # The bytes of snapshots that have arrived since then.
    unshown: int  # How often a peer said that its log decides about rows, and did not show it, since the node started.
    members: list[MemberView]  # The node that answers first.
    node: NodeView  # More about the node that answers.


async def healthz(exchange: Exchange) -> web.Response:
    """200 as long as the process answers. It does not ask the node, so that a full disk causes no restart."""
    return exchange.answer(Alive())


async def readyz(exchange: Exchange) -> web.Response:
    """200 only when the node takes reads and writes.

    Raises:
        ShuttingDown, ReadOnly, CatchingUp, NotAMember: with the reason.
    """
    status = await node_status(exchange)
    if exchange.stopping.is_set() or status.state == "stopping":
        raise ShuttingDown(f"the node is stopping{_because(status)}. Nothing was written. Ask another node.", state="stopping")
    if status.state == "read-only" and not status.serves:
        raise NotAMember(f"the node is no member of its cluster{_because(status)}. Nothing was written.", state="no-member")
    if status.state == "read-only":
        raise ReadOnly(f"the node only reads{_because(status)}. Nothing was written. Ask another node.", state="read-only")
    if status.state == "refilling":
        raise CatchingUp(
            f"the node is catching up{_because(status)}. Nothing was written. Ask another node.", state="refilling"
        )
    return exchange.answer(Ready("ready", status.node, status.reason, status.register))


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
        epoch=view.epoch,
        change=view.change,
        snapshots_due=view.snapshots_due,
        snapshots_taken=view.snapshots_taken,
        snapshot_bytes=view.snapshot_bytes,
        unshown=view.unshown,
        members=[MemberView(**member.shown()) for member in view.members],
        node=NodeView(**structs.asdict(status)),
    )
    return exchange.answer(document)


async def members(exchange: Exchange) -> web.Response:
    """Who the members are, and how far a change of them is."""
    return exchange.answer(_document(await exchange.call(ReadMembers())))


async def change_members(exchange: Exchange) -> web.Response:
    """Begin a change of the members; it goes on by itself."""
    body = await exchange.body(MembersBody)
    return exchange.answer(_document(await exchange.call(ChangeMembers(body.change, body.joins, body.leaves))))


def _document(view: MembersView) -> MembersDocument:
    return MembersDocument(
        epoch=view.epoch,
        change=view.change,
        step=view.step,
        members=[SeatView(**structs.asdict(seat)) for seat in view.members],
        removed=[RemovedView(**structs.asdict(node)) for node in view.removed],
        waiting=view.waiting,
        trouble=view.trouble,
        lost=[LostView(**structs.asdict(directory)) for directory in view.lost],
    )


async def _view(exchange: Exchange) -> ClusterView:
    return await exchange.call(Cluster())


async def node_status(exchange: Exchange) -> NodeStatus:
    """Ask the session for the node's status."""
    return await exchange.call(Status())


def _because(status: NodeStatus) -> str:
    return f": {status.reason.rstrip('.')}" if status.reason else ""
