"""A machine's hold of one agent, by leases; and the record of a crew in the store, which is changed under one.

The record of a crew in the store: the state of the thread `shoal-crew` of its space, changed under that thread's lease.

Laws:
- Changes are linearizable: each is made on the state that the one before has left, and none is lost. A holder of the lease
  catches up with a quorum before it reads, and its saves are fenced and held by a quorum.
- Of concurrent heads the one with the greatest fencing number counts: another was saved by a holder that was told that it
  may have failed. The next change ends the fork.

A machine's hold of one agent: the lease of its thread while the agent works, and one of its own name while it waits.

Laws:
- Until the seat is released one of the two leases is held: each is given up only after the other was acquired. A machine
  that has acquired the lease of the thread starts the agent only if nobody holds the lease of its wait. So an agent that
  waits has one driver, too, and is free when that one dies.
- While the agent waits, its thread is free for people. A wait that is over has the lease of the thread again, behind a quorum,
  so whatever people were acknowledged meanwhile is there; and nobody else has driven the agent, or the seat is lost.
- If somebody else holds the lease of the thread then, the agent waits for it for `CREW_RETURN_S`. After that the seat is lost:
  the agent is started again, from its last checkpoint, once the lease is free.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from types import TracebackType
from typing import Any

from shoal.client.connection import StoreConnection, reread
from shoal.client.store import Space, Store
from shoal.crew.declaration import CrewRecord, from_channels, to_channels
from shoal.errors import Forbidden, LeaseHeld, LeaseLost, NoQuorum, NotFound, ShoalError
from shoal.kinds.lease.handle.leases import Lease, Leasing, go_on_as, tenure_of
from shoal.kinds.lease.handle.tenure import Tenure, keeper_of
from shoal.kinds.step.flows import catch_up
from shoal.kinds.thread.flows.checkpoints import Checkpoint, encode_channels, encode_metadata
from shoal.kinds.thread.handle.thread import Thread
from shoal.logs import events
from shoal.logs.lines import log
from shoal.protocol.requests import NO_HEAD, Request, Save
from shoal.workflows.connection import HeldLease

CREW_CHANGE_S = 30.0  # How long a change of a crew's record waits for others.

THREAD = "shoal-crew"
Alter = Callable[[CrewRecord], CrewRecord | Awaitable[CrewRecord]]

_LEASE_S = 10.0  # A change takes a few milliseconds; this is for one whose machine dies meanwhile.
_KEPT = 64  # Checkpoints of the record: its history.
_CHANGES_MAX = 5  # A change whose lease was lost meanwhile is made so often.
_FENCE, _CHANGE = "fence", "change"


class Record:
    """The record of one crew, as one machine or command reads and changes it. `holder` is its name, for people."""

    def __init__(self, store: Store, space: Space, *, holder: str) -> None:
        self._space = space
        self._connection = store.connection
        self._holder = holder
        self._signs = True  # Whether its writes name their authors; a token may forbid it.
        self._turn = asyncio.Lock()  # One change at a time of this process; others wait for the lease.

    def author_of(self, agent: str) -> str:
        """The author that an agent's writes name: the agent, or nobody if the store's token may not name it."""
        return agent if self._signs else ""

    async def read(self) -> CrewRecord:
        """The record as the serving node holds it."""
        return (await self._newest(self._thread()))[0]

    async def settled(self) -> CrewRecord:
        """The record with each change that was made before.

        Raises:
            NoQuorum: too few nodes can be reached to know it.
        """
        missing = await catch_up(self._connection, self._space.name, THREAD)
        if missing:
            raise NoQuorum(f"the record of the crew cannot be read: {missing}. Nothing was written. Try again.")
        return await self.read()

    async def change(self, alter: Alter) -> CrewRecord:
        """Change the record. If `alter` raises, or returns an equal record, nothing is written.

        Raises:
            LeaseHeld: others have been changing it for `CREW_CHANGE_S`.
            ShoalError: no quorum can be reached, or the outcome is unknown. Changing it again does no harm.
        """
        self._connection.check_home()
        for nth in range(_CHANGES_MAX):
            try:
                return await self._change(alter)
            except LeaseLost:  # This process stood still, or its node.
                if nth + 1 == _CHANGES_MAX:
                    raise
        raise AssertionError

    async def _change(self, alter: Alter) -> CrewRecord:
        wait_s = CREW_CHANGE_S
        async with self._turn, self._thread().lease(ttl=_LEASE_S, wait=wait_s, holder=self._holder) as lease:
            try:
                return await self._changed(alter, lease)
            except Forbidden as error:
                if not self._signs or error.detail.get("action") != "impersonate":
                    raise
                self._signs = False
                return await self._changed(alter, lease)

    async def _changed(self, alter: Alter, lease: Lease) -> CrewRecord:
        thread = self._thread()
        record, found = await self._newest(thread)
        outcome = alter(record)
        altered = await outcome if inspect.isawaitable(outcome) else outcome
        if altered != record or found is None or found.forked:
            number = 1 if found is None else found.metadata.get(_CHANGE, 0) + 1
            request = Save(
                self._space.name,
                THREAD,
                encode_channels(to_channels(altered)),
                encode_metadata({"by": self._holder, _FENCE: lease.fence, _CHANGE: number}),
                parent=NO_HEAD if found is None else found.id,
                merged=[] if found is None else [head for head in found.heads if head != found.id],
                author=self.author_of(self._holder),
            )
            await self._connection.write(request, key=None, durability=None)
            if number % _KEPT == 0:
                await thread.prune(keep_last=_KEPT)
        return altered

    def follow(self) -> AsyncGenerator[CrewRecord, None]:
        """Yield the record as the serving node holds it, and each change of it.

        Raises:
            ShoalError: no node could be reached for `request_timeout_s`.
        """
        known: CrewRecord | None = None

        async def read() -> AsyncGenerator[CrewRecord, None]:
            nonlocal known
            found = await self.read()
            if found != known:
                known = found
                yield found

        return reread(self._connection, self._space.name, THREAD, "save", read)

    def _thread(self) -> Thread:
        return self._space.thread(THREAD)

    async def _newest(self, thread: Thread) -> tuple[CrewRecord, Checkpoint | None]:
        try:
            found = await thread.load()
        except NotFound:
            return CrewRecord(), None
        if found.forked:
            heads = [found, *[await thread.load(head) for head in found.heads if head != found.id]]
            found = max(heads, key=lambda head: (head.metadata.get(_FENCE, 0), head.id))
        return from_channels(found.state, space=self._space.name), found


CREW_LINGER_S = 1.0  # An agent that has waited for this long gives its lease back; at once if it waits for a person.
CREW_RETURN_S = 60.0  # How long an agent waits for its lease after a wait, if somebody else holds it.

WAITS = "shoal-crew-waits/"
"""Before the name of an agent, the name of the lease that its machine holds while it waits."""

_PAUSE_S = 0.5  # Before something that failed is tried again.


class Seat:
    """The hold of one agent. `lease` is the lease of its thread, the same object before and after a wait."""

    def __init__(
        self,
        connection: StoreConnection,
        space: Space,
        name: str,
        lease: Lease,
        *,
        machine: str,
        ttl_s: float,
        settled: Callable[[], Awaitable[CrewRecord]] | None,
    ) -> None:
        self.name = name
        self.lease = lease
        self.ended = asyncio.Event()
        """Set once this machine must not drive the agent any more."""
        self._on_write: Callable[[Request[Any]], None] | None = None
        self._on_back: Callable[[], Awaitable[None]] | None = None
        self._settled = settled
        self._connection = connection
        self._space = space
        self._machine = machine
        self._ttl_s = ttl_s
        self._depth = 0  # Of waits within each other.
        self._timer: asyncio.TimerHandle | None = None
        self._giving: asyncio.Task[None] | None = None
        self._away: Lease | None = None  # The lease of the wait, once the one of the thread is given back.
        self._guard: HeldLease | None = None
        self._is_over = False
        self._counted: Tenure | None = None
        self._count(lease)

    @classmethod
    async def taken(
        cls,
        connection: StoreConnection,
        space: Space,
        name: str,
        *,
        machine: str,
        ttl_s: float,
        settled: Callable[[], Awaitable[CrewRecord]] | None = None,
    ) -> Seat | None:
        """The hold of an agent; None if another machine drives it, also if it waits there.

        `settled` reads the crew's record behind a quorum.

        Raises:
            ShoalError: that cannot be known, or no lease be acquired.
        """
        try:
            lease = await space.thread(name).lease(ttl=ttl_s, holder=machine).acquire()
        except LeaseHeld:
            return None
        seat, is_free = cls(connection, space, name, lease, machine=machine, ttl_s=ttl_s, settled=settled), False
        try:
            is_free = not (await seat._waits().state()).held
        finally:
            if not is_free:
                await seat.release()
        return seat if is_free else None

    def report_to(self, *, written: Callable[[Request[Any]], None] | None, back: Callable[[], Awaitable[None]] | None) -> None:
        """From now on `written` is called with each write that was acknowledged under it; None: nobody is told.

        `back` is called at the end of a wait in which the thread was free.
        """
        self._on_write, self._on_back = written, back

    def waited(self) -> AbstractAsyncContextManager[None]:
        """A context around one wait of the agent's function."""
        return _Wait(self)

    def lasts(self) -> None:
        """The present wait will take long: the lease is given back at once."""
        if self._timer is not None:
            self._timer.cancel()
            self._leave()

    def end(self) -> None:
        """The function is about to be cancelled: no lease is taken again for it."""
        self._is_over = True

    async def release(self) -> None:
        """Give the agent up. If that fails, the leases end by themselves."""
        self._is_over = True
        await self._still()
        if self._guard is not None:
            self._connection.held.drop(self._guard)
        await self._let_go(self.lease)
        if self._away is not None:
            await self._let_go(self._away)

    # ── giving the lease of the thread back ───────────────────────────────────

    def begin(self) -> None:
        """A wait begins."""
        self._depth += 1
        if self._depth == 1 and not self._is_over:
            self._timer = asyncio.get_running_loop().call_later(CREW_LINGER_S, self._leave)

    async def finish(self) -> None:
        """A wait is over: return once the lease of the thread is held again.

        Raises:
            LeaseLost: this machine must not drive the agent any more.
        """
        try:
            if self._depth == 1 and (self._giving is not None or self._away is not None):
                await self._whole(self._return())
            elif self._depth == 1 and self._timer is not None:
                self._timer.cancel()
                self._timer = None
        finally:
            self._depth -= 1

    async def _whole(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this even if the caller is cancelled, as by a timeout: it goes on afterwards, and needs the lease."""
        task = asyncio.get_running_loop().create_task(work)
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as error:
                cancelled = error
                if self._is_over:
                    task.cancel()
        if cancelled is not None:
            _ = task.cancelled() or task.exception()
            raise cancelled
        task.result()

    async def _return(self) -> None:
        await self._still()
        if self._away is not None and not self._is_over:
            await self._take_back(self._away)

    def _leave(self) -> None:
        self._timer = None
        self._giving = asyncio.get_running_loop().create_task(self._give_back())

    async def _still(self) -> None:
        """Return once the lease of the thread is held, or is given back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        giving, self._giving = self._giving, None
        if giving is not None:
            if self._away is None:
                giving.cancel()
            await asyncio.gather(giving, return_exceptions=True)

    async def _give_back(self) -> None:
        away = await self._acquired()
        self._away = away
        self._count(away)  # From here on the loss of the other one says nothing.
        await self._let_go(self.lease)
        self._guard = HeldLease(tenure_of(self.lease).term, away.check, _nothing, self._written, fences=False)
        self._connection.held.put(self._guard)

    async def _acquired(self) -> Lease:
        while True:
            try:
                return await self._waits().acquire()
            except ShoalError as error:
                log(events.AGENT_WAITS, agent=self.name, reason=error.message)
            await asyncio.sleep(_PAUSE_S)

    # ── taking it again ───────────────────────────────────────────────────────

    async def _take_back(self, away: Lease) -> None:
        lease = await self._had(away)
        try:
            away.check()
        except LeaseLost:
            # Another machine may have driven the agent, to its end or to another wait.
            self.ended.set()
            await self._let_go(lease)
            raise
        go_on_as(self.lease, lease)
        self._count(self.lease)
        self._away = self._guard = None
        keeper_of(self._connection).later(self._let_go(away))
        await self._look()

    async def _had(self, away: Lease) -> Lease:
        """The lease of the thread; others may hold it for a while."""
        uptime = self._connection.uptime
        ends_s, wait_s = uptime() + CREW_RETURN_S, 0.0
        while True:
            try:
                return await self._leasing(wait_s).acquire()
            except LeaseHeld as held:
                if uptime() >= ends_s:
                    raise self._forsaken(str(held.detail.get("holder", ""))) from None
                if not wait_s:
                    log(events.AGENT_WAITS_FOR_LEASE, agent=self.name, seconds=round(ends_s - uptime(), 1), reason=held.message)
                wait_s = ends_s - uptime()
            except ShoalError as error:
                if self.ended.is_set():
                    away.check()
                if uptime() >= ends_s:
                    raise self._forsaken("") from error
                log(events.AGENT_NO_LEASE, agent=self.name, reason=error.message)
                await asyncio.sleep(_PAUSE_S)

    def _forsaken(self, holder: str) -> LeaseLost:
        self.ended.set()
        why = f"{holder!r} still holds it" if holder else "it cannot be acquired"
        return LeaseLost(
            f"agent {self.name!r} gave its lease back while it waited, and {why} {CREW_RETURN_S:g} s "
            "after the wait was over. Nothing was written. The agent is started again, from its last "
            "checkpoint, once its lease is free.",
            fence=self.lease.fence,
            holder=holder,
        )

    async def _look(self) -> None:
        """Look at what has happened meanwhile: a program that does not know of waits may have run the agent to its end."""
        while not self.ended.is_set():
            try:
                if self._settled is not None and (await self._settled()).has_ended(self.name):
                    self.ended.set()
                    break
                if self._on_back is not None:
                    await self._on_back()
                return
            except ShoalError as error:
                log(events.AGENT_TROUBLE, agent=self.name, reason=error.message)
            await asyncio.sleep(_PAUSE_S)
        raise LeaseLost(
            f"agent {self.name!r} was ended, or taken by another machine, while it waited here. Nothing was written.",
            fence=self.lease.fence,
            holder="",
        )

    # ── leases ────────────────────────────────────────────────────────────────

    def _leasing(self, wait_s: float) -> Leasing:
        return self._space.thread(self.name).lease(ttl=self._ttl_s, wait=wait_s, holder=self._machine)

    def _waits(self) -> Leasing:
        return self._space.lease(WAITS + self.name, ttl=self._ttl_s, holder=self._machine)

    def _count(self, lease: Lease) -> None:
        """From now on the seat is lost with this lease."""
        tenure = self._counted = tenure_of(lease)
        tenure.report_to(lost=partial(self._lost, tenure), written=self._written)
        if tenure.is_lost:
            self.ended.set()

    def _lost(self, tenure: Tenure) -> None:
        if tenure is self._counted:
            self.ended.set()

    def _written(self, request: Request[Any]) -> None:
        if self._on_write is not None:
            self._on_write(request)

    async def _let_go(self, lease: Lease) -> None:
        try:
            with suppress(ShoalError, TimeoutError):
                async with asyncio.timeout(self._ttl_s):
                    await lease.release()
        finally:
            tenure_of(lease).forget()


class _Wait:
    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    async def __aenter__(self) -> None:
        self._seat.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._seat.finish()


def _nothing() -> None:
    """There is nothing to lose."""
