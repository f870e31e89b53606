"""A machine of the cluster: an address, a disk and a clock, and the lives that a node has on it.

Laws:
- The node is the real one, `shoal.node.node.Node`, over the real session sockets;
  whatever it gets of the world comes from here, and is fenced when its life ends.
- What outlives a life is the disk and the clock. The next life draws other
  randomness, and opens what the disk then holds.
- A kill is one moment: nothing of the node runs after it.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import TypeVar, cast

from aiohttp import ClientConnectionError, web

from shoal.api.health import Metrics
from shoal.api.session import SessionSocket
from shoal.backup.bucket import ObjectStore
from shoal.cluster.membership import epochs
from shoal.config import Config
from shoal.crdt.dot import Origin
from shoal.errors import Overloaded, ShoalError, StorageFull, Unavailable
from shoal.node.environment import Environment
from shoal.node.node import Node
from shoal.node.peers.replicator import Replicator
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.frames import PROTOCOL, Welcome
from shoal.protocol.session import Session
from shoal.storage import keys
from simulation.judging.ledger import vectors_of
from simulation.world.bucket import NodeBucket
from simulation.world.crash_points import AnsweringSession, CrashPoints
from simulation.world.disk import Disk, SimulatedDisk
from simulation.world.environment import START_MS
from simulation.world.hooks import HOOKS
from simulation.world.incarnation import Incarnation
from simulation.world.network import CLIENT
from simulation.world.sockets import SimulatedRequest, SimulatedSocket, pair
from simulation.world.wires import Dialler, Wiring

T = TypeVar("T")

SYNC_S = 0.0002, 0.003
"""What an fsync takes on a disk that is well."""


class Clock:
    """A wall clock that jumps and drifts; `now` is the true time, in seconds from the beginning."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = 0.0
        self._base_ms = float(START_MS)
        self._rate = 0.0

    def now_ms(self) -> int:
        return int(self._shown_ms())

    def true_ms(self) -> float:
        """The time that a right clock shows."""
        return START_MS + self._now() * 1000

    def jump(self, by_ms: int) -> None:
        self._base_ms += by_ms

    def drift(self, rate: float) -> None:
        """From now on it runs faster by `rate`, of 1."""
        self._base_ms, self._since = self._shown_ms(), self._now()
        self._rate = rate

    def set_right(self, *, off_ms_max: float) -> None:
        """Show the true time again, if it is or comes to be further from it: nobody leaves such a clock."""
        if self._rate or abs(self._shown_ms() - self.true_ms()) > off_ms_max:
            self._base_ms, self._since, self._rate = float(START_MS), 0.0, 0.0

    def _shown_ms(self) -> float:
        return self._base_ms + (self._now() - self._since) * 1000 * (1 + self._rate)


def uptime_of(now: Callable[[], float], random: Random, config: Config) -> Callable[[], float]:
    """A clock for spans of time, which runs too fast or too slow by at most what the configuration says."""
    rate = 1 + random.uniform(-1, 1) * config.lease_drift_max
    begun_s = random.uniform(0, 1000)
    return lambda: begun_s + now() * rate


