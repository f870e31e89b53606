"""A crew: the desired agents of a space, each driven by exactly one of the machines that run the crew.

    crew = shoal.Crew(store, "survey")

    @crew.agent("researcher", count=6, ttl=10)
    async def researcher(ctx): ...

    await crew.run()                # on each machine

Laws:
- An agent is a thread of the space, driven under its lease. Nothing else decides who may drive it.
- The declaration is recorded in the space, and outlives the programs (`shoal.crew.seat`).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal, TypeVar

from msgspec import Struct

from shoal.client.arguments import named
from shoal.client.store import Store
from shoal.crew import declaration
from shoal.crew.declaration import CrewRecord, Declared, Taker
from shoal.crew.driving import Function, Stage
from shoal.crew.machine import Machine, machines_of
from shoal.crew.seat import WAITS, Record
from shoal.errors import InvalidInput, NotFound
from shoal.kinds.step.handle.resume import HELD, Standing
from shoal.names import check_name
from shoal.protocol.requests import LeaseState

CREW_PARAMS_BYTES_MAX = 16 * 1024  # The parameters of one agent, as JSON.

F = TypeVar("F", bound=Function)

EXIT_STATUS = 70
"""Of a process that is ended because an agent's function swallowed its cancellation (EX_SOFTWARE)."""

COUNT_MAX = 100_000
TRIES_MAX = 1000
STANDBY_MAX = 1
CAPACITY_MAX = 100_000
LABELS_MAX = 64

AgentState = Literal["running", "waiting", "retrying", "finished", "failed"]


class AgentStatus(Struct, frozen=True, kw_only=True):
    """One agent of a crew."""

    name: str
    state: AgentState
    reason: str  # What it waits for.
    machine: str  # Where it runs or waits; "" if it does neither.
    version: int  # That is declared.
    fence: int  # The fencing number of its lease; 0 if nobody holds it.
    tries: int  # How often it has raised.
    error: str  # What it raised last.
    pinned: str  # The machine where it belongs; "" if anywhere.


class MachineStatus(Struct, frozen=True, kw_only=True):
    """One machine that runs a crew."""

    name: str
    alive: bool
    drained: bool
    capacity: int
    agents: int  # That it drives.
    labels: tuple[str, ...]
    versions: dict[str, int]


class CrewStatus(Struct, frozen=True):
    """A crew: its agents and its machines, by name."""

    agents: list[AgentStatus]
    machines: list[MachineStatus]


