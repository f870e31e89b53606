"""One agent on one machine: from the acquisition of its lease to its release.

Laws:
- The function runs only while this machine holds the agent's lease, and after the record was read behind its acquisition:
  an agent that has ended, or that a newer version runs, is not started.
- How a run ended is recorded while the lease is held, so that the next holder finds it.
- If the lease is lost, or the agent given up, the function is cancelled. If it has not ended after the grace period, the
  process is ended: nothing else stops its effects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from shoal.client.connection import StoreConnection
from shoal.client.leases import Lease, tenure_of
from shoal.client.store import Space
from shoal.crew.context import CrewContext
from shoal.crew.declaration import CrewRecord, Declared, finished, raised
from shoal.crew.record import Record
from shoal.errors import LeaseHeld, ShoalError
from shoal.protocol.requests import Batch, Request, Save
from shoal.workflows.checkpoint import Checkpoint

T = TypeVar("T")

Function = Callable[[CrewContext], Awaitable[object]]

_log = logging.getLogger("shoal.crew")

_UNWIND_S = 1.0  # A function that is cancelled has at least so long to end.
_PAUSE_S = 0.5  # Before the record is read or changed again.


@dataclass(frozen=True, slots=True)
class Stage:
    """What all agents of one machine have in common."""

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
        self._thread = stage.space.thread(name)
        self._leaving = asyncio.Event()
        self._is_stuck = False  # Its function swallowed a cancellation.

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
        try:
            lease = await self._thread.lease(ttl=declared.ttl, holder=self._stage.machine).acquire()
        except LeaseHeld:
            return
        try:
            while (wanted := await self._wanted(lease)) is not None:
                if not await self._once(lease, wanted):
                    break
        finally:
            if not self._is_stuck:
                with suppress(ShoalError):  # If it fails, the lease ends by itself.
                    await lease.release()

    async def _wanted(self, lease: Lease) -> Declared | None:
        """What is declared, if this program is to run the agent now."""
        record = await self._retried(lease, self._stage.record.settled)
        if record is None or self.is_leaving or self.name not in record.wanted():
            return None
        declared = record.declared(self.name)
        return declared if declared is not None and declared.version == self._version else None

    # ── one run of the function ───────────────────────────────────────────────

    async def _once(self, lease: Lease, declared: Declared) -> bool:
        """Run the function; True if it is to run here again."""
        resumption = await self._retried(lease, lambda: self._thread.resume(loaded=self._loaded))
        self._loaded = None
        if resumption is None or not resumption.reason.quorum:
            await self._until_leaving(_PAUSE_S, lease)
            return not self._is_over(lease)
        context = CrewContext(
            self.name,
            declared,
            machine=self._stage.machine,
            space=self._stage.space,
            thread=self._thread,
            lease=lease,
            resumption=resumption,
        )
        uptime = self._stage.connection.uptime
        began_s = uptime()
        task = asyncio.get_running_loop().create_task(self._called(context))
        tenure_of(lease).on_write = lambda request: self._handed_over(request, task)
        try:
            await self._supervise(task, lease, context)
        finally:
            tenure_of(lease).on_write = None
        if self._is_over(lease) or self._is_stuck:
            return False
        return await self._ended(lease, task, ran_s=uptime() - began_s)

    async def _called(self, context: CrewContext) -> None:
        await self._function(context)

    def _handed_over(self, request: Request[Any], task: asyncio.Task[None]) -> None:
        """A save of an agent that is given up is the point from which it goes on elsewhere."""
        writes = request.writes if isinstance(request, Batch) else [request]
        if self.is_leaving and any(isinstance(write, Save) and write.thread == self.name for write in writes):
            task.cancel()

    async def _supervise(self, task: asyncio.Task[None], lease: Lease, context: CrewContext) -> None:
        """Return when the function has ended. If it does not end although it must, end the process."""
        loop = asyncio.get_running_loop()
        lost, leaving = loop.create_task(lease.ended.wait()), loop.create_task(self._leaving.wait())
        try:
            await asyncio.wait((task, lost, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and not lost.done():
                context.draining.set()
                await asyncio.wait((task, lost), timeout=self._stage.grace_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            leaving.cancel()
            await self._cancelled(task, lease)

    async def _cancelled(self, task: asyncio.Task[None], lease: Lease) -> None:
        if task.done():
            return
        if lease.ended.is_set():
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

    async def _ended(self, lease: Lease, task: asyncio.Task[None], *, ran_s: float) -> bool:
        """Record how the function ended; True if it is started again here."""
        error: BaseException | None = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            _log.info("agent %s has finished", self.name)
            await self._recorded(lease, lambda record: finished(record, self.name, version=self._version))
            return False
        _log.warning("agent %s raised", self.name, exc_info=error)
        config = self._stage.connection.config
        if isinstance(error, ShoalError) and error.retryable:
            await self._until_leaving(1.0, lease)  # The cluster is to blame, so it is not a try.
            return not self._is_over(lease)
        text, anew = f"{type(error).__qualname__}: {error}", ran_s >= config.crew_steady_s
        record = await self._recorded(lease, lambda record: raised(record, self.name, text, version=self._version, anew=anew))
        outcome = None if record is None else record.outcome(self.name)
        if outcome is None or outcome.state != "retrying":
            return False
        await self._until_leaving(min(2.0 ** (outcome.tries - 1), config.crew_backoff_s_max), lease)
        return not self._is_over(lease)

    async def _recorded(self, lease: Lease, alter: Callable[[CrewRecord], CrewRecord]) -> CrewRecord | None:
        def checked(record: CrewRecord) -> CrewRecord:
            lease.check()
            return alter(record)

        return await self._retried(lease, lambda: self._stage.record.change(checked))

    async def _retried(self, lease: Lease, call: Callable[[], Awaitable[T]]) -> T | None:
        """Call until it succeeds; None if the lease is lost before."""
        while not lease.ended.is_set():
            try:
                return await call()
            except ShoalError as error:
                _log.warning("agent %s: %s", self.name, error)
            await asyncio.sleep(_PAUSE_S)
        return None

    async def _until_leaving(self, seconds: float, lease: Lease) -> None:
        """Return after this time, or when the agent is given up or its lease is lost."""
        loop = asyncio.get_running_loop()
        waits = [loop.create_task(event.wait()) for event in (self._leaving, lease.ended)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _is_over(self, lease: Lease) -> bool:
        return self.is_leaving or lease.ended.is_set()
