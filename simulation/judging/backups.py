"""What a backup owes, while the nodes of a plan ship to a bucket that fails, and once all is healed.

Laws, all of them 42:
- A manifest names nothing that is not in the bucket, and what is named stays there.
- A node that says that it is current, or how far the bucket covers it, says what is so: what its disk held durably by then is
  in the manifests. So what the bucket lacks is told.
- Healed, every node comes to be current within a bound, and a restore gives the rows that the nodes hold, in a directory that
  is none of them; one to a moment gives the operations up to it and no others, if it is kept.
- Whenever packs of old moments went, a restore to the first moment that is still kept gives what the bucket has up to it. It is
  tried of the bucket as it was then: once nobody writes any more, later bases hold all that such a restore needs.
- What nobody needs goes, where a backup is kept for a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from shoal.backup.bucket import Bucket, read
from shoal.backup.format import MANIFESTS, Catalogue, incomplete, names_of, read_manifest
from shoal.cluster import operation
from shoal.cluster.operation import LogEntry
from shoal.config import Config
from shoal.crdt.dot import COUNTER_BITS, HORIZON, Origin, wall_ms_of
from shoal.crdt.rows import successor
from shoal.errors import MomentMissing, ShoalError
from shoal.kinds.retention.serving.keeper import RESTORED
from shoal.node.backup import shipper as _shipper  # Loaded, so that a plan can alter its bounds.
from shoal.node.backup.folding import folded
from shoal.node.backup.restoring import earliest
from shoal.node.backup.restoring import plan as planned
from shoal.node.node import Node
from shoal.node.verification.verify import verify
from shoal.protocol.requests import BackupView
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.judging import packs
from simulation.judging.violation import Violation
from simulation.plan import ClockDrift, ClockJump, Plan, Ship
from simulation.world.bucket import REFUSALS, SimulatedBucket
from simulation.world.disk import is_truncated, passes, tips_on
from simulation.world.environment import START_MS, SimulatedEnvironment

if TYPE_CHECKING:
    from simulation.world.cluster import SimulatedCluster
    from simulation.world.host import SimulatedNode

BACKED_UP = "42"
CURRENT_S_MAX = 60.0
"""Healed, every node is current within this virtual time."""
SWEPT_S_MAX = 20.0
"""A restored directory has swept what was erased within this virtual time."""
MOMENTS = 3
"""To so many a restore is tried."""
LOOK_S = 0.5
assert _shipper
_WIDE = 4  # Whatever is older than so many times what is kept is gone.

_OF_A_NODE = (keys.META, keys.SNAPSHOT, keys.INDEX, keys.STAGED, keys.VECTOR, keys.GARBAGE)
_OF_LOGS = (keys.LOG, keys.BASE, keys.RETIRED, keys.KEY)
_APART = (*_OF_A_NODE, *_OF_LOGS)
"""Tables that differ between a node and a restore that hold the same operations."""

_Place = tuple[int, Origin]


def ships(plan: Plan) -> bool:
    """Whether the cluster of a plan is backed up."""
    return any(isinstance(fault, Ship) for fault in plan.faults)


def vectors_of(host: SimulatedNode) -> dict[_Place, int]:
    """What the disk of a node holds durably, of origins that are not retired."""
    return _sequences(host.disk.copy())


class BackupWatch:
    """Sees what is put into the bucket, and holds against it what nodes say. `violated` is told of what is not so."""

    def __init__(self, cluster: SimulatedCluster, plan: Plan, violated: Callable[[str, str], None]) -> None:
        self._cluster = cluster
        self._violated = violated
        self.catalogue = Catalogue()
        self.times: dict[_Place, dict[int, int]] = {}
        """Of all operations that any disk ever held: the time, by place and sequence."""
        self._held: dict[tuple[str, int], list[tuple[int, dict[_Place, int]]]] = {}  # By life: at which time of its node what.
        self._odd = {fault.node for fault in plan.faults if isinstance(fault, ClockJump | ClockDrift)}
        self._begins_ms: int | None = None  # The first moment that the backup ever had,
        self._first: tuple[int, dict[str, bytes]] | None = None  # and one that became the first that is kept; with the bucket.
        cluster.bucket.kept.append(self._kept)
        for host in cluster.hosts.values():
            host.disk.watchers.append(self)

    # ── the bucket ────────────────────────────────────────────────────────────

    def _kept(self, name: str, content: bytes) -> None:
        for number in names_of([name]) if name.startswith(MANIFESTS) else ():
            since = self.catalogue.since
            self.catalogue.take(read_manifest(content, number), content)
            if not since:
                self._begins_ms = earliest(self.catalogue)
            if self.catalogue.since > since:
                self._first = wall_ms_of(self.catalogue.since), dict(self._cluster.bucket.objects)
            for lacking in lacking_of(self.catalogue, self._cluster.bucket.objects):
                self._violated(BACKED_UP, f"manifest {number} names {lacking}, which is not in the bucket")

    # ── disks ─────────────────────────────────────────────────────────────────

    def mounted(self, storage: MemoryStorage, /) -> None:
        """It was seen as it was written."""

    def replaced(self) -> None:
        """It was seen as it was written."""

    def wrote(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]], /) -> None:
        for key, value in rows.items():
            if key[:1] == keys.LOG and value is not None:
                partition, dot = keys.split_log(key)
                self.times.setdefault((partition, dot.origin), {})[dot.sequence] = operation.decode(
                    LogEntry.unpack(value).packed
                ).hlc

    def synced(self) -> None:
        """It is looked at now and then."""

    # ── what nodes say ────────────────────────────────────────────────────────

    async def keep_watch(self) -> None:
        while True:
            for host in self._cluster.hosts.values():
                if host.up and not host.stopping and host.name not in self._odd:
                    self.look(host)
            await self.restore_first()
            await asyncio.sleep(LOOK_S)

    def look(self, host: SimulatedNode) -> None:
        """Hold what a node says of the backup now against what the manifests name."""
        view = host.node.backups.view()
        self.judge(host.name, view, self._looked(host, view.covered_ms), vectors_of(host))

    def _looked(self, host: SimulatedNode, covered_ms: int) -> Mapping[_Place, int]:
        """What the node held at the last look that is no later than the moment."""
        looks = self._held.setdefault((host.name, host.life.number), [])
        looks.append((host.clock.now_ms(), vectors_of(host)))
        return next((held for at_ms, held in reversed(looks) if at_ms <= covered_ms), {})

    async def restore_first(self) -> None:
        """Restore the moment that became the first that is kept since the last call, of the bucket as it was then."""
        if self._first is None:
            return
        (moment_ms, objects), self._first = self._first, None
        copy = SimulatedBucket()
        copy.objects, copy.modified = objects, dict.fromkeys(objects, 0)
        bucket = Bucket(copy, now=asyncio.get_running_loop().time)
        try:
            catalogue = await read(bucket)
            storage = await _restored(bucket, moment_ms)
        except MomentMissing as error:
            if moment_ms >= (self._begins_ms or 0) and incomplete(catalogue, _limit(moment_ms) - 1) is None:
                self._violated(BACKED_UP, f"the first moment that is kept cannot be restored: {error.message}")
        except ShoalError as error:
            self._violated(BACKED_UP, f"the first moment that is kept, {moment_ms}, cannot be restored: {error.message}")
        else:
            shipped = {place: sequence for place in self.times if (sequence := _shipped(catalogue, place))}
            if told := _cut_wrongly(_sequences_made(storage), self, shipped, _limit(moment_ms)):
                self._violated(BACKED_UP, f"a restore to {moment_ms}, the first moment that is kept, {told}")

    def judge(self, name: str, view: BackupView, covered: Mapping[_Place, int], held: Mapping[_Place, int]) -> None:
        """`covered`: what the node held at the moment of which it says that the bucket has it; `held`: what it holds now."""
        if left := self.lacking(covered):
            self._violated(
                BACKED_UP, f"{name} says that the bucket has what it held at {view.covered_ms}; {left} are not there"
            )
        if view.state == "current" and (left := self.lacking(held)):
            self._violated(BACKED_UP, f"{name} says that its backup is current, and {left} are not in the bucket")

    def lacking(self, held: Mapping[_Place, int]) -> int:
        """How many operations of these the manifests do not name."""
        left = 0
        for (partition, origin), sequence in held.items():
            known = self.catalogue.vector(partition)
            left += max(0, sequence - known[origin]) if origin != HORIZON and not known[HORIZON] else 0
        return left


def _true_ms() -> int:
    """The time that a right clock shows."""
    return START_MS + int(asyncio.get_running_loop().time() * 1000)


def lacking_of(catalogue: Catalogue, objects: Mapping[str, bytes]) -> list[str]:
    """What manifests name and the bucket does not have."""
    return [name for name in (*catalogue.segments, *catalogue.packs) if name not in objects]


# ── once it is healed ─────────────────────────────────────────────────────────


class Judged:
    """The end of a backup: what is wrong with it, and what was restored."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.restored: list[MemoryStorage] = []

    @property
    def violations(self) -> list[Violation]:
        return [Violation(BACKED_UP, text) for text in self.broken]