@named
class Crew:
    """The agents of a space. The functions that are declared with `agent` are driven by `run`."""

    def __init__(self, store: Store, space: str) -> None:
        if not isinstance(store, Store):
            raise InvalidInput(
                f"a crew needs a store of shoal.open or shoal.connect, not {type(store).__name__}: agents are coroutines, "
                "so there is no blocking crew. Nothing was written."
            )
        self._store = store
        self._connection = store.connection
        self._space = store.space(space)
        self._program: dict[str, Declared] = {}
        self._functions: dict[str, Function] = {}
        self._machine: Machine | None = None
        self._is_draining = False

    def __repr__(self) -> str:
        return f"Crew({self._space.name!r})"

    # ── declaring ─────────────────────────────────────────────────────────────

    def agent(
        self,
        name: str,
        *,
        count: int = 1,
        ttl: float = 10.0,
        version: int = 1,
        params: Mapping[str, Any] | None = None,
        labels: Collection[str] = (),
        tries: int = 5,
        standby: int = 0,
    ) -> Callable[[F], F]:
        """Declare agents: `@crew.agent("researcher", count=6)` before a coroutine function that takes a `CrewContext`.

        The threads `researcher-1` to `researcher-6` are driven by one call of the function each, on the machines that run the
        crew. When it returns, the agent has finished, until `version` grows; if it raises, it is called again, at most
        `tries` times. An agent of a machine that dies is free `ttl` seconds after its last renewal. `params`: JSON for
        `ctx.params`. `labels`: only machines with all of these run it. With `standby=1`, the machine that would take an
        agent next keeps its last checkpoint loaded. If anything but the function changes, give it a greater `version`, which
        takes over from older programs agent by agent.

        Raises:
            InvalidInput: an argument is out of bounds, the name is declared already, or the function is no coroutine function.
        """
        if callable(name):
            raise InvalidInput(
                'an agent has a name. Nothing was declared. Write `@crew.agent("researcher")` before the function.'
            )
        declared = self._checked(name, count, ttl, version, params, labels, tries, standby)

        def declare(function: F) -> F:
            called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
            if not inspect.iscoroutinefunction(called):
                raise InvalidInput(
                    f"the function of agent {name!r} must be declared with `async def`; got {function!r:.100}. "
                    "Nothing was declared."
                )
            if name in self._program:
                raise InvalidInput(f"agent {name!r} is declared twice in this program. Nothing was declared.")
            self._program[name], self._functions[name] = declared, function
            return function

        return declare

    def _checked(
        self,
        name: str,
        count: int,
        ttl: float,
        version: int,
        params: Mapping[str, Any] | None,
        labels: Collection[str],
        tries: int,
        standby: int,
    ) -> Declared:
        config = self._connection.config
        check_name("thread", f"{name}-{COUNT_MAX}")
        _check_name("agent", name)
        _check_whole("count", count, 0, min(COUNT_MAX, self._connection.config.crew_agents_max))
        _check_whole("version", version, 1, 2**31)
        _check_whole("tries", tries, 1, TRIES_MAX)
        _check_whole("standby", standby, 0, STANDBY_MAX)
        least, most = config.lease_ttl_s_min, config.lease_ttl_s_max
        if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not least <= ttl <= most:
            raise InvalidInput(
                f"a ttl must be {least:g} to {most:g} seconds (lease_ttl_s_min, lease_ttl_s_max); got {ttl!r:.80}. "
                "Nothing was declared.",
                field="ttl",
            )
        return Declared(
            count=count,
            initial=count,
            version=version,
            ttl=float(ttl),
            tries=tries,
            standby=standby,
            labels=_checked_labels(labels),
            params=_checked_params(params, CREW_PARAMS_BYTES_MAX),
        )

    # ── running ───────────────────────────────────────────────────────────────

    async def run(
        self,
        *,
        capacity: int | None = None,
        labels: Collection[str] = (),
        name: str | None = None,
        grace_s: float = 30.0,
        until_finished: bool = False,
        signals: bool = True,
        end: Callable[[], object] = partial(os._exit, EXIT_STATUS),
    ) -> None:
        """Take part as a machine: drive agents until SIGTERM or `drain`, then hand them over, and return.

        Args:
            capacity: How many agents it drives at most; the default is `crew_agents_max`.
            labels: What this machine has, as in {"gpu"}.
            name: Of this machine, unique in the crew. The default is the host and the process.
            grace_s: How long agents have to reach a save when they are given up, and to end when they are cancelled.
            until_finished: Return when all agents of the crew have finished or failed.
            signals: Whether SIGTERM drains; only in the main thread.
            end: Called if a function swallows its cancellation for `grace_s`. The default ends the process with status 70.

        Raises:
            InvalidInput: no agent is declared, it runs already, or an argument is out of bounds.
            CrewConflict: another program declares an agent differently under the same version, or the name is in use.
        """
        if not self._program:
            raise InvalidInput('the crew has no agents. Nothing was started. Declare some: @crew.agent("researcher").')
        if self._machine is not None:
            raise InvalidInput("this crew runs already, or has run. Nothing was started. Make another Crew.")
        config = self._connection.config
        most = CAPACITY_MAX if capacity is not None else config.crew_agents_max
        _check_whole("capacity", config.crew_agents_max if capacity is None else capacity, 0, most)
        if isinstance(grace_s, bool) or not isinstance(grace_s, int | float) or not 0 <= grace_s <= config.lease_ttl_s_max:
            raise InvalidInput(
                f"grace_s must be 0 to {config.lease_ttl_s_max:g} seconds; got {grace_s!r:.80}. Nothing was started."
            )
        machine = _check_name("machine", self._connection.holder if name is None else name)
        taker = Taker(
            capacity=config.crew_agents_max if capacity is None else capacity,
            versions={agent: each.version for agent, each in self._program.items()},
            labels=_checked_labels(labels),
        )
        stage = Stage(self._connection, self._space, self._record(machine), machine, float(grace_s), end)
        self._machine = Machine(stage, self._program, self._functions, taker=taker)
        with _drained_by_sigterm(self.drain) if signals else _nothing():
            if self._is_draining:
                return
            await self._machine.run(until_finished=until_finished)

    def drain(self) -> None:
        """Let `run` hand its agents over, each at its next save or after the grace period, and return. SIGTERM does it, too."""
        self._is_draining = True
        if self._machine is not None:
            self._machine.drain()

    # ── looking, and deciding ─────────────────────────────────────────────────

    async def status(self) -> CrewStatus:
        """The agents and machines of the crew.

        Raises:
            NotFound: no program has declared a crew in this space.
        """
        record = await self._record().read()
        _check_declared(record, self._space.name)
        leases = await self._space.leases()
        return _status(record, leases, await self._held(record))

    async def _held(self, record: CrewRecord) -> dict[str, Standing]:
        """The agents whose threads are paused or wait for approval, with the status of each."""
        found: dict[str, Standing] = {}
        for status in HELD:
            async for name in self._space.threads(status=status):
                if record.declared(name) is not None:
                    found[name] = await self._space.thread(name).status()
        return {name: standing for name, standing in found.items() if standing.status in HELD}

    async def scale(self, agent: str, count: int) -> None:
        """Let there be so many agents of this name, whatever the programs declare. Those with greater numbers end.

        Raises:
            NotFound: no program has declared it.
            InvalidInput: it is no legal count.
        """
        most = self._connection.config.crew_agents_max
        _check_whole("count", count, 0, most)
        await self._record().change(lambda record: declaration.scaled(record, agent, count, agents_max=most))

    async def drain_machine(self, machine: str, *, undo: bool = False) -> None:
        """Let a machine give up its agents and take none, until its process ends, or until `undo`.

        Raises:
            NotFound: no machine of this name runs the crew.
        """
        await self._record().change(lambda record: declaration.drained(record, machine, is_drained=not undo))

    async def move(self, agent: str, *, to: str | None) -> None:
        """Let an agent, such as "researcher-3", go on at another machine, where it stays while that runs; None: anywhere.

        Raises:
            NotFound: there is no such agent, or no such machine.
            InvalidInput: the machine cannot run it.
        """

        async def alter(record: CrewRecord) -> CrewRecord:
            altered = declaration.moved(record, agent, to)
            if to is not None and to not in machines_of(await self._space.leases()):
                raise NotFound(f"machine {to!r} does not run at the moment. Nothing was written.")
            return altered

        await self._record().change(alter)

    async def restart(self, agent: str) -> None:
        """Let an agent that has finished or failed, such as "researcher-3", run again from its last checkpoint.

        Raises:
            NotFound: there is no such agent.
        """
        await self._record().change(lambda record: declaration.restarted(record, agent))

    def _record(self, holder: str | None = None) -> Record:
        return Record(self._store, self._space, holder=holder or self._connection.holder)


