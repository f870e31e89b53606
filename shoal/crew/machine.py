"""One machine that runs a crew: it makes itself known, and drives the agents that it should.

Laws:
- A machine is alive while it holds the lease `shoal-crew/NAME`. One that does not hold it takes no agents.
- All that it does follows from its view (`shoal.crew.declaration`), which it looks at again after each change.
- However `run` ends, no function runs any more, and each lease is released or ends by itself.

Checkpoints that a machine loads ahead: of the agents that it would take if the machines that drive them died.

Law: what is kept here may be old. The agent's lease is acquired first, and then the head is read: if it is another one, it is
loaded as usual.

The holders of a set of leases, as far as a machine knows them.

Law: this is a hint. It is right soon after each change while a quorum can be reached, and says nothing of leases that were
not read yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing, suppress

from shoal.client.connection import StoreConnection, reread
from shoal.client.store import Space
from shoal.crew.declaration import CrewRecord, Declared, Taker, View, decide, declared, joined, left, parted, standbys
from shoal.crew.driving import Driving, Function, Stage
from shoal.crew.seat import WAITS
from shoal.errors import CrewConflict, LeaseHeld, LeaseLost, NotFound, ShoalError
from shoal.kinds.lease.handle.leases import Lease, Leasing
from shoal.kinds.thread.flows.checkpoints import Checkpoint
from shoal.logs import events
from shoal.logs.lines import log
from shoal.protocol.requests import LeaseState

CREW_MACHINES_MAX = 64  # Machines that run one crew, each with a lease.
CREW_PATIENCE_S = 0.5  # After this, an agent that is still free is taken by any machine with room; up to twice that.
CREW_BALANCE_S = 10.0  # A crew in which nothing has changed for this long moves agents to machines with fewer.
CREW_STANDBY_S = 1.0  # Between two loads of the checkpoint of an agent on standby.

_PAUSE_S = 0.5  # After the nodes could not be reached for `request_timeout_s`.


class Ahead:
    """The newest checkpoints of some agents, loaded again at most every `CREW_STANDBY_S` while they change."""

    def __init__(self, connection: StoreConnection, space: Space) -> None:
        self._connection = connection
        self._space = space
        self._loaded: dict[str, Checkpoint] = {}
        self._keeping: dict[str, asyncio.Task[None]] = {}

    def follow(self, names: Iterable[str]) -> None:
        """Keep the checkpoints of exactly these agents from now on."""
        wanted = dict.fromkeys(names)
        for name in [name for name in self._keeping if name not in wanted]:
            self._keeping.pop(name).cancel()
            self._loaded.pop(name, None)
        for name in wanted:
            if name not in self._keeping:
                self._keeping[name] = asyncio.get_running_loop().create_task(self._keep(name))

    @property
    def names(self) -> list[str]:
        """The agents whose checkpoints are kept."""
        return list(self._keeping)

    def take(self, name: str) -> Checkpoint | None:
        """The checkpoint of an agent, if there is one here."""
        return self._loaded.get(name)

    async def close(self) -> None:
        """Keep nothing any more."""
        tasks = list(self._keeping.values())
        self.follow(())
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, name: str) -> None:
        thread = self._space.thread(name)

        async def read() -> AsyncGenerator[Checkpoint, None]:
            with suppress(NotFound):  # It has saved nothing yet.
                yield await thread.load()

        while not self._connection.closed.is_set():
            with suppress(ShoalError):
                async with aclosing(reread(self._connection, self._space.name, name, "save", read)) as found:
                    async for checkpoint in found:
                        self._loaded[name] = checkpoint
                        await asyncio.sleep(CREW_STANDBY_S)
            await asyncio.sleep(_PAUSE_S)


_UNNAMED = "another client"


class Holders:
    """The holders of leases by name. `stirred` is set with each change."""

    def __init__(self, connection: StoreConnection, leasing: Callable[[str], Leasing], stirred: asyncio.Event) -> None:
        self.holders: dict[str, str] = {}  # "" if it is free; a lease that was not read yet is missing.
        self.last: dict[str, str] = {}  # Of a free lease, who had it last.
        self.free_since_s: dict[str, float] = {}
        self.changed_s = 0.0  # When something changed last.
        self._connection = connection
        self._leasing = leasing
        self._stirred = stirred
        self._watching: dict[str, asyncio.Task[None]] = {}

    def follow(self, names: Iterable[str]) -> None:
        """Watch exactly these leases from now on."""
        wanted = dict.fromkeys(names)
        for name in [name for name in self._watching if name not in wanted]:
            self._watching.pop(name).cancel()
            for known in (self.holders, self.last, self.free_since_s):
                known.pop(name, None)
        for name in wanted:
            if name not in self._watching:
                self._watching[name] = asyncio.get_running_loop().create_task(self._watch(name))

    async def close(self) -> None:
        """Watch nothing any more."""
        tasks = list(self._watching.values())
        self.follow(())
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, name: str) -> None:
        while not self._connection.closed.is_set():
            with suppress(ShoalError):
                async with aclosing(self._leasing(name).watch()) as states:
                    async for state in states:
                        self._seen(name, state)
            await asyncio.sleep(_PAUSE_S)

    def _seen(self, name: str, state: LeaseState) -> None:
        holder = (state.holder or _UNNAMED) if state.held else ""
        before = self.holders.get(name)
        if holder == before:
            return
        now = self._connection.uptime()
        self.holders[name], self.changed_s = holder, now
        if holder:
            self.last[name] = holder
            self.free_since_s.pop(name, None)
        else:
            self.free_since_s[name] = now
        self._stirred.set()


MACHINES = "shoal-crew/"
"""Before the name of a machine, the name of its lease."""

_REST_S = 2.0  # After an agent could not be taken because of an error.
_LOOK_S = 5.0  # Between two looks if nothing changes.
_LEAVE_S = 5.0  # A machine that drains takes at least so long to tell the others, if there is no quorum.
_NAMINGS_MAX = 10  # A machine that stands still while it takes its name tries so often.
_TURNS = 2.2  # A machine waits for its name for so many times its ttl: that of a process that died ends within it.


def machines_of(leases: Iterable[LeaseState]) -> set[str]:
    """The machines that are alive, by the leases that are held."""
    names = (state.lease for state in leases if state.held and not state.thread)
    return {name.removeprefix(MACHINES) for name in names if name.startswith(MACHINES)}


class Machine:
    """One machine's part in a crew. `program` and `functions` are what its program declares."""

    def __init__(
        self, stage: Stage, program: Mapping[str, Declared], functions: Mapping[str, Function], *, taker: Taker
    ) -> None:
        self._stage = stage
        self._program = program
        self._functions = functions
        self._taker = taker
        self._name = stage.machine
        self._space = stage.space
        self._connection = stage.connection
        self._config = self._connection.config
        self._ttl_s = min(each.ttl for each in program.values())
        self._lease: Lease | None = None
        self._record = CrewRecord()
        self._drivings: dict[str, Driving] = {}
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._known: dict[str, str] = {}  # Agent → the machine that drove it when that was known last; "" if none.
        self._resting: dict[str, float] = {}  # Agent → when it may be tried again.
        # How long an agent may be free before this machine takes it out of turn: different for each machine.
        self._patience_s = CREW_PATIENCE_S * (1 + self._connection.entropy(1)[0] / 255)
        self._changed_s = 0.0
        self._stirred = asyncio.Event()
        self._is_draining = False
        self._agents = Holders(self._connection, lambda name: self._space.thread(name).lease(), self._stirred)
        # An agent whose thread is free may wait somewhere: only then it is asked who holds it while it waits.
        self._waits = Holders(self._connection, lambda name: self._space.lease(WAITS + name), self._stirred)
        self._ahead = Ahead(self._connection, self._space)
        self._machines = Holders(self._connection, self._leasing, self._stirred)

    def drain(self) -> None:
        """Give up all agents, each at its next save or after the grace period, and take no more."""
        self._is_draining = True
        self._stirred.set()

    async def run(self, *, until_finished: bool) -> None:
        """Take part until it is drained, or, with `until_finished`, until all agents have ended.

        Raises:
            CrewConflict: the declaration contradicts another program's, or another process has the name.
            ShoalError: it could not make itself known.
        """
        self._lease = await self._named()
        loop = asyncio.get_running_loop()
        helpers: list[asyncio.Task[None]] = []
        try:
            self._record = await self._join(declares=True)
            helpers = [loop.create_task(self._follow()), loop.create_task(self._stay())]
            self._changed_s = self._connection.uptime()
            while not self._is_over(until_finished=until_finished):
                self._stirred.clear()
                self._reconcile()
                await self._until_stirred()
            await self._leave()
            while self._drivings:
                self._stirred.clear()
                await self._stirred.wait()
        finally:
            await self._stop(helpers)

    # ── becoming known ────────────────────────────────────────────────────────

    def _leasing(self, machine: str, *, wait_s: float = 0.0) -> Leasing:
        return self._space.lease(MACHINES + machine, ttl=self._ttl_s, wait=wait_s, holder=machine)

    async def _named(self) -> Lease:
        for nth in range(_NAMINGS_MAX):
            try:
                return await self._leasing(self._name, wait_s=_TURNS * self._ttl_s).acquire()
            except LeaseHeld:
                raise CrewConflict(
                    f"another process runs this crew as machine {self._name!r}. Nothing was written. Give each a name of its "
                    "own: run(name=…)."
                ) from None
            except LeaseLost as error:
                if nth + 1 == _NAMINGS_MAX:
                    raise
                log(events.MACHINE_STOOD_STILL, machine=self._name, reason=error.message)
        raise AssertionError

    async def _join(self, *, declares: bool) -> CrewRecord:
        async def alter(record: CrewRecord) -> CrewRecord:
            # Within the change: a machine that joins has its lease before, and is in the record behind it.
            alive = machines_of(await self._space.leases())
            if declares:
                record = declared(record, self._program, agents_max=self._config.crew_agents_max)
            elif self._name in record.machines:
                return record
            return joined(record, self._name, self._taker, alive=alive, machines_max=CREW_MACHINES_MAX)

        return await self._stage.record.change(alter)

    async def _stay(self) -> None:
        """Acquire the lease of this machine again whenever it is lost."""
        while True:
            if self._lease is not None:
                await self._lease.ended.wait()
                log(events.MACHINE_UNHEARD, machine=self._name)
                self._lease = None
            try:
                lease = await self._leasing(self._name, wait_s=_TURNS * self._ttl_s).acquire()
                await self._join(declares=False)
                self._lease = lease
                self._stirred.set()
            except ShoalError as error:
                log(events.MACHINE_TROUBLE, machine=self._name, reason=error.message)
                await asyncio.sleep(_PAUSE_S)

    async def _leave(self) -> None:
        """Others count on this machine no more, and all agents are given up."""
        for driving in self._drivings.values():
            driving.leave("the machine leaves the crew")
        with suppress(ShoalError, TimeoutError):
            async with asyncio.timeout(max(self._stage.grace_s, _LEAVE_S)):
                await self._stage.record.change(lambda record: left(record, self._name))

    async def _stop(self, helpers: list[asyncio.Task[None]]) -> None:
        tasks = [*helpers, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._agents.close()
        await self._waits.close()
        await self._machines.close()
        await self._ahead.close()
        if self._lease is not None:
            with suppress(ShoalError):
                await self._lease.release()

    # ── the view, and what follows from it ────────────────────────────────────

    async def _follow(self) -> None:
        while True:
            try:
                async with aclosing(self._stage.record.follow()) as records:
                    async for record in records:
                        self._see(record)
            except ShoalError as error:
                log(events.MACHINE_TROUBLE, machine=self._name, reason=error.message)
            await asyncio.sleep(_PAUSE_S)

    def _see(self, record: CrewRecord) -> None:
        self._record, self._changed_s = record, self._connection.uptime()
        self._stirred.set()

    def _is_over(self, *, until_finished: bool) -> bool:
        if self._is_draining or self._connection.closed.is_set():
            return True
        return until_finished and not self._drivings and bool(self._record.agents) and not self._record.wanted()

    def _reconcile(self) -> None:
        record, now = self._record, self._connection.uptime()
        self._agents.follow(record.names())
        self._waits.follow([name for name in record.names() if self._agents.holders.get(name) == ""])
        self._machines.follow(record.machines)
        self._resting = {name: until_s for name, until_s in self._resting.items() if until_s > now}
        drivers = self._drivers()
        if any(self._known.get(name) != driver for name, driver in drivers.items()):
            self._changed_s = now  # An agent that only waits, or goes on, is not on the move.
        self._known = {name: at for name, at in (self._known | drivers).items() if record.declared(name) is not None}
        view = View(
            self._name,
            record,
            alive={name for name, holder in self._machines.holders.items() if holder == name},
            holders={name: holder for name, holder in drivers.items() if name not in self._resting},
            last={**self._agents.last, **self._waits.last},
            mine=self._drivings.keys(),
            leaving={name for name, driving in self._drivings.items() if driving.is_leaving},
            overdue={name for name, since_s in self._waits.free_since_s.items() if since_s + self._patience_s <= now},
            calm=now - self._quiet_since_s() >= CREW_BALANCE_S,
        )
        decision = decide(view)
        for name, why in decision.give.items():
            self._drivings[name].leave(why)
        if self._is_present:
            for name in decision.take:
                self._take(name)
        free = [name for name in self._ahead.names if self._is_free(name) and name not in self._drivings]
        self._ahead.follow([*standbys(view), *free])

    def _is_free(self, name: str) -> bool:
        """Whether nobody is known to drive an agent."""
        return self._agents.holders.get(name) == "" and not self._waits.holders.get(name)

    def _drivers(self) -> dict[str, str]:
        """The machines that drive agents, or have them wait; "" for those that are free."""
        agents, waits = self._agents.holders, self._waits.holders
        return {name: holder or waits[name] for name, holder in agents.items() if holder or name in waits}

    @property
    def _is_present(self) -> bool:
        return self._lease is not None and not self._lease.ended.is_set()

    def _take(self, name: str) -> None:
        agent = parted(name)[0]
        version, loaded = self._program[agent].version, self._ahead.take(name)
        driving = Driving(self._stage, name, self._functions[agent], version, loaded=loaded)
        self._drivings[name] = driving
        task = asyncio.get_running_loop().create_task(self._drive(driving))
        self._tasks[task] = name
        task.add_done_callback(self._dropped)

    async def _drive(self, driving: Driving) -> None:
        try:
            await driving.run()
        except ShoalError as error:
            log(events.AGENT_TROUBLE, agent=driving.name, reason=error.message)
            await asyncio.sleep(_REST_S)

    def _dropped(self, task: asyncio.Task[None]) -> None:
        name = self._tasks.pop(task)
        del self._drivings[name]
        now = self._connection.uptime()
        # The others, and what this machine knows of the lease, come first.
        self._resting[name], self._changed_s = now + self._patience_s, now
        self._stirred.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log(events.AGENT_BUG, agent=name, bug=error)

    def _quiet_since_s(self) -> float:
        return max(self._changed_s, self._machines.changed_s)

    async def _until_stirred(self) -> None:
        now = self._connection.uptime()
        due = [since_s + self._patience_s for since_s in self._waits.free_since_s.values()]
        due += [*self._resting.values(), self._quiet_since_s() + CREW_BALANCE_S]
        wait_s = min((at_s - now for at_s in due if at_s > now), default=_LOOK_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(wait_s, _LOOK_S)):
                await self._stirred.wait()
