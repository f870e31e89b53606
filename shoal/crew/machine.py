"""One machine that runs a crew: it makes itself known, and drives the agents that it should.

Laws:
- A machine is alive while it holds the lease `shoal-crew/NAME`. One that does not hold it takes no agents.
- All that it does follows from its view (`shoal.crew.placement`), which it looks at again after each change.
- However `run` ends, no function runs any more, and each lease is released or ends by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import aclosing, suppress

from shoal.crew.ahead import Ahead
from shoal.crew.declaration import CrewRecord, Declared, Taker, declared, joined, left, parted
from shoal.crew.driving import Driving, Function, Stage
from shoal.crew.holders import Holders
from shoal.crew.placement import View, decide, standbys
from shoal.crew.seat import WAITS
from shoal.errors import CrewConflict, LeaseHeld, LeaseLost, ShoalError
from shoal.kinds.lease.handle.leases import Lease, Leasing
from shoal.protocol.requests import LeaseState

MACHINES = "shoal-crew/"
"""Before the name of a machine, the name of its lease."""

_log = logging.getLogger("shoal.crew")

_PAUSE_S = 0.5  # Before something that failed is tried again.
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
        self._patience_s = self._config.crew_patience_s * (1 + self._connection.entropy(1)[0] / 255)
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
                _log.warning("machine %s stood still while it took its name, and tries again: %s", self._name, error)
        raise AssertionError

    async def _join(self, *, declares: bool) -> CrewRecord:
        async def alter(record: CrewRecord) -> CrewRecord:
            # Within the change: a machine that joins has its lease before, and is in the record behind it.
            alive = machines_of(await self._space.leases())
            if declares:
                record = declared(record, self._program, agents_max=self._config.crew_agents_max)
            elif self._name in record.machines:
                return record
            return joined(record, self._name, self._taker, alive=alive, machines_max=self._config.crew_machines_max)

        return await self._stage.record.change(alter)

    async def _stay(self) -> None:
        """Acquire the lease of this machine again whenever it is lost."""
        while True:
            if self._lease is not None:
                await self._lease.ended.wait()
                _log.warning("machine %s was not heard of for its ttl; it takes no agents until it is back", self._name)
                self._lease = None
            try:
                lease = await self._leasing(self._name, wait_s=_TURNS * self._ttl_s).acquire()
                await self._join(declares=False)
                self._lease = lease
                self._stirred.set()
            except ShoalError as error:
                _log.warning("machine %s: %s", self._name, error)
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
                _log.warning("machine %s: %s", self._name, error)
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
            calm=now - self._quiet_since_s() >= self._config.crew_balance_s,
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
            _log.warning("agent %s: %s", driving.name, error)
            await asyncio.sleep(_REST_S)

    def _dropped(self, task: asyncio.Task[None]) -> None:
        name = self._tasks.pop(task)
        del self._drivings[name]
        now = self._connection.uptime()
        # The others, and what this machine knows of the lease, come first.
        self._resting[name], self._changed_s = now + self._patience_s, now
        self._stirred.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("agent %s: a bug in Shoal", name, exc_info=error)

    def _quiet_since_s(self) -> float:
        return max(self._changed_s, self._machines.changed_s)

    async def _until_stirred(self) -> None:
        now = self._connection.uptime()
        due = [since_s + self._patience_s for since_s in self._waits.free_since_s.values()]
        due += [*self._resting.values(), self._quiet_since_s() + self._config.crew_balance_s]
        wait_s = min((at_s - now for at_s in due if at_s > now), default=_LOOK_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(wait_s, _LOOK_S)):
                await self._stirred.wait()