def _check_declared(record: CrewRecord, space: str) -> None:
    if not record.agents:
        raise NotFound(f"there is no crew in space {space!r}. Nothing was written. A program declares one: crew.run().")


def _status(record: CrewRecord, leases: Iterable[LeaseState], held: Mapping[str, Standing]) -> CrewStatus:
    threads = {state.lease: state for state in leases if state.thread}
    waits = {state.lease.removeprefix(WAITS): state for state in leases if not state.thread and state.lease.startswith(WAITS)}
    alive = machines_of(leases)
    agents = [_agent(record, name, threads.get(name), waits.get(name), held.get(name)) for name in record.names()]
    machines = [
        MachineStatus(
            name=name,
            alive=name in alive,
            drained=taker.drained,
            capacity=taker.capacity,
            agents=sum(agent.machine == name for agent in agents),
            labels=taker.labels,
            versions=taker.versions,
        )
        for name, taker in sorted(record.machines.items())
    ]
    return CrewStatus(agents, machines)


def _agent(
    record: CrewRecord, name: str, lease: LeaseState | None, wait: LeaseState | None, standing: Standing | None
) -> AgentStatus:
    outcome = record.outcome(name)
    state: AgentState = "running"
    reason = ""
    if outcome is not None:
        state = outcome.state
    elif reason := _reason(lease, wait, standing):
        state = "waiting"
    driver = wait or lease
    return AgentStatus(
        name=name,
        state=state,
        reason=reason,
        machine="" if driver is None else driver.holder,
        version=declaration.declared_agent(record, name).version,
        fence=0 if lease is None else lease.fence,
        tries=0 if outcome is None else outcome.tries,
        error="" if outcome is None else outcome.error,
        pinned=record.pins.get(name, ""),
    )