async def judge_backup(cluster: SimulatedCluster, plan: Plan, watch: BackupWatch) -> Judged:
    """Everything that is broken in a bucket that works again. All nodes are up, and hold the same."""
    judged = Judged()
    keep_s = min((fault.keep_s for fault in plan.faults if isinstance(fault, Ship)), default=0.0)
    ends_at = asyncio.get_running_loop().time() + CURRENT_S_MAX
    await cluster.declare_backup(keep_s, lambda: asyncio.get_running_loop().time() >= ends_at)
    if keep_s:
        await asyncio.sleep(_WIDE * keep_s)  # What is not kept has had time to go.
    if behind := await _not_current(cluster, ends_at + _WIDE * keep_s):
        judged.broken = [f"healed, {text}" for text in behind]
        return judged
    for host in cluster.hosts.values():
        watch.look(host)
    await watch.restore_first()
    bucket = Bucket(cluster.bucket, now=asyncio.get_running_loop().time)
    try:
        catalogue = await read(bucket)
    except ShoalError as error:
        judged.broken.append(f"healed, the backup cannot be read: {error.message}")
        return judged
    lacking = lacking_of(catalogue, cluster.bucket.objects)
    judged.broken += [f"healed, {name} is named, and is not in the bucket" for name in lacking]
    await _restores_all(cluster, bucket, judged)
    await _restores_moments(cluster, plan, watch, bucket, judged, keep_s)
    if keep_s:
        now_ms = _true_ms()
        first_ms = min((pack.first_ms for pack in catalogue.segments.values()), default=now_ms)
        if first_ms < now_ms - 2 * _WIDE * keep_s * 1000:
            judged.broken.append(f"healed, it keeps operations of {now_ms - first_ms} ms ago, and {keep_s:g} s are kept")
    return judged


