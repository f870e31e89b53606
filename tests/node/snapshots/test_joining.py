"""A node whose disk was lost joins by snapshots, whatever interrupts it: real nodes on simulated machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from shoal.cluster.messages import SnapshotPiece, SnapshotRequest
from shoal.config import Config
from shoal.errors import ShoalError
from shoal.node.snapshots import switching
from shoal.node.snapshots.exchange import SnapshotExchange
from shoal.node.snapshots.receiving import SnapshotReceiver
from shoal.node.verification.verify import verify
from shoal.protocol import requests
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.plan import Plan
from simulation.world.cluster import SimulatedCluster
from simulation.world.disk import SimulatedDisk
from simulation.world.host import SimulatedNode
from simulation.world.incarnation import Fenced
from tests.simulation.scene import Scene, on

SPACE = "{crew}"
SETTINGS: dict[str, int | float | str] = {
    "snapshot_operations_min": 1,
    "snapshot_piece_bytes": 700,
    "snapshot_memory_bytes": 1400,
    "snapshot_idle_s": 2.0,
    "snapshots_open_max": 2,
}
PLAN = Plan(seed=3, settings=SETTINGS)
_FULL = (
    requests.Append(SPACE, "one", b"\xa1x", "event"),
    requests.Add(SPACE, "tokens", 5),
    requests.Add("elsewhere", "tokens", 7),
    requests.MoveThread(SPACE, "one", "paused", "later"),
)


async def fill(scene: Scene) -> None:
    session = scene.client("n2")
    for nth in range(4):
        await session.call(requests.Save(SPACE, "one", {"notes": b"\xa9aaaaaaaaa", "n": bytes([nth])}), durability="all")
    for request in _FULL:
        await session.call(request, durability="all")
    await session.call(requests.DeleteCounter("elsewhere", "tokens"), durability="all")
    await session.call(requests.Add("elsewhere", "tokens", 1), durability="all")


def rows_of(host: SimulatedNode) -> dict[bytes, bytes]:
    """What the disk holds, but for the store's own notes and what each node makes for itself."""
    tables = (*keys.PARTITION_TABLES, keys.CATALOG, keys.STATUS, keys.STAGED)
    return {key: value for key, value in host.disk.rows().items() if key[:1] in tables and key[:1] != keys.GARBAGE}


async def lose_disk(scene: Scene, name: str = "n1") -> SimulatedNode:
    host = scene.cluster.hosts[name]
    host.kill()
    await host.gone()
    host.disk.wipe()
    with suppress(Fenced):  # It may be killed while it starts.
        host.start()
    return host


async def agreed(cluster: SimulatedCluster) -> None:
    """Every node is up, holds the same rows, and counts."""
    for host in cluster.hosts.values():
        if not host.up:
            await host.gone()
            host.start()
    await cluster.converged(60.0)
    async with asyncio.timeout(60.0):
        while any(host.peer.quorum.is_learner for host in cluster.hosts.values()):
            await asyncio.sleep(0.05)
    with suppress(TimeoutError):  # Each sweeps what was deleted in its own time.
        async with asyncio.timeout(60.0):
            while any(rows_of(host) != rows_of(cluster.hosts["n1"]) for host in cluster.hosts.values()):
                await asyncio.sleep(0.05)
    one, *others = (rows_of(host) for host in cluster.hosts.values())
    for other in others:
        assert other == one
    for host in cluster.hosts.values():
        assert verify(MemoryStorage(host.disk.rows()), config=Config()).sound


def taken(host: SimulatedNode) -> int:
    return host.peer.quorum.view().snapshots_taken


def test_a_node_that_lost_its_disk_is_refilled_by_snapshots() -> None:
    async def story(scene: Scene) -> None:
        await fill(scene)
        host = await lose_disk(scene)
        await agreed(scene.cluster)
        assert taken(host) == 2
        assert host.peer.quorum.view().snapshot_bytes > 2000
        session = scene.client("n1")
        value = await session.call(requests.ReadCounter(SPACE, "tokens"))
        assert isinstance(value, requests.CounterValue)
        assert value.value == 5

    on(story, PLAN)


@pytest.mark.answers("snapshots-hold-up-clients")
def test_a_piece_that_a_peer_had_no_room_for_is_asked_for_again() -> None:
    async def story(scene: Scene) -> None:
        await fill(scene)
        await scene.client("n2").call(requests.Assign(SPACE, "goal", b"\xc6\x00\x01\x11\x70" + bytes(70_000)), durability="all")
        host = await lose_disk(scene)
        async with asyncio.timeout(10.0):
            while not host.up or taken(host) < 2:
                await asyncio.sleep(0.05)
        await agreed(scene.cluster)

    # The large row leaves no room for the pieces after it, which the node asked for at once.
    on(
        story,
        Plan(seed=3, settings=SETTINGS | {"snapshot_piece_bytes": 200, "snapshot_idle_s": 1.0, "peer_send_bytes_max": 16384}),
    )


