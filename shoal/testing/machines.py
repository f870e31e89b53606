"""The nodes for an agent under test: real nodes over memory, in virtual time.

Laws:
- A power cut takes effect at once: after it nothing becomes durable, is
  answered or leaves the machine. Unsynced data is lost.
- The network delays messages, and loses them only if the machine at its end loses power.
  An agent's restart takes long enough for the network to be quiet again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import TypeVar

from shoal.client.connection import StoreConnection
from shoal.client.store import Store
from shoal.cluster.peering import Peer
from shoal.config import Config
from shoal.errors import ShoalError
from shoal.node.environment import Environment
from shoal.node.node import Node
from shoal.node.peers.quorum import Quorum
from shoal.protocol.requests import Durability, ListLeases
from shoal.protocol.session import Session
from shoal.storage.memory import MemoryStorage
from shoal.testing.lives import Errands

T = TypeVar("T")

START_MS = 1_700_000_000_000
TRIP_S = 0.000_5  # From a client or node to a node.
SYNC_S = 0.002
RESTART_S = 1.0
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
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Keep from the log what nodes report of faults that are made on purpose."""
    log = logging.getLogger("shoal.node")
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
