"""One agent on one machine: from the acquisition of its lease to its release.

Laws:
- The function runs only while this machine holds the agent (`shoal.crew.seat`), and after the record was read behind its
  acquisition: an agent that has ended, or that a newer version runs, is not started.
- How a run ended is recorded while the lease is held, so that the next holder finds it. The status of the agent's thread says
  the same: it is written before the record, and a run that begins makes it "running".
- If the lease is lost, or the agent given up, the function is cancelled. If it has not ended after the grace period, the
  process is ended: nothing else stops its effects.

The context that an agent's function gets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack

from shoal.client.arguments import named
from shoal.client.connection import StoreConnection, attend, waiting
from shoal.client.store import Space
from shoal.crew.declaration import CrewRecord, Declared, finished, parted, raised
from shoal.crew.seat import Record, Seat
from shoal.errors import NotFound, ShoalError
from shoal.kinds.lease.handle.leases import Lease
from shoal.kinds.step.flows import StepRecord
from shoal.kinds.step.handle.resume import Resumption
from shoal.kinds.thread.flows.checkpoints import Checkpoint
from shoal.kinds.thread.handle.saves import SaveOptions
from shoal.kinds.thread.handle.thread import Thread
from shoal.kinds.worklist.handle.worklist import Inbox
from shoal.logs import events
from shoal.logs.lines import log
from shoal.protocol.requests import Batch, Request, Save
from shoal.traces import agents

CREW_BACKOFF_S_MAX = 60.0  # Between two tries of an agent that raises; the first pause is a second.
CREW_STEADY_S = 600.0  # After an agent has run for this long, its tries are counted anew.


@named
class CrewContext:
    """One run of an agent: its thread under its lease, and where it continues.

    When `draining` is set, the agent is to go on elsewhere, or to end: the function is cancelled after its next save, or when
    the grace period is over. It may return before; then it is started again elsewhere, at its last checkpoint.
    """

    def __init__(
        self, name: str, declared: Declared, *, machine: str, space: Space, thread: Thread, seat: Seat, resumption: Resumption
    ) -> None:
        self.name: str = name
        """Its name, as in "researcher-3"; its thread has the same."""
        self.agent: str = parted(name)[0]
        self.number: int = parted(name)[1]
        """From 1."""
        self.version: int = declared.version
        self.machine: str = machine
        self.space: Space = space
        self.thread: Thread = thread
        self.inbox: Inbox = thread.inbox
        self.lease: Lease = seat.lease
        """The lease of its thread. While the function waits it is given back; afterwards it has a new fencing number."""
        self.open_steps: tuple[StepRecord, ...] = resumption.open
        """Steps that an earlier run has begun and not ended: they may have happened."""
        self.draining: asyncio.Event = asyncio.Event()
        self._params = declared.params
        self._checkpoint = resumption.checkpoint
        self._is_unseen = False  # Whether the checkpoint is another's, and the function has not looked at it;
        self._bases = thread._checkout.bases
        self._position = self._bases.position("main")  # then where the handle was when it was found.

    def __repr__(self) -> str:
        return f"CrewContext({self.name!r}, machine={self.machine!r}, fence={self.lease.fence})"

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that are declared, as a copy."""
        return deepcopy(self._params)

    @property
    def state(self) -> dict[str, Any]:
        """The newest state as far as this run knows it; empty if there was none. Decoded again at each access.

        It is the state of the last checkpoint when this run began, then what `checkpoint` has saved, and after a wait what
        others have saved meanwhile. Saves of `thread` itself are not in it until then. Once the function has looked at what
        others have saved, its next save builds on that; before, it raises `HeadMoved`.
        """
        if self._checkpoint is None:
            return {}
        if self._is_unseen:
            self._is_unseen = False
            if self._bases.position("main") == self._position:
                self._bases.move("main", self._checkpoint.id)
        return self._checkpoint.state

    async def checkpoint(self, state: Mapping[str, Any], **options: Unpack[SaveOptions]) -> Checkpoint:
        """Save the state. If the agent is to go on elsewhere, the function is cancelled here. The options are those of `save`.

        Raises:
            LeaseLost: another machine may drive the agent by now. Nothing was written.
        """
        saved = await self.thread.save(state, **options)
        if saved.branch == "main":
            self._checkpoint, self._is_unseen = saved, False
        await asyncio.sleep(0)  # A cancellation arrives here.
        return saved

    def waiting(self) -> AbstractAsyncContextManager[None]:
        """`async with ctx.waiting():` the function waits in the block: for a timer, a task, or anything outside of the store.

        If that lasts longer than `CREW_LINGER_S`, the lease is given back, so that people can correct the state, and is taken
        again at the end of the block. Waits of the store do so by themselves.
        """
        return waiting()

    async def _look(self) -> None:
        """A wait is over in which others could save."""
        try:
            newest: Checkpoint | None = await self.space.thread(self.name).load()
        except NotFound:
            newest = None
        known = None if self._checkpoint is None else self._checkpoint.id
        if newest is not None and newest.id != known:
            self._checkpoint, self._is_unseen, self._position = newest, True, self._bases.position("main")