async def _not_current(cluster: SimulatedCluster, ends_at: float) -> list[str]:
    """The nodes that do not come to say that they are current."""
    while True:
        views = {name: host.node.backups.view() for name, host in cluster.hosts.items() if host.up}
        behind = [
            f"{name} is {view.state}: {view.trouble or view.skipped}" for name, view in views.items() if view.state != "current"
        ]
        if not behind or asyncio.get_running_loop().time() >= ends_at:
            return behind
        await asyncio.sleep(LOOK_S)


async def _restores_all(cluster: SimulatedCluster, bucket: Bucket, judged: Judged) -> None:
    host = next(iter(cluster.hosts.values()))
    for _ in range(3):  # Nodes write now and then of themselves.
        before = vectors_of(host)
        wrong: list[str] = []
        try:
            storage = await _restored(bucket, None)
        except ShoalError as error:
            wrong.append(f"healed, the backup cannot be restored: {error.message}")
            storage = MemoryStorage()
        else:
            report = verify(storage, config=Config())
            wrong += [f"a restore is not sound: {problem}" for problem in report.problems[:3]]
            swept, was_member = await _run(storage)
            wrong += ["a restored directory was a member of the cluster"] if was_member else []
            wrong += _differing(packs.filled(host.disk.copy(), cluster.attic), swept)
        if vectors_of(host) == before and host.node.backups.view().state == "current":
            break
        await asyncio.sleep(2 * LOOK_S)
    judged.broken += wrong
    judged.restored.append(storage)


async def _run(restored: MemoryStorage) -> tuple[MemoryStorage, bool]:
    """A copy of the directory once a node has run on it, and swept what was erased; and whether it took itself for a member.

    It does not know that it is restored: else it would write an operation of its own, by which rules of retention wait.
    """
    simulated = SimulatedEnvironment(78, start_ms=_true_ms())
    simulated.bucket = SimulatedBucket()
    simulated.bucket.refused = REFUSALS["refused"]  # Rules of tiering hold here, and nothing is to move.
    storage = MemoryStorage({key: value for key, value in restored._durable.rows.items() if key != RESTORED})
    node = Node(storage, config=Config(sync_interval_s=LOOK_S), environment=simulated.environment)
    was_member = node._incarnation.was_member
    ends_at = asyncio.get_running_loop().time() + SWEPT_S_MAX
    while asyncio.get_running_loop().time() < ends_at and _has_garbage(storage):
        simulated.now_ms += int(LOOK_S * 1000)
        await asyncio.sleep(LOOK_S)
    await node.stop()
    return MemoryStorage(storage._durable.rows), was_member


