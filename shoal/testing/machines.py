"""The nodes for an agent under test, real ones over memory in virtual time, and a session that can be killed at every request.

Laws:
- A power cut takes effect at once: after it nothing becomes durable, is
  answered or leaves the machine. Unsynced data is lost.
- The network delays messages, and loses them only if the machine at its end loses power.
  An agent's restart takes long enough for the network to be quiet again.
- A request that was sent continues at the node when its client dies.
- A write passes three points: before it is sent, after it is carried out but not
  yet answered, and after the answer. A read changes nothing, so it passes
  the first and the last.

An asyncio event loop with virtual time.

Laws:
- Time stands still while anything can run, and then jumps to the next timer: a run
  takes only its computing time, and depends only on the program and its seed.
- There are no sockets, threads or signals. A program that waits although no timer
  and no task is left is `Stalled`.
"""

from __future__ import annotations

import asyncio
import logging
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from random import Random
from typing import Any, TypeVar

from shoal.client.connection import StoreConnection
from shoal.client.store import Store
from shoal.cluster.peering import Peer
from shoal.config import Config
from shoal.errors import ShoalError
from shoal.node.environment import Environment
from shoal.node.node import Node
from shoal.node.peers.quorum import Quorum
from shoal.protocol.requests import (
    Batch,
    Durability,
    ListLeases,
    Push,
    R,
    Request,
    Subscription,
    Write,
)
from shoal.protocol.session import Session, Wrapper
from shoal.storage.interface import MemoryStorage
from shoal.testing.lives import Errands, Life

T = TypeVar("T")

START_MS = 1_700_000_000_000
TRIP_S = 0.000_5  # From a client or node to a node.
SYNC_S = 0.002
RESTART_S = 1.0
_LOOK_S = 3600.0  # Virtual, between two looks of a node at its own conditions.
_ANY_SPACE = "any"

CONVERGED_S = 60.0  # The maximal time until all nodes hold the same.