class Moments:
    """Counts the moments of a join at one node, and kills a node at one of them."""

    def __init__(self, node: str, *, at: int = -1, keep: int | None = 0, victim: str = "") -> None:
        self.count = 0
        self.killed = False
        self.armed = False
        self._node = node
        self._at = at
        self._keep = keep
        self._victim = victim or node
        self.cluster: SimulatedCluster | None = None

    def passed(self, node: str) -> None:
        if not self.armed or node != self._node or self.cluster is None:
            return
        self.count += 1
        if self.count - 1 == self._at:
            self.killed = True
            self.cluster.hosts[self._victim].kill(self._keep)
            if self._victim == node:
                raise Fenced("killed in the middle of a join")


def _joined(moments: Moments) -> None:
    """Lose the disk of n1, and let it join; `moments` may kill a node meanwhile."""

    async def story(scene: Scene) -> None:
        await fill(scene)
        moments.cluster = scene.cluster
        moments.armed = True
        await lose_disk(scene)
        for _ in range(400):
            await asyncio.sleep(0.01)
            hosts = scene.cluster.hosts.values()
            if moments.killed or (all(host.up for host in hosts) and taken(scene.cluster.hosts["n1"]) == 2):
                break
        await asyncio.sleep(0.05)
        moments.armed = False
        await agreed(scene.cluster)

    on(story, PLAN)


async def be_away(scene: Scene) -> SimulatedNode:
    """Start n1 again: it lacks more than half of a partition, in which it alone holds what it acknowledged last."""
    await fill(scene)
    cluster, host = scene.cluster, scene.cluster.hosts["n1"]
    with cluster.network.cut(["n1"], ["n2", "n3"], both=True):
        await scene.client("n1").call(requests.Append(SPACE, "one", b"\xa1y", key="of n1 alone"))
    host.kill()
    await host.gone()
    session = scene.client("n2")
    for nth in range(12):
        await session.call(requests.Add(SPACE, "tokens", nth), durability="quorum")
    host.start()
    return host


def _returned(moments: Moments) -> None:
    """Let n1 return; `moments` may kill a node meanwhile."""

    async def story(scene: Scene) -> None:
        moments.cluster = scene.cluster
        host = await be_away(scene)
        moments.armed = True
        async with asyncio.timeout(30.0):
            while not moments.killed and not (host.up and taken(host)):
                await asyncio.sleep(0.01)
        moments.armed = False
        await agreed(scene.cluster)
        for name in ("n1", "n3"):
            value = await scene.client(name).call(requests.ReadCounter(SPACE, "tokens"))
            assert isinstance(value, requests.CounterValue)
            assert value.value == 5 + sum(range(12))
            page = await scene.client(name).call(requests.ReadJournal(SPACE, "one"))
            assert isinstance(page, requests.Events)
            assert "of n1 alone" in [event.key for event in page.events]

    on(story, PLAN)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Moments]]:
    """Lets moments count the messages of snapshots, or the writes, of a node."""
    current: list[Moments] = []
    heard, write = SnapshotExchange.heard, SimulatedDisk.write
    what = ""

    async def counted(self: SnapshotExchange, peer: bytes, message: SnapshotRequest | SnapshotPiece) -> None:
        if what == "messages":
            for moments in current:
                moments.passed(self._database._context.config.advertise.partition(":")[0])
        await heard(self, peer, message)

    def written(self: SimulatedDisk, rows: Any, ranges: Any = ()) -> int:
        number = write(self, rows, ranges)
        if what == "writes":
            for moments in current:
                moments.passed(self._life.name)
        return number

    def choose(chosen: str) -> list[Moments]:
        nonlocal what
        what = chosen
        return current

    monkeypatch.setattr(SnapshotExchange, "heard", counted)
    monkeypatch.setattr(SimulatedDisk, "write", written)
    return choose


EVERY = [5, pytest.param(1, marks=pytest.mark.thorough)]
"""Every fifth moment; `make thorough` takes each."""


@pytest.mark.answers("crash-leaves-half-of-a-snapshot")
@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("keep", [0, None], ids=["power-cut", "kill"])
@pytest.mark.parametrize(
    ("what", "node", "victim"),
    [("messages", "n1", "n1"), ("writes", "n1", "n1"), ("messages", "n2", "n2")],
    ids=["each message of the joining node", "each write of it", "each request at the sender"],
)
def test_a_kill_at_any_moment_of_a_join_loses_nothing(
    watched: Callable[[str], list[Moments]], what: str, node: str, victim: str, keep: int | None, every: int
) -> None:
    current = watched(what)
    current.append(sound := Moments(node))
    _joined(sound)
    assert sound.count > 5, "there is something to interrupt"
    for at in range(0, sound.count, every):
        current[:] = [moments := Moments(node, at=at, keep=keep, victim=victim)]
        _joined(moments)


@pytest.mark.answers("crash-leaves-half-of-a-snapshot")
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("what", ["messages", "writes"])
def test_a_kill_of_an_owner_that_catches_up_by_snapshot_loses_nothing(
    watched: Callable[[str], list[Moments]], what: str, every: int
) -> None:
    current = watched(what)
    current.append(sound := Moments("n1"))
    _returned(sound)
    assert sound.count > 1, "there is something to interrupt"
    for at in range(0, sound.count, every):
        current[:] = [moments := Moments("n1", at=at)]
        _returned(moments)


