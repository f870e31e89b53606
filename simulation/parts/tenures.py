"""Threads under leases: agents that hold one, stand still for longer than it lasts, die, and hand it over.

Laws (invariant 23):
- Once somebody was told to hold a lease, nobody counts on an earlier term of it; fencing numbers grow.
- What was acknowledged to a holder, held by a quorum, is there when the next one begins, and nothing is acknowledged later.
- Healed, a lease can be had within bounded time, whatever its holders do.

The clocks of all machines and agents run too fast or too slow, by at most what the configuration says.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from random import Random
from typing import NamedTuple

from shoal.client.connection import StoreConnection
from shoal.client.store import Space, Store
from shoal.errors import Disconnected, HeadMoved, LeaseHeld, LeaseLost, NotFound, ShoalError
from shoal.kinds.lease.handle.leases import Lease
from shoal.kinds.thread.handle.thread import Thread
from shoal.protocol.requests import AcquireLease, Durability, R, ReleaseLease, RenewLeases, Request
from shoal.protocol.session import Session, Wrapper
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE
from simulation.world.host import uptime_of

TENURE = "23"

_TTLS_S = (1.0, 1.5, 3.0)
_PAUSES = (0.5, 0.9, 1.02, 1.2, 1.5, 2.5)  # Of the ttl.
_LOOK_S = 0.02
_HAD_S_MAX = 120.0
"""Healed, a lease is had within this virtual time, however many died while they waited."""


class Kept(NamedTuple):
    """A write that was acknowledged to the holder of a term."""

    fence: int
    number: int
    told: Told


class Begun(NamedTuple):
    """What the holder of a term found when it began."""

    fence: int
    numbers: frozenset[int]


class Tenures:
    """All terms and saves, by thread."""

    kinds: tuple[ActKind, ...] = ("hold-lease", "save-unleased")

    def __init__(self) -> None:
        self.granted: defaultdict[str, int] = defaultdict(int)  # The last fencing number that anybody was told.
        self.kept: defaultdict[str, list[Kept]] = defaultdict(list)
        self.begun: defaultdict[str, list[Begun]] = defaultdict(list)
        self.numbers = 0
        self.agents: list[_Agent] = []

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        self.agents.append(agent)
        return {"hold-lease": agent.hold, "save-unleased": agent.save_unleased}

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        for agent in self.agents:
            await agent.end()
        found = []
        for thread, kept in sorted(self.kept.items()):
            found += [
                Violation(TENURE, f"{thread}: term {begun.fence} began without write {each.number} of term {each.fence}")
                for each in kept
                if each.told.is_owed(losses)
                for begun in self.begun[thread]
                if each.fence < begun.fence and each.number not in begun.numbers
            ]
        for thread in sorted(self.granted):
            found += await self._had(session, thread)
        return found

    async def _had(self, session: Session, thread: str) -> list[Violation]:
        token = (len(thread) + self.granted[thread]).to_bytes(16, "big").hex()
        ends_at = _now() + _HAD_S_MAX
        error = "it waited in vain"
        while _now() < ends_at:
            try:
                reply = await session.call(AcquireLease(SPACE, thread, 1000, "judge", token, wait=2000, thread=True))
            except ShoalError as refused:
                error = refused.message
                await asyncio.sleep(0.1)
                continue
            if reply.granted:
                if reply.fence <= self.granted[thread]:
                    return [Violation(TENURE, f"{thread}: term {reply.fence} comes after {self.granted[thread]}")]
                self.granted[thread] = reply.fence
                with suppress(ShoalError):
                    await session.call(ReleaseLease(SPACE, thread, reply.fence, token, thread=True))
                return []
        return [Violation(TENURE, f"{thread}: healed, nobody gets its lease: {error}")]


class Gate(Wrapper):
    """The session of a process that stands still now and then: what it has begun to send leaves later."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.goes = asyncio.Event()
        self.goes.set()
        self.loses_renewals = False

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """See `Session.call`."""
        await self.goes.wait()
        if self.loses_renewals and isinstance(request, RenewLeases):
            raise Disconnected("its renewals are lost. Nothing was sent. Try again.")
        reply = await self._session.call(request, key=key, durability=durability, stale=stale)
        await self.goes.wait()
        return reply

    async def close(self) -> None:
        """The session is another's to close."""