def _reason(lease: LeaseState | None, wait: LeaseState | None, standing: Standing | None) -> str:
    """The reason for which an agent that has not ended waits; "" if it runs."""
    reasons = []
    if standing is not None:
        asked = "approval" if standing.status == "waiting" else "the end of its pause"
        reasons.append(": ".join(filter(None, (asked, standing.reason))))
    if wait is not None and lease is not None and lease.holder != wait.holder:
        reasons.append(f"its lease, which {lease.holder!r} holds" if lease.holder else "its lease, which another client holds")
    if wait is not None and not reasons:
        reasons.append("something outside of it")
    if wait is None and lease is None:
        reasons.append("a machine")
    return "; ".join(reasons)


# ── checks ────────────────────────────────────────────────────────────────────


def _check_name(kind: str, name: str) -> str:
    """A name of an agent or a machine, which is in the names of leases and on the command line."""
    check_name(kind, name)
    if "/" in name or len(name.encode()) > 200:
        raise InvalidInput(
            f"the name of a crew's {kind} has at most 200 bytes and no /; got {name[:80]!r}. Nothing was written."
        )
    return name


def _check_whole(what: str, number: object, least: int, most: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        raise InvalidInput(
            f"{what} must be a whole number from {least} to {most}; got {number!r:.80}. Nothing was written.", field=what
        )


def _checked_labels(labels: Collection[str]) -> tuple[str, ...]:
    if isinstance(labels, str) or len(labels) > LABELS_MAX:
        raise InvalidInput(
            f'labels must be a set of at most {LABELS_MAX} names, as in {{"gpu"}}; got {labels!r:.80}. Nothing was written.'
        )
    return tuple(sorted({check_name("label", label) for label in labels}))


def _checked_params(params: Mapping[str, Any] | None, bytes_max: int) -> dict[str, Any]:
    try:
        packed = json.dumps(dict(params or {}), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"params must be JSON: {error}. Nothing was declared.", field="params") from None
    if len(packed.encode()) > bytes_max:
        raise InvalidInput(
            f"params may have {bytes_max} bytes as JSON, and have {len(packed.encode())}. Nothing was "
            "declared. Store them in the space, and declare where.",
            field="params",
        )
    found = json.loads(packed)
    assert isinstance(found, dict)
    return found


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _drained_by_sigterm(drain: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGTERM, drain)
    except (NotImplementedError, RuntimeError, ValueError):  # Not the main thread, or a platform without them.
        yield
        return
    try:
        yield
    finally:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGTERM)