def _cut(piece: SnapshotPiece) -> SnapshotPiece:
    return msgspec.structs.replace(piece, rows=piece.rows[: len(piece.rows) // 2])


def _altered(piece: SnapshotPiece) -> SnapshotPiece:
    return msgspec.structs.replace(piece, rows=piece.rows[:-1] + bytes([piece.rows[-1] ^ 1]))


def _misnamed(piece: SnapshotPiece) -> SnapshotPiece:
    return msgspec.structs.replace(piece, digest=bytes(32))


@pytest.fixture
def failed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions whose snapshots could not be used; nothing of these was kept."""
    fail = SnapshotReceiver._fail
    found: list[int] = []

    def failing(self: SnapshotReceiver, peer: bytes, number: int, error: ShoalError) -> None:
        rows = self._storage.scan(keys.OBJECT + number.to_bytes(2, "big"), keys.OBJECT + (number + 1).to_bytes(2, "big"))
        assert not list(rows), "nothing of it is in the partition"
        found.append(number)
        fail(self, peer, number, error)

    monkeypatch.setattr(SnapshotReceiver, "_fail", failing)
    return found


async def recovered(scene: Scene) -> None:
    """A disk is lost, and the node gets both of its partitions by snapshot."""
    await fill(scene)
    host = await lose_disk(scene)
    await agreed(scene.cluster)
    assert taken(host) == 2


@pytest.mark.answers("altered-snapshot-is-used")
@pytest.mark.parametrize("memory_bytes", [1, 1_000_000], ids=["staged", "held"])
@pytest.mark.parametrize(
    ("spoil", "which"), [(_cut, "first"), (_cut, "last"), (_altered, "first"), (_altered, "last"), (_misnamed, "last")]
)
def test_a_spoiled_piece_changes_nothing_and_its_snapshot_is_asked_for_anew(
    monkeypatch: pytest.MonkeyPatch,
    failed: list[int],
    spoil: Callable[[SnapshotPiece], SnapshotPiece],
    which: str,
    memory_bytes: int,
) -> None:
    received = SnapshotReceiver.received
    spoiled: list[int] = []

    async def spoil_one(self: SnapshotReceiver, peer: bytes, answer: SnapshotPiece) -> None:
        is_it = (answer.piece == 0) if which == "first" else bool(answer.digest and answer.piece)
        if is_it and answer.rows and not spoiled:
            spoiled.append(answer.partition)
            answer = spoil(answer)
        await received(self, peer, answer)

    monkeypatch.setattr(SnapshotReceiver, "received", spoil_one)

    async def story(scene: Scene) -> None:
        await recovered(scene)
        assert failed == spoiled != []

    on(story, Plan(seed=3, settings=SETTINGS | {"snapshot_memory_bytes": memory_bytes}))


@pytest.mark.parametrize("memory_bytes", [1, 1_000_000], ids=["staged", "held"])
def test_a_snapshot_whose_sender_was_removed_meanwhile_is_not_used(
    monkeypatch: pytest.MonkeyPatch, failed: list[int], memory_bytes: int
) -> None:
    received, fail = SnapshotReceiver.received, SnapshotReceiver._fail
    removed: list[int] = []

    async def remove_its_sender(self: SnapshotReceiver, peer: bytes, answer: SnapshotPiece) -> None:
        if answer.digest and not removed:
            removed.append(answer.partition)
            self._others = self._others._replace(is_removed=lambda node: node == peer)
        await received(self, peer, answer)

    def back_again(self: SnapshotReceiver, peer: bytes, number: int, error: ShoalError) -> None:
        assert "no member any more" in error.message
        self._others = self._others._replace(is_removed=lambda node: False)
        fail(self, peer, number, error)

    monkeypatch.setattr(SnapshotReceiver, "received", remove_its_sender)
    monkeypatch.setattr(SnapshotReceiver, "_fail", back_again)

    async def story(scene: Scene) -> None:
        await recovered(scene)
        assert failed == removed != []

    on(story, Plan(seed=3, settings=SETTINGS | {"snapshot_memory_bytes": memory_bytes}))


@pytest.mark.answers("crash-leaves-half-of-a-snapshot")
def test_without_a_marker_a_kill_in_the_middle_of_a_switch_is_noticed(
    monkeypatch: pytest.MonkeyPatch, watched: Callable[[str], list[Moments]]
) -> None:
    """The check of kills is not blind: it finds a planted bug."""
    monkeypatch.setattr(switching, "marker", lambda number, pieces: {})
    current = watched("writes")
    current.append(sound := Moments("n1"))
    _joined(sound)

    def is_found(at: int) -> bool:
        current[:] = [Moments("n1", at=at, keep=None)]
        try:
            _joined(current[0])
        except (AssertionError, TimeoutError):
            return True
        return False

    assert any(is_found(at) for at in range(sound.count))
