"""One agent on one machine: from the acquisition of its lease to its release.

Laws:
- The function runs only while this machine holds the agent (`shoal.crew.seat`), and after the record was read behind its
  acquisition: an agent that has ended, or that a newer version runs, is not started.
- How a run ended is recorded while the lease is held, so that the next holder finds it. The status of the agent's thread says
  the same: it is written before the record, and a run that begins makes it "running".
- If the lease is lost, or the agent given up, the function is cancelled. If it has not ended after the grace period, the
  process is ended: nothing else stops its effects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from shoal.client.connection import StoreConnection
from shoal.client.store import Space
from shoal.client.waiting import attend
from shoal.crew.context import CrewContext
from shoal.crew.declaration import CrewRecord, Declared, finished, raised
from shoal.crew.record import Record
from shoal.crew.seat import Seat
from shoal.errors import ShoalError
from shoal.kinds.step.handle.resume import Resumption
from shoal.kinds.thread.flows.checkpoint import Checkpoint
from shoal.protocol.requests import Batch, Request, Save

T = TypeVar("T")

Function = Callable[[CrewContext], Awaitable[object]]

_log = logging.getLogger("shoal.crew")

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
            _log.info("agent %s is given up: %s", self.name, why)
            self._leaving.set()

    async def run(self) -> None:
        """Return once the agent has ended, or this machine does not hold its lease any more."""
        declared = (await self._stage.record.read()).declared(self.name)
        if declared is None or self.is_leaving:
            return
        stage = self._stage
        seat = await Seat.taken(stage.connection, stage.space, self.name, machine=stage.machine, ttl_s=declared.ttl)
        if seat is None:
            return
        seat.settled = stage.record.settled
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
        seat.on_write = lambda request: self._handed_over(request, task, seat)
        try:
            await self._supervise(task, seat, context)
        finally:
            seat.on_write = seat.on_back = None
        if self._is_over(seat) or self._is_stuck:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                _log.warning("agent %s raised while it was given up: %s: %s", self.name, type(error).__qualname__, error)
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
        seat.on_back = context._look
        attend(seat)
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
            _log.warning("agent %s: its lease is lost, so its function is cancelled", self.name)
        task.cancel()
        await asyncio.wait((task,), timeout=max(self._stage.grace_s, _UNWIND_S))
        if not task.done():
            self._is_stuck = True
            _log.critical(
                "agent %s: its function was cancelled and has not ended within %g s, so this process is ended. Another machine "
                "goes on from its last checkpoint. Let the function pass on asyncio.CancelledError.",
                self.name,
                max(self._stage.grace_s, _UNWIND_S),
            )
            self._stage.end()

    # ── how it ended ──────────────────────────────────────────────────────────

    async def _ended(self, seat: Seat, task: asyncio.Task[None], *, ran_s: float) -> bool:
        """Record how the function ended; True if it is started again here."""
        error: BaseException | None = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            _log.info("agent %s has finished", self.name)
            await self._recorded(seat, self._finished)
            return False
        _log.warning("agent %s raised", self.name, exc_info=error)
        config = self._stage.connection.config
        if isinstance(error, ShoalError) and error.retryable:
            await self._until_leaving(1.0, seat)  # The cluster is to blame, so it is not a try.
            return not self._is_over(seat)
        text, anew = f"{type(error).__qualname__}: {error}", ran_s >= config.crew_steady_s

        async def failed(record: CrewRecord) -> CrewRecord:
            record = raised(record, self.name, text, version=self._version, anew=anew)
            if record.has_ended(self.name):
                await self._thread.fail(text, by=self._author)
            return record

        record = await self._recorded(seat, failed)
        outcome = None if record is None else record.outcome(self.name)
        if outcome is None or outcome.state != "retrying":
            return False
        await self._until_leaving(min(2.0 ** (outcome.tries - 1), config.crew_backoff_s_max), seat)
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
                _log.warning("agent %s: %s", self.name, error)
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