class _Agent:
    def __init__(self, tenures: Tenures, bench: Bench) -> None:
        self._tenures = tenures
        self._bench = bench
        self._lives = 0
        self._stores: list[Store] = []

    async def hold(self, act: Act, random: Random) -> None:
        """Take the lease, save some times, and end in one way or another."""
        thread, gate = self._process()
        ttl_s = random.choice(_TTLS_S)
        wait_s = random.choice((0.0, 2.0, 12.0))
        holder = f"{self._bench.client.name}/{self._lives}"
        claim = asyncio.ensure_future(thread.lease(ttl=ttl_s, wait=wait_s, holder=holder).acquire())
        if wait_s and random.random() < 0.2:
            await asyncio.wait([claim], timeout=random.uniform(0, 2))
            if not claim.done():
                await self._die(thread, None, gate, random)
                claim.cancel()
                return
        try:
            lease = await claim
        except (LeaseHeld, LeaseLost):  # Somebody has it, or it ended before its answer came.
            self._bench.did("not the lease")
            return
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._granted(lease)
        watching = asyncio.create_task(self._watch(lease, gate))
        try:
            await self._work(thread, lease, gate, random)
            ending = self._leave if random.random() < 0.6 else self._die
            await ending(thread, lease, gate, random)
        except LeaseLost:
            self._bench.did(f"no more in term {lease.fence}")
            await lease.release()
        except ShoalError as error:
            self._bench.refused(error)
            ending = self._leave if random.random() < 0.5 else self._die
            await ending(thread, lease, gate, random)
            raise
        finally:
            watching.cancel()

    def _process(self) -> tuple[Thread, Gate]:
        self._lives += 1
        connection, gate = begun(self._bench)

        async def nothing() -> None:
            pass

        store = Store(connection, close=nothing)
        self._stores.append(store)
        return Space(connection, SPACE).thread(self._bench.name), gate

    def _granted(self, lease: Lease) -> None:
        before = self._tenures.granted[self._bench.name]
        if lease.fence <= before:
            self._bench.violated(TENURE, f"term {lease.fence} is granted after {before}")
        self._tenures.granted[self._bench.name] = max(before, lease.fence)
        self._bench.did(f"as the holder in term {lease.fence}")

    async def _watch(self, lease: Lease, gate: Gate) -> None:
        """All the time, while it does not stand still, it may have effects outside."""
        while not lease.ended.is_set():
            if gate.goes.is_set():
                with suppress(LeaseLost):
                    self._check(lease)
            await asyncio.sleep(_LOOK_S)

    def _check(self, lease: Lease) -> None:
        """Before each effect outside."""
        lease.check()
        newest = self._tenures.granted[self._bench.name]
        if not lease.ended.is_set() and lease.fence < newest:
            self._bench.violated(TENURE, f"the holder of term {lease.fence} counts on it, after {newest} began")

    async def _work(self, thread: Thread, lease: Lease, gate: Gate, random: Random) -> None:
        numbers = {event.event["number"] async for event in thread.journal.read()}
        with suppress(NotFound):
            numbers |= set((await thread.load()).state.get("numbers", []))
        self._tenures.begun[self._bench.name].append(Begun(lease.fence, frozenset(numbers)))
        gate.loses_renewals = random.random() < 0.3
        for _ in range(random.randint(1, 5)):
            write = self._saving if random.random() < 0.3 else self._appending
            work = await write(thread, lease)
            if random.random() < 0.4:
                self._pause(gate, lease._tenure.ttl_s * random.choice(_PAUSES))
            await work()
            await asyncio.sleep(random.choice((0.0, 0.05, 0.4, 1.0)))

    async def _saving(self, thread: Thread, lease: Lease) -> Callable[[], Awaitable[None]]:
        number = self._number()
        try:
            before = (await thread.load()).state.get("numbers", [])
        except NotFound:
            before = []

        async def save() -> None:
            with suppress(HeadMoved):  # An earlier save of unknown outcome has arrived.
                await thread.save({"numbers": [*before, number]})
                self._kept(lease, number)

        return save

    async def _appending(self, thread: Thread, lease: Lease) -> Callable[[], Awaitable[None]]:
        number = self._number()

        async def append() -> None:
            if number % 3:
                await thread.journal.append({"number": number})
            else:
                async with Space(thread._checkout.connection, SPACE).batch() as batch:
                    batch.thread(thread.name).journal.append({"number": number})
            self._kept(lease, number)

        return append

    def _number(self) -> int:
        self._tenures.numbers += 1
        return self._tenures.numbers

    def _kept(self, lease: Lease, number: int) -> None:
        newest = self._tenures.granted[self._bench.name]
        self._tenures.kept[self._bench.name].append(Kept(lease.fence, number, self._bench.told("quorum")))
        self._bench.did(f"write {number} in term {lease.fence}, as {newest} is the newest,")

    def _pause(self, gate: Gate, for_s: float) -> None:
        """Stand still: what it begins to send leaves later."""
        gate.goes.clear()
        self._bench.did(f"nothing for {for_s:.1f} s")
        asyncio.get_running_loop().call_later(for_s, gate.goes.set)

    async def _leave(self, thread: Thread, lease: Lease, gate: Gate, random: Random) -> None:
        last = None
        if random.random() < 0.4:  # It does not wait for its last write.
            work = await self._appending(thread, lease)
            last = asyncio.ensure_future(work())
            await asyncio.sleep(random.choice((0.0, 0.002, 0.01)))
        with suppress(ShoalError):
            if random.random() < 0.3:
                with suppress(NotFound, LeaseLost):
                    await lease.handover(to=f"agent-{random.randrange(3)}/{random.randint(1, 5)}")
            await lease.release()
        if last is not None:
            await last

    async def _die(self, thread: Thread, lease: Lease | None, gate: Gate, random: Random) -> None:
        """Nothing leaves it any more."""
        self._bench.did("no more: it is dead")
        gate.goes = asyncio.Event()
        keeper = thread._checkout.connection.keepers.get("leases")
        task = getattr(keeper, "_task", None)
        if task is not None:
            task.cancel()

    async def save_unleased(self, act: Act, random: Random) -> None:
        """Save without the lease: refused while somebody is known to hold it, and beside what others save otherwise."""
        thread = self._bench.space.thread(self._bench.name)
        try:
            await thread.update({"by": self._bench.client.name}, branch="unleased")
        except LeaseHeld:
            self._bench.did("no save without the lease")
        except ShoalError as error:
            self._bench.refused(error)
            raise

    async def end(self) -> None:
        """End what processes that died have left."""
        stores, self._stores = self._stores, []
        for store in stores:
            await ended(store.connection)


def begun(bench: Bench) -> tuple[StoreConnection, Gate]:
    """A process of an agent's client, with a clock of its own."""
    client = bench.client
    gate = Gate(bench.space._connection.session)
    uptime = uptime_of(client.cluster.network.now, client.random, client.config)
    return StoreConnection(gate, client.config, "local", client.random.randbytes, uptime=uptime), gate


async def ended(connection: StoreConnection) -> None:
    """End what a process that died has left."""
    keeper = connection.keepers.get("leases")
    tasks = [getattr(keeper, "_task", None), *getattr(keeper, "_others", ())]
    for task in tasks:
        if task is not None:
            task.cancel()
    await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)


def _now() -> float:
    return asyncio.get_running_loop().time()