class SimulatedNode:
    """One machine, down until `start`. `others` are those that its node dials; by their names, `routes` lead elsewhere."""

    def __init__(self, config: Config, *, wiring: Wiring, name: str = "") -> None:
        self.address = config.advertise
        self.name = name or config.advertise.partition(":")[0]
        self.url = f"http://{config.advertise}"
        self.config = config
        self.disk = Disk()
        self.clock = Clock(wiring.network.now)
        self.points = CrashPoints()
        self.others: list[SimulatedNode] = []
        self.routes: dict[str, SimulatedNode] = {}
        self.stopping = False
        self.noticed: set[bytes] = set()  # Objects whose rows its past nodes found to differ from a peer's.
        self.incomplete: set[bytes] = set()  # Threads in which a save needed what its past nodes had swept.
        self.directories: dict[bytes, float] = {}  # Those that its nodes had, by their ids, and when each began.
        self.life = Incarnation(self.name, 0)
        self.life.over = True  # It has not begun.
        self._node: Node | None = None
        self._storage: SimulatedDisk | None = None
        self._wiring = wiring
        self._network = wiring.network
        self._trace = wiring.trace
        self._diallers: dict[str, asyncio.Task[None]] = {}  # By the address that they dial.
        self._served: dict[int, tuple[SessionSocket, SimulatedSocket]] = {}
        self._numbers = count()
        self._uptime = uptime_of(wiring.network.now, self._random("uptime"), config)
        self._awake = asyncio.Event()
        self._awake.set()

    # ── what it is ────────────────────────────────────────────────────────────

    @property
    def up(self) -> bool:
        """Whether a node runs here now, be it stopping or paused."""
        return not self.life.over

    @property
    def node(self) -> Node:
        """The node that runs here, or ran last. There was one."""
        assert self._node is not None, f"{self.name} never started"
        return self._node

    @property
    def peer(self) -> Replicator:
        """That node, as others see it."""
        assert self.node.replicator is not None
        return self.node.replicator

    def digest(self) -> bytes:
        """Of all that it holds durably."""
        return self.peer.quorum.digest

    def held(self) -> dict[tuple[int, Origin], int]:
        """How many operations its disk holds durably, by partition and origin."""
        return vectors_of(self.disk.copy())

    def epoch_held(self) -> int:
        """The epoch of the members that its disk holds durably; 0: that of the configuration."""
        stored = self.disk.copy().get(keys.meta("members"))
        return 0 if stored is None else epochs.decode(stored).epoch

    # ── its lives ─────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Begin the next life on what the disk holds.

        Raises:
            ShoalError: the node does not start on that disk; it stays down.
        """
        assert self.life.over, f"{self.name} is up"
        life = self.life = Incarnation(self.name, self.life.number + 1)
        self._trace.mark(self.name, "starts", f"for the {life.number}. time")
        self._storage = self.disk.mount(life, points=self.points, trace=self._trace)
        environment = self._environment(life)
        try:
            storage = self._storage
            self._node = life.run(lambda: Node(storage, config=self.config, environment=environment, redact=HOOKS))
        except ShoalError as error:
            life.end()
            self._trace.mark(self.name, "does not start:", error.message)
            raise
        self._welcome = Welcome(
            PROTOCOL,
            "simulated",
            self.peer.identity().node.hex(),
            self.config.request_bytes_max,
            self.config.session_requests_max,
            self.config.subscriptions_max,
        )
        self.directories.setdefault(self.peer.identity().node, self._network.now())
        self._metrics = life.run(Metrics)
        self._diallers = {}
        if self.node.replicator is not None:
            self._dial(self.peer.memberships.addresses)
            self.peer.memberships.link_by(self._dial)

    def _dial(self, addresses: Collection[str]) -> None:
        """Keep links to the nodes at these addresses, and to no other."""
        for other in self.others:
            dialler = self._diallers.get(other.address)
            if other.address not in addresses and dialler is not None:
                self._diallers.pop(other.address).cancel()
            elif other.address in addresses and dialler is None:
                self._diallers[other.address] = self.life.begin(Dialler(self, other, wiring=self._wiring).keep())

    def kill(self, keep: int | None = 0) -> None:
        """End this life at once; of the writes that were not synced the disk keeps the first `keep`, None: all."""
        self._trace.mark(self.name, "is killed", "" if keep is None else f"with {keep} unsynced writes kept")
        self.disk.crash(keep)
        self._end()

    def _end(self) -> None:
        self.life.end()
        self.noticed |= self.peer.scrubber.noticed
        self.incomplete |= self.peer.scrubber.incomplete
        self.stopping = False
        for _, socket in self._served.values():
            socket.abort()
        self._served.clear()
        for (source, target), wire in self._wiring.newest.items():
            if source == self.name:
                wire.drain()
            elif target == self.name:
                wire.lose_soon()

    async def stop(self) -> None:
        """Stop cleanly, as a signal would have it; a kill meanwhile ends that too."""
        life = self.life
        self.stopping = True
        self._trace.mark(self.name, "stops")
        stopping = life.begin(self._stop_cleanly())
        await asyncio.wait([stopping])
        if not life.over:
            self._end()
            error = None if stopping.cancelled() else stopping.exception()
            if isinstance(error, StorageFull):
                self._trace.mark(self.name, "could not stop cleanly:", error.message)
            elif error is not None:
                self._wiring.problems.append(f"{life} did not stop cleanly: {''.join(traceback.format_exception(error))}")

    async def _stop_cleanly(self) -> None:
        try:
            async with asyncio.timeout(self.config.stop_timeout_s):
                await asyncio.gather(*(served.stop() for served, _ in self._served.values()))
        except TimeoutError:
            pass  # What is open then is cut.
        for dialler in self._diallers.values():
            dialler.cancel()
        await asyncio.gather(*self._diallers.values(), return_exceptions=True)
        await self.node.stop()

    async def gone(self) -> None:
        """If its node is down, wait until nothing of its last life is under way any more."""
        if self.up:
            return
        for left in await self.life.gone():
            self._wiring.problems.append(f"{self.life} is over, and does not end: {left}")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It stands still while the context is open, as far as anybody could tell."""
        self._trace.mark(self.name, "pauses")
        self._awake.clear()
        try:
            with self._network.paused(self.name):
                yield
        finally:
            if not self._network.is_paused(self.name):
                self._awake.set()
                self._trace.mark(self.name, "goes on")

    @contextmanager
    def misrouted(self, name: str, to: SimulatedNode) -> Iterator[None]:
        """The address of `name` leads to another machine while the context is open."""
        self.routes[name] = to
        self._unlink(name)
        try:
            yield
        finally:
            self.routes.pop(name, None)
            self._unlink(to.name)

    def _unlink(self, name: str) -> None:
        wire = self._wiring.newest.get((self.name, name))
        if wire is not None:
            wire.sever()

    async def running(self) -> None:
        """Wait while it is paused."""
        await self._awake.wait()

    # ── its world ─────────────────────────────────────────────────────────────

    def _environment(self, life: Incarnation) -> Environment:
        randomness = self._random(f"entropy/{life}")
        syncing = self._random(f"sync/{life}")
        now = self._network.now

        def now_ms() -> int:
            life.check()
            return self.clock.now_ms()

        def uptime() -> float:
            life.check()
            return self._uptime()

        def entropy(size: int) -> bytes:
            life.check()
            return randomness.randbytes(size)

        async def run_blocking(function: Callable[[], T], /) -> T:
            life.check()
            takes_s = syncing.uniform(*SYNC_S) + self.disk.slow_s
            before_s = syncing.uniform(0.0, takes_s)
            await asyncio.sleep(before_s)
            await self.running()
            life.check()
            done = function()
            # What is written from here on is not covered by it, though it has not returned.
            await asyncio.sleep(takes_s - before_s)
            await self.running()
            return done

        def open_bucket(url: str) -> ObjectStore:
            return NodeBucket(self._wiring.buckets[url], self, self._random(f"bucket/{life}"))

        return Environment(
            now_ms=now_ms,
            monotonic=now,  # Not fenced: it measures each step of a request, also the last ones of a life that is over.
            uptime=uptime,
            entropy=entropy,
            run_blocking=run_blocking,
            close=lambda: None,
            open_bucket=open_bucket,
        )

    def _random(self, purpose: str) -> Random:
        return self._wiring.random_for(f"{self.name}/{purpose}")

    # ── its clients ───────────────────────────────────────────────────────────

    def accept(self, *, config: Config, heartbeat_s: float) -> SimulatedSocket:
        """Serve a client that has reached this machine; returns the client's end of the socket.

        Raises:
            ClientConnectionError: nobody listens.
            Unavailable, Overloaded: the node takes no session now.
        """
        if not self.up:
            raise ClientConnectionError(f"Cannot connect to host {self.address}: connection refused")
        if self.stopping:
            raise Unavailable(f"the node at {self.url} does not take sessions now. Nothing was sent. Try again later.")
        if len(self._served) >= self.config.sessions_max:
            raise Overloaded(f"the node at {self.url} has no room for another session. Nothing was sent.", retry_after_s=1.0)
        number = next(self._numbers)
        random = self._random(f"client/{number}")
        near = self._socket(CLIENT, self.name, None, heartbeat_s, config.failover_timeout_s, random)
        far = self._socket(self.name, CLIENT, self.life, self.config.heartbeat_s, self.config.heartbeat_s, random)
        pair(near, far)
        self.life.begin(self._serve(number, far))
        return near

    def _socket(
        self, name: str, peer: str, life: Incarnation | None, heartbeat_s: float, close_s: float, random: Random
    ) -> SimulatedSocket:
        return SimulatedSocket(
            self._network, name=name, peer=peer, life=life, heartbeat_s=heartbeat_s, close_s=close_s, random=random
        )

    async def _serve(self, number: int, socket: SimulatedSocket) -> None:
        def open_session(bookmark: Bookmark) -> Session:
            return AnsweringSession(self.node.session(bookmark), self.points)

        served = SessionSocket(
            open_session,
            cast(web.WebSocketResponse, socket),
            admit=self.node.service.readiness.admit,
            welcome=self._welcome,
            config=self.config,
            metrics=self._metrics,
        )
        self._served[number] = served, socket
        try:
            await served.serve(cast(web.Request, SimulatedRequest(socket)))
        except ConnectionError:
            pass  # The client left.
        except Exception:
            self._wiring.problems.append(f"{self.life} served a client: {traceback.format_exc()}")
            socket.abort()
        finally:
            self._served.pop(number, None)