class Machine:
    """One machine. `errands` are the requests under way here. It is up unless `node` is None."""

    def __init__(self, name: str, *, config: Config, seed: int) -> None:
        self.name = name
        self.config = config
        self.errands = Errands()
        self.node: Node | None = None
        self._seed = seed
        self._openings = 0
        self._storage = MemoryStorage()
        self._dead: list[Node] = []
        self._environment = self._surroundings()

    def start(self) -> Node:
        """Start a node on this machine's storage; each start draws other randomness from the seed."""
        self._openings += 1
        self._environment = self._surroundings()
        self.node = Node(self._storage, config=self.config, environment=self._environment)
        return self.node

    def cut_power(self) -> None:
        """Lose all unsynced data at once; `bury` stops the dead node later."""
        self._storage = self._storage.crash(0)
        self.errands.drop()
        if self.node is not None:
            self._dead.append(self.node)
        self.node = None

    async def bury(self) -> None:
        """Stop the nodes that power cuts have killed."""
        for node in self._dead:
            with suppress(ShoalError):  # Its storage fails.
                await node.stop()
        self._dead.clear()

    async def stop(self) -> None:
        """Stop the node, if it runs, and those that power cuts have killed."""
        await self.bury()
        if self.node is not None:
            await self.node.stop()

    def store(self, session: Session, durability: Durability) -> Store:
        """A store over `session`, with this machine's randomness."""
        environment = self._environment
        connection = StoreConnection(session, self.config, durability, environment.entropy, uptime=environment.uptime)
        return Store(connection, close=session.close)

    def _surroundings(self) -> Environment:
        # A text gives the same seed in every process.
        random = Random(f"{self._seed}/{self.name}/{self._openings}")
        time = asyncio.get_running_loop().time
        return Environment(
            now_ms=lambda: START_MS + int(time() * 1000),
            monotonic=time,
            uptime=time,
            entropy=random.randbytes,
            run_blocking=_after_a_sync,
            close=lambda: None,
            look_s=_LOOK_S,
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Keep from the log what nodes report of faults that are made on purpose."""
    log = logging.getLogger("shoal")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


async def _after_a_sync(function: Callable[[], T], /) -> T:
    await asyncio.sleep(SYNC_S)
    return function()


class Machines:
    """`count` machines, all linked. Use it as an asynchronous context."""

    def __init__(self, count: int, *, seed: int) -> None:
        names = [f"n{number + 1}:1" for number in range(count)]
        join = ",".join(names) if count > 1 else ""
        self._all = [Machine(name, config=Config(advertise=name, join=join), seed=seed) for name in names]
        self._wires: dict[tuple[str, str], _Wire] = {}

    async def __aenter__(self) -> Machines:
        self.start_all()
        await self.converged()
        await self._found()
        return self

    async def __aexit__(self, *_: object) -> None:
        for wire in list(self._wires.values()):
            wire.cut()
        for machine in self._all:
            await machine.stop()

    async def _found(self) -> None:
        """Found the quorum register, which needs all nodes: a cluster that has been up for a while has one."""
        node = self._all[0].node
        assert node is not None
        await node.session().call(ListLeases(_ANY_SPACE))

    def for_life(self, number: int) -> Machine:
        """The machine of an agent's life: after each restart the next one that is up."""
        up = [machine for machine in self._all if machine.node is not None]
        return self._all[number % len(self._all)] if len(up) == len(self._all) else up[number % len(up)]

    def cut_power(self, machine: Machine) -> None:
        """Cut the power of one machine, and its links."""
        for pair in [pair for pair in self._wires if machine.name in pair]:
            self._wires.pop(pair).cut()
        machine.cut_power()

    async def bury(self) -> None:
        """Stop dead nodes. A single machine is started again; of several, those without power stay down."""
        for machine in self._all:
            await machine.bury()
        if len(self._all) == 1:
            self.start_all()

    def start_all(self) -> None:
        """Start the machines that are down, and link all machines."""
        for machine in self._all:
            if machine.node is None:
                machine.start()
        for source in self._all:
            for target in self._all:
                if source is not target and (source.name, target.name) not in self._wires:
                    self._wires[source.name, target.name] = _Wire(_peer(source), _peer(target), address=target.name)

    async def converged(self) -> None:
        """Return once all nodes hold the same and count in quorums.

        Raises:
            TimeoutError: they do not within `CONVERGED_S`.
        """
        peers = [machine.node.replicator for machine in self._all if machine.node is not None]
        async with asyncio.timeout(CONVERGED_S):
            while not _is_settled([peer.quorum for peer in peers if peer is not None]):  # noqa: ASYNC110
                await asyncio.sleep(SYNC_S)


def _is_settled(quorums: list[Quorum]) -> bool:
    return len({quorum.digest for quorum in quorums}) <= 1 and not any(quorum.is_learner for quorum in quorums)


def _peer(machine: Machine) -> Peer:
    assert machine.node is not None
    assert machine.node.replicator is not None
    return machine.node.replicator


class _Wire:
    """One direction of a link: an `Outlet` of its sender."""

    waiting_bytes = 0  # It takes all.

    def __init__(self, source: Peer, target: Peer, *, address: str) -> None:
        self.address = address
        self._source, self._target = source, target
        self._messages: asyncio.Queue[bytes] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._carry())
        target.admit(source.identity())
        source.linked(target.identity(), self)

    def offer(self, message: bytes, /) -> bool:
        self._messages.put_nowait(message)
        return True

    async def _carry(self) -> None:
        while True:
            message = await self._messages.get()
            await asyncio.sleep(TRIP_S)
            await self._target.received(self._source.identity(), message)

    def cut(self) -> None:
        self._task.cancel()
        self._source.unlinked(self._target.identity(), self)


STEPS_MAX = 20_000_000
"""Turns of the loop in one run: past it the program does not end by itself."""

_RESOLUTION_S = 1e-9
"""Timers that are due within it fire together."""


class Stalled(RuntimeError):
    """All tasks wait, and no timer is left."""


class TooLong(RuntimeError):
    """The run took more turns of the loop than allowed."""