T = TypeVar("T")

Function = Callable[[CrewContext], Awaitable[object]]

_OVER = ("done", "failed")  # The statuses of threads of agents that do not run.
_UNWIND_S = 1.0  # A function that is cancelled has at least so long to end.
_PAUSE_S = 0.5  # Before the record is read or changed again.


@dataclass(frozen=True, slots=True)
class Stage:
    """The parts that all agents of one machine share."""

    connection: StoreConnection
    space: Space
    record: Record
    machine: str
    grace_s: float
    end: Callable[[], object]  # Ends the process.


class Driving:
    """One agent, driven by this machine."""

    def __init__(self, stage: Stage, name: str, function: Function, version: int, *, loaded: Checkpoint | None = None) -> None:
        """`loaded`: the agent's checkpoint as it was some time ago."""
        self.name = name
        self._stage = stage
        self._function = function
        self._version = version
        self._loaded = loaded
        # The agent is the author of its saves, so that the history tells them from those of people.
        self._thread = stage.space.thread(name, author=stage.record.author_of(name))
        self._leaving = asyncio.Event()
        self._is_stuck = False  # Its function swallowed a cancellation.
        self._is_ending = False  # An earlier run has ended, and died before it recorded that.

    @property
    def _author(self) -> str:
        return self._stage.record.author_of(self.name)

    @property
    def is_leaving(self) -> bool:
        """Whether it is being given up."""
        return self._leaving.is_set()

    def leave(self, why: str) -> None:
        """Give the agent up, at its next save."""
        if not self._leaving.is_set():
            log(events.AGENT_GIVEN_UP, agent=self.name, reason=why)
            self._leaving.set()

    async def run(self) -> None:
        """Return once the agent has ended, or this machine does not hold its lease any more."""
        declared = (await self._stage.record.read()).declared(self.name)
        if declared is None or self.is_leaving:
            return
        stage = self._stage
        seat = await Seat.taken(
            stage.connection,
            stage.space,
            self.name,
            machine=stage.machine,
            ttl_s=declared.ttl,
            settled=stage.record.settled,
        )
        if seat is None:
            return
        try:
            while (wanted := await self._wanted(seat)) is not None:
                if not await self._once(seat, wanted):
                    break
        finally:
            if not self._is_stuck:
                await seat.release()

    async def _wanted(self, seat: Seat) -> Declared | None:
        """The declaration, if this program is to run the agent now."""
        record = await self._retried(seat, self._stage.record.settled)
        if record is None or self.is_leaving or self.name not in record.wanted():
            return None
        declared = record.declared(self.name)
        return declared if declared is not None and declared.version == self._version else None

    # ── one run of the function ───────────────────────────────────────────────

    async def _once(self, seat: Seat, declared: Declared) -> bool:
        """Run the function; True if it is to run here again."""
        resumption = await self._retried(seat, self._resumed)
        self._loaded = None
        if resumption is None or not resumption.reason.quorum:
            await self._until_leaving(_PAUSE_S, seat)
            return not self._is_over(seat)
        if self._is_ending:
            await self._recorded(seat, self._finished)
            return False
        context = CrewContext(
            self.name,
            declared,
            machine=self._stage.machine,
            space=self._stage.space,
            thread=self._thread,
            seat=seat,
            resumption=resumption,
        )
        uptime = self._stage.connection.uptime
        began_s = uptime()
        task = asyncio.get_running_loop().create_task(self._called(context, seat))
        seat.report_to(written=lambda request: self._handed_over(request, task, seat), back=context._look)
        try:
            await self._supervise(task, seat, context)
        finally:
            seat.report_to(written=None, back=None)
        if self._is_over(seat) or self._is_stuck:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                log(events.AGENT_RAISED_LATE, agent=self.name, bug=error)
            return False
        return await self._ended(seat, task, ran_s=uptime() - began_s)

    async def _resumed(self) -> Resumption:
        """Where the agent goes on. Its thread runs from now on, unless an end of it is still to be recorded."""
        resumption = await self._thread.resume(loaded=self._loaded)
        self._is_ending = False
        if resumption.reason.quorum:
            standing = await self._thread.status()
            record = await self._stage.record.read()
            self._is_ending = standing.status in _OVER and standing.by == self._author and record.is_ending(self.name)
            if standing.status in _OVER and not self._is_ending:
                await self._thread.approve(by=self._author, reason="the crew runs it again")
        return resumption

    async def _called(self, context: CrewContext, seat: Seat) -> None:
        attend(seat)
        with agents.running(context.agent, self.name):
            await self._function(context)

    def _handed_over(self, request: Request[Any], task: asyncio.Task[None], seat: Seat) -> None:
        """A save of an agent that is given up is the point from which it goes on elsewhere."""
        writes = request.writes if isinstance(request, Batch) else [request]
        if self.is_leaving and any(isinstance(write, Save) and write.thread == self.name for write in writes):
            seat.end()
            task.cancel()

    async def _supervise(self, task: asyncio.Task[None], seat: Seat, context: CrewContext) -> None:
        """Return when the function has ended. If it does not end although it must, end the process."""
        loop = asyncio.get_running_loop()
        lost, leaving = loop.create_task(seat.ended.wait()), loop.create_task(self._leaving.wait())
        try:
            await asyncio.wait((task, lost, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and not lost.done():
                context.draining.set()
                await asyncio.wait((task, lost), timeout=self._stage.grace_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            leaving.cancel()
            await self._cancelled(task, seat)

    async def _cancelled(self, task: asyncio.Task[None], seat: Seat) -> None:
        seat.end()
        if task.done():
            return
        if seat.ended.is_set():
            log(events.AGENT_LOST_LEASE, agent=self.name)
        task.cancel()
        await asyncio.wait((task,), timeout=max(self._stage.grace_s, _UNWIND_S))
        if not task.done():
            self._is_stuck = True
            log(events.AGENT_STUCK, agent=self.name, seconds=max(self._stage.grace_s, _UNWIND_S))
            self._stage.end()

    # ── how it ended ──────────────────────────────────────────────────────────

    async def _ended(self, seat: Seat, task: asyncio.Task[None], *, ran_s: float) -> bool:
        """Record how the function ended; True if it is started again here."""
        error: BaseException | None = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            log(events.AGENT_FINISHED, agent=self.name)
            await self._recorded(seat, self._finished)
            return False
        log(events.AGENT_RAISED, agent=self.name, bug=error)
        if isinstance(error, ShoalError) and error.retryable:
            await self._until_leaving(1.0, seat)  # The cluster is to blame, so it is not a try.
            return not self._is_over(seat)
        text, anew = f"{type(error).__qualname__}: {error}", ran_s >= CREW_STEADY_S

        async def failed(record: CrewRecord) -> CrewRecord:
            record = raised(record, self.name, text, version=self._version, anew=anew)
            if record.has_ended(self.name):
                await self._thread.fail(text, by=self._author)
            return record

        record = await self._recorded(seat, failed)
        outcome = None if record is None else record.outcome(self.name)
        if outcome is None or outcome.state != "retrying":
            return False
        await self._until_leaving(min(2.0 ** (outcome.tries - 1), CREW_BACKOFF_S_MAX), seat)
        return not self._is_over(seat)

    async def _finished(self, record: CrewRecord) -> CrewRecord:
        standing = await self._thread.status()
        if standing.status not in _OVER:
            standing = await self._thread.finish(by=self._author)
        error = (standing.reason or "failed") if standing.status == "failed" else ""
        return finished(record, self.name, version=self._version, error=error)

    async def _recorded(self, seat: Seat, alter: Callable[[CrewRecord], Awaitable[CrewRecord]]) -> CrewRecord | None:
        async def checked(record: CrewRecord) -> CrewRecord:
            seat.lease.check()
            return await alter(record)

        return await self._retried(seat, lambda: self._stage.record.change(checked))

    async def _retried(self, seat: Seat, call: Callable[[], Awaitable[T]]) -> T | None:
        """Call until it succeeds; None if the lease is lost before."""
        while not seat.ended.is_set():
            try:
                return await call()
            except ShoalError as error:
                log(events.AGENT_TROUBLE, agent=self.name, reason=error.message)
            await asyncio.sleep(_PAUSE_S)
        return None

    async def _until_leaving(self, seconds: float, seat: Seat) -> None:
        """Return after this time, or when the agent is given up or its lease is lost."""
        loop = asyncio.get_running_loop()
        waits = [loop.create_task(event.wait()) for event in (self._leaving, seat.ended)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _is_over(self, seat: Seat) -> bool:
        return self.is_leaving or seat.ended.is_set()
