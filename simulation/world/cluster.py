"""A cluster of simulated machines, from a plan; and the misfortunes that befall it.

Laws:
- What is carried out is data of the plan; what cannot be carried out, because a node
  is down or there is none of that name, is skipped, and not counted in `fired`.
- A fault lasts as long as it says or until `heal`, whichever is first. After `heal`
  every node is up, lists and hears all others, has a disk that works, and knows what day it is.
- Bugs that nobody would hear of are in `problems`: what a task or a callback of a
  living node raised, and nobody took.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, cast

import aiohttp
import msgspec

from shoal.config import Config
from shoal.crdt.rows import successor
from shoal.errors import ShoalError
from shoal.node.verification.evidence import object_of
from shoal.protocol.requests import DeclareBackup
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.transport.dialling import DialledSocket
from shoal.transport.link import Link
from simulation.bounds import altered, parted
from simulation.judging.fallen import Fallen
from simulation.judging.packs import name_of_pack, packs_on
from simulation.parts.attic import URL as ATTIC
from simulation.parts.evidence import FAMILY
from simulation.parts.part import name_of
from simulation.plan import (
    AlterRow,
    Bucket,
    BucketTrouble,
    ClockDrift,
    ClockJump,
    Clone,
    CorruptBlock,
    Crash,
    CrashAt,
    Cut,
    Disown,
    Fault,
    FullDisk,
    Leave,
    Misroute,
    Pause,
    Plan,
    Relist,
    Replace,
    Restore,
    Ship,
    SlowDisk,
    SpoilBucket,
    Stop,
    Weather,
    Wipe,
    shown,
)
from simulation.world.bucket import SimulatedBucket
from simulation.world.client import Client, now_ms
from simulation.world.disk import passes
from simulation.world.host import SimulatedNode
from simulation.world.incarnation import Fenced, life_of, own_tasks
from simulation.world.network import CLIENT, Network
from simulation.world.operator import Operator
from simulation.world.sockets import SimulatedHttp
from simulation.world.trace import Trace
from simulation.world.wires import Wiring

PORT = 7400

SETTINGS: dict[str, int | float | str] = {
    "quorum_register_found_s": 3600.0,  # Plans that use the register found it.
    "peer_heartbeat_s": 1.0,
    "peer_connect_timeout_s": 1.0,
    "heartbeat_s": 2.0,
    "connect_timeout_s": 2.0,
    "failover_timeout_s": 1.0,
    "request_timeout_s": 8.0,
    "reconnect_delay_s_max": 1.0,
    "quorum_timeout_s": 2.0,
    "session_wait_s": 1.0,
    "quarantine_s": 5.0,
    "early_operations_s": 5.0,
    "stop_timeout_s": 3.0,
    "witness_interval_s": 5.0,
    "document_history_s": 1.0,
    "clock_interval_s": 2.0,
    "mark_interval_s": 3600.0,
    "scrub_interval_s": 1e6,  # Plans that are drawn say when.
    "lease_drift_max": 0.1,
    "lease_poll_s": 2.0,
    "scrub_bytes_per_s": 1 << 30,
    "retention_look_s": 1.0,
}
"""Settings and bounds of every node, unless the plan has others: patience that fits runs of seconds."""

_OfARunningNode = Crash | Stop | Pause | FullDisk | CorruptBlock | Wipe | Restore | Relist
_OfOneNode = (
    _OfARunningNode | CrashAt | ClockJump | ClockDrift | SlowDisk | AlterRow | Clone | Misroute | Leave | Replace | Disown
)

BUCKET = "s3://simulated/prod"
_TROUBLES: dict[str, tuple[tuple[BucketTrouble, float], ...]] = {
    "away": (("unavailable", 1.0),),
    "denied": (("expired", 1.0),),
    "slow": (("slow", 1.0),),
    "flaky": (("slow", 0.5), ("unavailable", 0.5), ("lost", 0.5)),
}
_DECLARE_S = 0.3  # Between two attempts of an operator.
_LOOK_S = 0.05  # Between two looks at whether all agree.
_OFF_MS_MAX = 12 * 3600 * 1000  # A healed clock is no further from the truth, whatever the bound of clocks is.


class SimulatedCluster:
    """Use as an asynchronous context; then all nodes are up. `urls` are by name, in the nodes' order."""

    def __init__(self, plan: Plan, *, trace: Trace) -> None:
        self.fired: Counter[str] = Counter()  # By the fault's tag, and for crash points by "crash-at POINT" as well.
        self.problems: list[str] = []
        self.late: list[str] = []  # Calls that took longer than they may.
        self.fallen = Fallen()
        self.is_backed_up = False  # As an operator was told.
        self.altered: set[bytes] = set()  # Objects of which a disk has altered rows.
        settings, bounds = parted(SETTINGS | plan.settings)
        self.config = msgspec.convert(settings, Config)
        self._bounds = altered(**bounds)
        self._plan = plan
        self._trace = trace
        self._loop = asyncio.get_running_loop()
        self.network = Network(self._loop.time)
        # The bucket's clock is right.
        self.bucket = SimulatedBucket(plan.random_for("bucket"), now_ms=now_ms, url=BUCKET)
        self.attic = SimulatedBucket(plan.random_for("attic"), now_ms=now_ms, url=ATTIC)
        buckets = {bucket.url: bucket for bucket in (self.bucket, self.attic)}
        self._wiring = wiring = Wiring(self.network, trace, random_for=plan.random_for, problems=self.problems, buckets=buckets)
        self.hosts = {name: SimulatedNode(self._config(name, plan.names), wiring=wiring) for name in plan.names}
        self._clones: dict[str, SimulatedNode] = {}  # Those that serve, by the names of their originals.
        for host in self.hosts.values():
            self._list(host, plan.names)
        self.urls = {host.name: host.url for host in self.hosts.values()}
        self.dial = partial(Link.dial, connect=self._connect)
        self._dialled = plan.random_for("dialled")
        self._copies: dict[tuple[str, float], MemoryStorage] = {}
        self._healed: asyncio.Future[None] = self._loop.create_future()
        self._closed = False
        self._under_way = 0  # Faults.
        self._operator = asyncio.Lock()
        self.epoch_seen = 0  # By operators.
        self.unsure: set[str] = set()  # Nodes that came back with an empty disk before all others knew that they were removed.
        self._idle = asyncio.Event()

    async def __aenter__(self) -> SimulatedCluster:
        self._bounds.__enter__()
        own_tasks(self._loop)
        self._loop.set_exception_handler(self._unhandled)
        for host in self.hosts.values():
            host.start()
        for fault in self._plan.faults:
            if isinstance(fault, Restore) and fault.node in self.hosts:
                self._loop.call_at(fault.copied_at, self._copy, fault)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every life, without waiting for a clean stop."""
        self._closed = True
        self._end_faults()
        for host in self.hosts.values():
            host.points.disarm()
            if host.up:
                host.kill(None)
        for host in self.hosts.values():
            await host.gone()
        self._bounds.__exit__(None, None, None)

    def is_calm(self, one: str, other: str) -> bool:
        """Whether two nodes are linked in both directions, and what they send each other arrives."""
        wires = [self._wiring.newest.get(ends) for ends in ((one, other), (other, one))]
        linked = all(wire is not None and not wire.broken.is_set() for wire in wires)
        return linked and self.network.both_open(one, other) and not self.network.is_foul(one, other)

    def _config(self, name: str, members: Sequence[str]) -> Config:
        join = ",".join(f"{member}:{PORT}" for member in members)
        return msgspec.structs.replace(self.config, join=join, advertise=f"{name}:{PORT}")

    def _list(self, host: SimulatedNode, members: Sequence[str]) -> None:
        """From its next start on these are its members."""
        host.config = self._config(host.name, members)
        host.others = [other for other in self.hosts.values() if other is not host and other.name in members]

    # ── clients ───────────────────────────────────────────────────────────────

    async def _connect(
        self, url: str, *, config: Config, token: str | None, heartbeat_s: float
    ) -> tuple[aiohttp.ClientSession, DialledSocket]:
        """A socket to the node at `url`; see `shoal.transport.dialling.open_socket`."""
        name = next(name for name, known in self.urls.items() if known == url)
        host = self._clones.get(name) or self.hosts[name]
        while not await self.network.travel(CLIENT, host.name, self._dialled):  # noqa: ASYNC110
            await asyncio.sleep(config.connect_timeout_s)  # As a connection that is tried again and again.
        socket = host.accept(config=config, heartbeat_s=heartbeat_s)
        return cast(aiohttp.ClientSession, SimulatedHttp(socket)), cast(DialledSocket, socket)

    # ── faults ────────────────────────────────────────────────────────────────

    async def carry_out(self, fault: Fault) -> None:
        """Let `fault` begin now; returns once it is over, and what it took down is up again."""
        if self._healed.done():
            return
        self._under_way += 1
        try:
            match fault:
                case Cut():
                    with self.network.cut(fault.sources, fault.targets, both=fault.both):
                        await self._last(fault, fault.for_s)
                case Weather():
                    with self.network.weather(fault):
                        await self._last(fault, fault.for_s)
                case Ship():
                    self._fire(fault)
                    await self.declare_backup(fault.keep_s, self._healed.done)
                case SpoilBucket():
                    with self.bucket.spoiled(fault):
                        await self._last(fault, fault.for_s)
                case Bucket():
                    await self._bucket_fails(fault)
                case _:
                    host = self.hosts.get(fault.node)
                    if host is not None:
                        await self._befall(host, fault)
        finally:
            self._under_way -= 1
            self._idle.set()

    async def declare_backup(self, keep_s: float, is_over: Callable[[], bool]) -> None:
        """Have an operator declare the bucket, as often as it takes, until it is over."""
        client = Client(self, self._plan.names, name="operator of the backup", random=self._plan.random_for("declared"))
        try:
            while not self.is_backed_up and not is_over():
                try:
                    await client.session.call(DeclareBackup(BUCKET, int(keep_s * 1000)))
                    self.is_backed_up = True
                except ShoalError:
                    await asyncio.sleep(_DECLARE_S)
        finally:
            await client.session.close()

    async def _befall(self, host: SimulatedNode, fault: _OfOneNode) -> None:
        match fault:
            case ClockJump():
                self._fire(fault)
                host.clock.jump(fault.by_ms)
            case ClockDrift():
                self._fire(fault)
                host.clock.drift(fault.rate)
            case SlowDisk():
                with host.disk.slowed(fault.sync_s):
                    await self._last(fault, fault.for_s)
            case CrashAt():
                await self._crash_at(host, fault)
            case AlterRow():
                self._alter(host, fault)
            case Misroute():
                if fault.name in self.hosts and fault.to in self.hosts and fault.name != fault.node:
                    with host.misrouted(fault.name, self.hosts[fault.to]):
                        await self._last(fault, fault.for_s)
            case Leave() | Replace() | Disown():
                await self._operate(host, fault)
            case Clone():
                if host.up and fault.node not in self._clones:
                    await self._clone(host, fault)
            case _ if host.up and not host.stopping and not self.network.is_paused(host.name):
                await self._strike(host, fault)

    async def _operate(self, host: SimulatedNode, fault: Leave | Replace | Disown) -> None:
        """An operator acts; one does at a time."""
        async with self._operator:
            if self._healed.done() or len(self.hosts) < 2:
                return
            self._fire(fault)
            operator = Operator(self, host, self._plan.random_for(f"operator/{shown(fault)}"))
            match fault:
                case Disown():
                    await operator.disown()
                case Leave() if self._runs(host):
                    if await operator.remove(fault.how):
                        await self._returns(host, fault.away_s, operator.add)
                    else:
                        await self._bring_up(host)
                case Replace() if self._runs(host) and fault.by in self.hosts and self._runs(self.hosts[fault.by]):
                    await self._replace(host, self.hosts[fault.by], fault)

    def _runs(self, host: SimulatedNode) -> bool:
        return host.up and not host.stopping and not self.network.is_paused(host.name)

    async def _replace(self, host: SimulatedNode, spare: SimulatedNode, fault: Replace) -> None:
        random_for = self._plan.random_for
        first = Operator(self, spare, random_for(f"operator/{shown(fault)}/spare"))
        if not await first.remove("drain"):
            await self._bring_up(spare)
            return
        is_replaced = False

        async def take_over() -> None:
            nonlocal is_replaced
            then = Operator(self, host, random_for(f"operator/{shown(fault)}/then"), apart=[spare])
            is_replaced = self._runs(host) and await then.remove(fault.how, by=spare)
            if not is_replaced:
                await self._bring_up(host)
                await first.add()

        await self._returns(spare, fault.away_s, take_over)
        if is_replaced:
            await self._returns(host, fault.away_s, Operator(self, host, random_for(f"operator/{shown(fault)}/last")).add)

    async def _returns(self, host: SimulatedNode, away_s: float, add: Callable[[], Awaitable[None]]) -> None:
        """A removed node comes back with its empty disk, and is added."""
        self.fallen.replaced()
        # Clients are given the address of a node that is added, once it is.
        with self.network.cut([CLIENT], [host.name], both=True):
            await self._pass(away_s)
            await self._bring_up(host)
            if any(other is not host and other.epoch_held() < self.epoch_seen for other in self.hosts.values()):
                self.unsure.add(host.address)
            await add()
            self.unsure.discard(host.address)

    @property
    def is_healed(self) -> bool:
        """Whether the faults are over."""
        return self._healed.done()

    async def _clone(self, original: SimulatedNode, fault: Clone) -> None:
        config = self._config(fault.name, self._plan.names)
        clone = SimulatedNode(config, wiring=self._wiring, name=f"{fault.node}-copy@{fault.at:g}")
        clone.others = [host for host in self.hosts.values() if host.name != fault.name]
        clone.disk.put_back(original.disk.copy())
        clone.start()
        if fault.serves:
            self._clones[fault.node] = clone
        try:
            await self._last(fault, fault.for_s)
        finally:
            if fault.serves:
                del self._clones[fault.node]
            if clone.up:
                clone.kill()
            await clone.gone()

    async def _strike(self, host: SimulatedNode, fault: _OfARunningNode) -> None:
        match fault:
            case Pause():
                with host.paused():
                    await self._last(fault, fault.for_s)
                return
            case Restore() if (fault.node, fault.copied_at) not in self._copies:
                return
        self._fire(fault)
        match fault:
            case Crash():
                host.kill(fault.keep)
            case Stop():
                await host.stop()
            case Wipe():
                host.kill()
                host.disk.wipe()
                self.fallen.replaced()
            case Restore():
                host.kill()
                before, copy = host.disk.copy(), self._copies[fault.node, fault.copied_at]
                host.disk.put_back(copy, whole=fault.whole)
                self.fallen.replaced()
                if fault.whole:
                    self.fallen.fell(host, before=before, after=copy)
            case Relist():
                await host.stop()
                await host.gone()
                self._list(host, fault.members)
            case FullDisk() | CorruptBlock():
                await self._spoil(host, fault)
                return
        await self._pass(fault.down_s)
        await self._bring_up(host)

    async def _spoil(self, host: SimulatedNode, fault: FullDisk | CorruptBlock) -> None:
        """Let a node run for a while on a disk that fails, and then see to it."""
        life = host.life
        if isinstance(fault, FullDisk):
            host.disk.fail_next(fault.operation)
            await self._pass(fault.down_s)
            if not life.over and not host.stopping:
                await host.stop()
        else:
            host.disk.corrupt_rows(fault.table.encode())
            await self._pass(fault.down_s)
            if host.up:
                host.kill()
            host.disk.wipe()
            self.fallen.replaced()
        await self._bring_up(host)

    async def _crash_at(self, host: SimulatedNode, fault: CrashAt) -> None:
        struck = self._loop.create_future()

        def crash() -> None:
            self._fire(fault)
            self.fired[f"{_tag(fault)} {fault.point}"] += 1
            host.kill(fault.keep)
            struck.set_result(None)

        host.points.arm(fault.point, fault.nth, crash)
        await asyncio.wait([struck, self._healed], return_when=asyncio.FIRST_COMPLETED)
        if struck.done():
            await self._pass(fault.down_s)
            await self._bring_up(host)

    def _alter(self, host: SimulatedNode, fault: AlterRow) -> None:
        """Of an object that every node holds whole: a peer may ask this one for it, and nobody else might have it."""
        if not all(other.up for other in self.hosts.values()):
            return
        rows = [
            row
            for row in ([key for key, _ in host.disk.copy().scan(keys.OBJECT, successor(keys.OBJECT))])
            if keys.split_object(row)[3].startswith(name_of(FAMILY, ""))
            and not passes(row)
            and self._is_everywhere(int.from_bytes(row[1:3], "big"))
        ]
        if rows and host.disk.alter(key := rows[fault.nth % len(rows)]):
            self._fire(fault)
            self.altered.add(object_of(key))

    async def _bucket_fails(self, fault: Bucket) -> None:
        if fault.trouble in ("lost", "altered"):
            if self._lose_pack(fault):
                self._fire(fault)
                self.fired[f"{_tag(fault)} {fault.trouble}"] += 1
            return
        self.fired[f"{_tag(fault)} {fault.trouble}"] += 1
        with ExitStack() as stack:
            for kind, share in _TROUBLES[fault.trouble]:
                stack.enter_context(self.attic.spoiled(SpoilBucket(at=fault.at, kind=kind, share=share)))
            await self._last(fault, fault.for_s)

    def _lose_pack(self, fault: Bucket) -> bool:
        """Of an object that every node holds whole: nobody else might have its chunks."""
        host = self.hosts.get(fault.node)
        if host is None or not all(other.up for other in self.hosts.values()):
            return False
        packs = [
            name_of_pack(node, pack)
            for of, pack, node in packs_on(host.disk.copy())
            if self._is_everywhere(int.from_bytes(of[1:3], "big"))
        ]
        there = [name for name in packs if name in self.attic.objects]
        if not there:
            return False
        self.attic.spoil(there[fault.nth % len(there)], is_lost=fault.trouble == "lost")
        return True

    def _is_everywhere(self, partition: int) -> bool:
        prefix = keys.vector(partition)
        held = [dict(host.disk.copy().scan(prefix, successor(prefix))) for host in self.hosts.values()]
        return all(other == held[0] for other in held)

    async def _last(self, fault: Fault, seconds: float) -> None:
        self._fire(fault)
        await self._pass(seconds)
        self._trace.mark("-", "over:", shown(fault))

    async def _pass(self, seconds: float) -> None:
        """Let so much time pass, or as much as there is until all is healed."""
        await asyncio.wait([self._healed], timeout=seconds)

    def _fire(self, fault: Fault) -> None:
        self.fired[_tag(fault)] += 1
        self._trace.mark("-", "fault:", shown(fault))

    async def _bring_up(self, host: SimulatedNode) -> None:
        """Start what is down, on a disk that can be read."""
        await host.gone()
        if host.up or self._closed:
            return
        try:
            host.start()
        except ShoalError as error:
            if not host.disk.corrupt:
                self.problems.append(f"{host.name} does not start on a sound disk: {error.code}: {error.message}")

    def _copy(self, fault: Restore) -> None:
        self._copies[fault.node, fault.copied_at] = self.hosts[fault.node].disk.copy()

    # ── the end of the faults ─────────────────────────────────────────────────

    async def heal(self) -> None:
        """End every fault, and return once every node is up. No fault can be carried out any more."""
        self._end_faults()
        for host in self.hosts.values():
            host.points.disarm()
            host.clock.set_right(off_ms_max=min(_OFF_MS_MAX, self.config.clock_skew_max_ms / 4))
        while self._under_way:
            self._idle.clear()
            await self._idle.wait()
        for host in self.hosts.values():
            if len(host.others) < len(self.hosts) - 1:
                if host.up:
                    await host.stop()
                await host.gone()
                self._list(host, self._plan.names)
            await self._bring_up(host)

    def _end_faults(self) -> None:
        if not self._healed.done():
            self._healed.set_result(None)

    async def founded(self, seconds: float = 20.0) -> None:
        """Return once every node was admitted by the others.

        Raises:
            TimeoutError: one was not, after so long.
        """
        async with asyncio.timeout(seconds):
            while any(host.peer.quorum.is_learner for host in self.hosts.values()):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_S)

    async def converged(self, seconds: float = 20.0) -> None:
        """Return once all nodes are up and hold the same operations.

        Raises:
            TimeoutError: they do not, after so long.
        """
        async with asyncio.timeout(seconds):
            while not self._agree():  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_S)

    def _agree(self) -> bool:
        hosts = self.hosts.values()
        return all(host.up for host in hosts) and len({host.digest() for host in hosts}) == 1

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What no task took: bugs, but for those that a kill leaves behind."""
        error = context.get("exception")
        life = life_of(context.get("future") or context.get("task"))
        if isinstance(error, Fenced) or (life is not None and life.over):
            return
        told = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else str(context)
        self.problems.append(f"{context['message']}: {told}")


def _tag(fault: Fault) -> str:
    return str(fault.__struct_config__.tag)
