"""Several real nodes in one process, over memory storage and wires that can be cut.

Laws:
- Nodes meet only through `shoal.cluster.peering`: what works here works over sockets.
- A wire carries messages whole, in order and at most once; cutting it loses what was
  under way. `spoil` sees each message, and may change it or drop it; `is_full` says for which the
  queue of a link has no room; `jumble` sees all that waits on a wire, and may reorder and repeat it.
- A crash keeps what was synced and nothing else.
- If peers are missing from the start, the nodes have directories that were admitted before: they hold nothing.
- It runs in virtual time, so that no time-out passes because the machine is busy.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import msgspec

from shoal.client.connection import StoreConnection
from shoal.client.store import Store
from shoal.cluster.peering import Identity
from shoal.config import Config
from shoal.errors import PeerRefused, ShoalError
from shoal.node.node import Node
from shoal.node.peers.replicator import Replicator
from shoal.protocol.bookmark import Bookmark
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.testing.machines import VirtualLoop
from simulation.bounds import altered, parted
from simulation.world.environment import SimulatedEnvironment

ADMITTED = {keys.meta("member"): b"\x02"}
"""The rows of a member's directory that holds nothing else."""
_POLL_S = 0.002
_ANY_SKEW_MS = 1 << 50  # Wall clocks stand still here while the loop's goes on, unless a test says that they are compared.
Spoil = Callable[[str, str, bytes], bytes | None]  # From, to, message; None drops it.
Jumble = Callable[[deque[bytes]], None]