def _has_garbage(storage: MemoryStorage) -> bool:
    return next(storage.scan(keys.GARBAGE, successor(keys.GARBAGE)), None) is not None


async def _restored(bucket: Bucket, moment_ms: int | None) -> MemoryStorage:
    """A directory in memory that was restored.

    Raises:
        ShoalError: it cannot be restored.
    """
    environment = SimulatedEnvironment(77).environment
    storage = MemoryStorage()
    wanted = planned(await bucket.refresh(), moment_ms, now_ms=_true_ms())
    await folded(storage, bucket, wanted, config=Config(), environment=environment)
    return MemoryStorage(storage._durable.rows)  # The same directory, opened again.


def _differing(disk: MemoryStorage, restored: MemoryStorage) -> list[str]:
    """What a restore has otherwise than a node."""
    wrong = []
    held, made = _sequences(disk), _sequences(restored)
    if places := [place for place in held.keys() | made.keys() if held.get(place, 0) != made.get(place, 0)]:
        wrong.append(f"a restore has other operations of {len(places)} origins than the nodes")
    theirs, ours = _rows(disk), _rows(restored)
    if differing := [key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key)]:
        wrong.append(f"{len(differing)} rows of a restore differ from the nodes', the first is {min(differing)[:60]!r}")
    return wrong


def _sequences(storage: MemoryStorage) -> dict[_Place, int]:
    """The operations of origins that are not retired."""
    retired = {key[1:] for key, _ in storage.scan(keys.RETIRED, successor(keys.RETIRED))}
    return {
        (partition, origin): tip.sequence
        for (partition, origin), tip in tips_on(storage).items()
        if partition.to_bytes(2, "big") + origin not in retired
    }


def _rows(storage: MemoryStorage) -> dict[bytes, bytes]:
    return {
        key: value
        for key, value in storage.scan(b"", None)
        if key[:1] not in _APART and (key[:1] != keys.OBJECT or not passes(key))
    }


async def _restores_moments(
    cluster: SimulatedCluster, plan: Plan, watch: BackupWatch, bucket: Bucket, judged: Judged, keep_s: float
) -> None:
    """A restore to a moment has the operations up to it, and no others."""
    random = plan.random_for("moments")
    final = _sequences_made(next(iter(cluster.hosts.values())).disk.copy())
    truncated = any(is_truncated(host.disk.copy()) for host in cluster.hosts.values())
    kept_from_ms = START_MS + int((asyncio.get_running_loop().time() - keep_s + LOOK_S) * 1000) if keep_s else 0
    last_ms = _true_ms()
    firsts = [min(each.values()) >> COUNTER_BITS for place, each in watch.times.items() if each and place in final]
    for _ in range(MOMENTS if firsts else 0):
        first_ms = max(kept_from_ms, min(firsts)) if random.random() < 0.5 else min(firsts)
        moment_ms = random.randint(first_ms, max(first_ms, last_ms))
        try:
            storage = await _restored(bucket, moment_ms)
        except MomentMissing as error:
            begins = earliest(bucket.catalogue) <= moment_ms
            if begins and not truncated and moment_ms >= kept_from_ms:
                judged.broken.append(f"a moment that is kept cannot be restored: {error.message}")
            continue
        except ShoalError as error:
            judged.broken.append(f"the moment {moment_ms} cannot be restored: {error.message}")
            continue
        if told := _cut_wrongly(_sequences_made(storage), watch, final, _limit(moment_ms)):
            judged.broken.append(f"a restore to {moment_ms} {told}")


def _cut_wrongly(made: Mapping[_Place, int], watch: BackupWatch, final: Mapping[_Place, int], limit: int) -> str:
    """What a restore up to a time has too many or too few of; empty: nothing. What was lost with disks is not in `final`."""
    for place, times in watch.times.items():
        if place in final:
            last = final[place]
            owed = max((number for number, hlc in times.items() if hlc < limit and number <= last), default=0)
            if made.get(place, 0) != owed:
                return f"has {made.get(place, 0)} operations of {place[1].hex()[:8]} in partition {place[0]} instead of {owed}"
    return ""


def _sequences_made(storage: MemoryStorage) -> dict[_Place, int]:
    return {place: tip.sequence for place, tip in tips_on(storage).items()}


def _shipped(catalogue: Catalogue, place: _Place) -> int:
    """The operations of a place that manifests name; 0: none, or origins of its partition are retired."""
    known = catalogue.vector(place[0])
    return 0 if known[HORIZON] else known[place[1]]


def _limit(moment_ms: int) -> int:
    """The time that operations up to a moment are before."""
    return (moment_ms + 1) << COUNTER_BITS