class _Nothing(selectors.BaseSelector):
    """A selector that returns at once without events, and advances the loop's time instead."""

    def __init__(self, steps_max: int, next_timer: Callable[[], float]) -> None:
        self.now = 0.0
        self._next_timer = next_timer  # When it is due.
        self._registered: dict[int, selectors.SelectorKey] = {}  # The loop's own pipe, to which nothing writes.
        self.steps = 0
        self._steps_max = steps_max

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        descriptor = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._registered[descriptor] = selectors.SelectorKey(fileobj, descriptor, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._registered.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.steps += 1
        if self.steps > self._steps_max:
            self.steps = 0  # The cleanup gets as many again.
            raise TooLong(f"more than {self._steps_max} turns of the loop, {self.now:.3f} virtual seconds from the beginning")
        if timeout is None:
            raise Stalled(f"everything waits, {self.now:.3f} virtual seconds from the beginning, and nothing will come")
        if timeout > 0:
            self.now += timeout
        elif 0 < (due := self._next_timer()) - self.now < _RESOLUTION_S:
            self.now = due  # It fires in this turn. Before its time, whoever waits for that time would wait again without end.
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._registered


class VirtualLoop(asyncio.SelectorEventLoop):
    """The event loop; `time()` begins at 0, in virtual seconds."""

    def __init__(self, *, steps_max: int = STEPS_MAX) -> None:
        self._nothing = _Nothing(steps_max, self._next_timer)
        super().__init__(self._nothing)
        self._clock_resolution = _RESOLUTION_S

    def time(self) -> float:
        """The virtual time, in seconds since the loop was made."""
        return self._nothing.now

    def _next_timer(self) -> float:
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return timers[0].when() if timers else self.time()

    @property
    def turns(self) -> int:
        """How many turns the loop took since it was made, or was last granted turns."""
        return self._nothing.steps

    def grant_turns(self) -> None:
        """Allow as many turns again as at the beginning."""
        self._nothing.steps = 0


def run(main: Coroutine[Any, Any, T], *, steps_max: int = STEPS_MAX) -> T:
    """Run `main` to its end in virtual time.

    Raises:
        Stalled: all tasks wait, and no timer is left.
        TooLong: it does not end.
    """
    loop = VirtualLoop(steps_max=steps_max)
    try:
        return loop.run_until_complete(main)
    finally:
        try:
            loop.grant_turns()  # The cleanup gets as many turns again, however the run ended.
            _finish(loop)
        finally:
            loop.close()


def _finish(loop: VirtualLoop) -> None:
    """Cancel the remaining tasks, so that no task outlives its run."""
    # In the order of their creation, which their names count: the order of a set of tasks changes from run to run.
    left = sorted(asyncio.all_tasks(loop), key=lambda task: (len(task.get_name()), task.get_name()))
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())


class WatchedSession(Wrapper):
    """A `Session` that belongs to a life; `errands` are its requests at the node, which outlive it."""

    def __init__(self, session: Session, life: Life, errands: Errands) -> None:
        super().__init__(session)
        self._life = life
        self._errands = errands

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """Answer `request` (`Session.call`); passes two points for a read and three for a write."""
        what = told_request(request)
        await self._life.reach(f"before {what} was sent")
        reply = await self._errands.run(self._carried_out(request, key, durability, stale=stale))
        if isinstance(request, Write):
            await self._life.reach(f"after {what} was carried out, before its answer came")
        await asyncio.sleep(TRIP_S)
        await self._life.reach(f"after the answer to {what}")
        return reply

    async def _carried_out(self, request: Request[R], key: str | None, durability: Durability, *, stale: bool) -> R:
        await asyncio.sleep(TRIP_S)
        return await self._session.call(request, key=key, durability=durability, stale=stale)

    @asynccontextmanager
    async def subscribe(self, subscription: Subscription, /) -> AsyncIterator[AsyncIterator[Push]]:
        """Deliver pushes until the context is left (`Session.subscribe`); passes no point, because it changes nothing and
        requests read the same.
        """
        await self._life.go_on()
        async with self._session.subscribe(subscription) as pushes:
            yield pushes

    async def close(self) -> None:
        """Do nothing: the session inside belongs to the node, and outlives the client."""
        await self._life.go_on()


def told_request(request: Request[Any]) -> str:
    """The kind of a request and its object, as in "save crew/planner"."""
    if isinstance(request, Batch):
        return f"batch of {', '.join(map(told_request, request.writes))}"
    tag = type(request).__struct_config__.tag
    fields = [str(getattr(request, field)) for field in type(request).__struct_fields__[:2]]
    return f"{tag} {'/'.join(fields)}".rstrip()