class Wire:
    """One direction of a link: an `Outlet` of its sender."""

    def __init__(self, fleet: Fleet, source: Member, target: Member) -> None:
        self.address = target.address
        self.refusal: ShoalError | None = None
        self._fleet = fleet
        self._source, self._target = source, target
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._stirred = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        self._task = asyncio.create_task(self._carry())

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def offer(self, message: bytes, /) -> bool:
        is_over = self._queue and self._bytes + len(message) > self._source.config.peer_send_bytes_max
        if is_over or self._fleet.is_full(message):
            return False
        self._queue.append(message)
        self._bytes += len(message)
        self._stirred.set()
        return True

    async def _carry(self) -> None:
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            while self._queue:
                await self.open.wait()
                message = self._next()
                spoilt = self._fleet.spoil(self._source.name, self._target.name, message)
                if spoilt is None:
                    continue
                try:
                    await self._target.replicator.received(self._source.replicator.identity(), spoilt)
                except ShoalError as error:
                    self.refusal = error
                    self._fleet.refusals.append(error)
                    self._source.replicator.unlinked(self._target.replicator.identity(), self)
                    return

    def _next(self) -> bytes:
        if self._fleet.jumble is not None:
            self._fleet.jumble(self._queue)
        message = self._queue.popleft()
        self._bytes = sum(map(len, self._queue))
        return message

    async def cut(self) -> None:
        """
        Raises:
            Exception: what the target raised and should not have: nothing that a peer sends may stop a node.
        """
        self._task.cancel()
        for ended in await asyncio.gather(self._task, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


class Member:
    """A node of the fleet; `crash` and `start` change what is behind it."""

    def __init__(self, name: str, storage: MemoryStorage, config: Config, seed: int) -> None:
        self.name = name
        self.address = config.advertise
        self.config = config
        self.storage = storage
        self.simulated = SimulatedEnvironment(seed)
        loop = asyncio.get_running_loop()
        environment = dataclasses.replace(self.simulated.environment, monotonic=loop.time, uptime=loop.time)
        self.node = Node(storage, config=config, environment=environment)
        self._environment = environment

    @property
    def replicator(self) -> Replicator:
        assert self.node.replicator is not None
        return self.node.replicator

    def store(self, bookmark: Bookmark | None = None) -> Store:
        """A client of this node."""
        session = self.node.session(bookmark)
        environment = self._environment
        connection = StoreConnection(session, self.config, "local", environment.entropy, uptime=environment.uptime)
        return Store(connection, close=session.close)

    def digest(self) -> bytes:
        return self.replicator.quorum.digest

    def identity(self) -> Identity:
        return self.replicator.identity()


class Fleet:
    """`names` are the nodes; all are linked, and none is a learner, to begin with. Use as an asynchronous context.

    Set `real_time` before if it has to run on a loop whose time the machine sets, for what needs sockets.
    """

    real_time = False

    def __init__(self, names: str = "abc", *, seed: int = 1, **settings: object) -> None:
        self._names = names
        self._seed = seed
        join = ",".join(f"{name}:1" for name in names)
        base: dict[str, object] = {
            "tick_s": 0.005,
            "sync_interval_s": 0.02,
            "session_wait_s": 0.3,
            "quorum_timeout_s": 0.3,
            "join": join,
        }
        base["clock_skew_max_ms"] = _ANY_SKEW_MS
        mine, bounds = parted(base | settings)
        self._config = msgspec.convert(mine, Config)
        self._bounds = altered(**bounds)
        self.members: dict[str, Member] = {}
        self._wanted: dict[str, list[str]] = {}  # The addresses that each node dials, by its name.
        self.apart: set[tuple[str, str]] = set()  # Links that `dial` does not make.
        self.wires: dict[tuple[str, str], Wire] = {}
        self.refusals: list[ShoalError] = []  # For which a node closed a wire.
        self.spoil: Spoil = lambda source, target, message: message
        self.is_full: Callable[[bytes], bool] = lambda message: False
        self.jumble: Jumble | None = None

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    async def __aenter__(self) -> Fleet:
        assert self.real_time or isinstance(asyncio.get_running_loop(), VirtualLoop), "mark the test virtual_time"
        self._bounds.__enter__()
        missing = set(self._config.join.split(",")) - {"", *(f"{name}:1" for name in self._names)}
        for name in self._names:
            self._make(name, MemoryStorage(ADMITTED) if missing and not self._config.cluster_size else MemoryStorage())
        for name in self._names:
            self.link_all(name)
        replicators = [member.node.replicator for member in self.members.values()]
        if all(found is not None and found.quorum.size <= len(self._names) for found in replicators):
            await self.admitted()
        return self

    async def __aexit__(self, *_: object) -> None:
        for wire in self.wires.values():
            await wire.cut()
        for member in self.members.values():
            await member.node.stop()
        self._bounds.__exit__(None, None, None)

    def _make(self, name: str, storage: MemoryStorage, join: str = "") -> Member:
        self._seed += 1
        config = msgspec.structs.replace(self._config, advertise=f"{name}:1", join=join or self._config.join)
        made = self.members[name] = Member(name, storage, config, self._seed)
        self._wanted[name] = made.replicator.memberships.addresses if made.node.replicator is not None else []
        if made.node.replicator is not None:
            made.replicator.memberships.link_by(lambda addresses: self._wanted.update({name: list(addresses)}))
        return made

    async def dial(self) -> None:
        """Make each link that a node wants and another takes, and end those that it does not want; call it again and again."""
        for source, addresses in list(self._wanted.items()):
            for target in list(self.members):
                if source not in self.members or source == target or (source, target) in self.apart:
                    continue
                if f"{target}:1" not in addresses:
                    await self.cut(source, target)
                    continue
                wire = self.wires.get((source, target))
                if wire is not None and wire.refusal is not None:
                    await self.cut(source, target)
                if (source, target) not in self.wires:
                    try:
                        self.link(source, target)
                    except PeerRefused as error:
                        self.members[source].replicator.refused(f"{target}:1", error, self.members[target].identity())

    async def until(self, is_true: Callable[[], object], seconds: float = 120.0, *, look_s: float = _POLL_S) -> None:
        """Return once this is true; nodes dial meanwhile.

        Raises:
            TimeoutError: it never is.
        """
        async with asyncio.timeout(seconds):
            while not is_true():
                await self.dial()
                await asyncio.sleep(look_s)

    def link(self, source: str, target: str) -> Wire:
        """Let `source` send to `target`."""
        a, b = self.members[source], self.members[target]
        b.replicator.admit(a.identity())
        wire = self.wires[source, target] = Wire(self, a, b)
        a.replicator.linked(b.identity(), wire)
        return wire

    def link_all(self, name: str) -> None:
        for other in self.members:
            for pair in ((name, other), (other, name)):
                if name != other and pair not in self.wires:
                    self.link(*pair)

    async def cut(self, source: str, target: str) -> None:
        """Lose the wire from `source` to `target`, and what is on it."""
        wire = self.wires.pop((source, target), None)
        if wire is not None:
            await wire.cut()
            self.members[source].replicator.unlinked(self.members[target].identity(), wire)

    async def set_back(self, name: str, to: MemoryStorage) -> Member:
        """Set a node's device back as a whole, which the node cannot notice. It is not linked."""
        to.identity = (await self.crash(name)).identity
        return self.start(name, to, linked=False)

    async def isolate(self, name: str) -> None:
        for other in list(self.members):
            await self.cut(name, other)
            await self.cut(other, name)

    async def crash(self, name: str, keep: int | None = 0) -> MemoryStorage:
        """Cut the power: what was not synced is gone. Returns what is left, for `start`."""
        await self.isolate(name)
        member = self.members.pop(name)
        for source, target in [pair for pair in self.wires if name in pair]:  # Dialled while the others were cut.
            wire = self.wires.pop((source, target))
            await wire.cut()
            if source in self.members:
                self.members[source].replicator.unlinked(member.identity(), wire)
        left = member.storage.crash(keep)
        with suppress(ShoalError):  # Its storage is dead.
            await member.node.stop()
        return left

    def start(self, name: str, storage: MemoryStorage, *, linked: bool = True, join: str = "") -> Member:
        made = self._make(name, storage, join)
        if linked:
            self.link_all(name)
        return made

    async def converged(self, seconds: float = 10.0) -> None:
        """Return once all nodes hold the same operations durably, those included that one is still writing.

        Raises:
            TimeoutError: they do not.
        """
        async with asyncio.timeout(seconds):
            while self._is_writing() or len({member.digest() for member in self.members.values()}) > 1:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)

    async def durable(self, seconds: float = 10.0) -> None:
        """Return once everything that nodes wrote is durable, so that a crash loses nothing.

        Raises:
            TimeoutError: it is not.
        """
        async with asyncio.timeout(seconds):
            while self._is_writing():  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)

    def _is_writing(self) -> bool:
        return any(member.node.writes_pending for member in self.members.values())

    async def admitted(self, seconds: float = 10.0) -> None:
        """Return once no node is a learner.

        Raises:
            TimeoutError: one still is.
        """
        async with asyncio.timeout(seconds):
            while any(member.replicator.quorum.is_learner for member in self.members.values()):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)

    def rows(self, name: str) -> dict[bytes, bytes]:
        """What a node stores, but for its own identity and what is derived."""
        return {
            key: value for key, value in self.members[name].storage.scan(b"", None) if key[:1] not in (b"M", b"D", b"G", b"X")
        }
