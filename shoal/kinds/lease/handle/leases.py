"""Leases: `async with thread.lease(ttl=30)` or `async with space.lease("nightly")`.

Laws:
- If a lease is lost, the task in its block is cancelled, and its writes raise `LeaseLost` (`shoal.kinds.lease.handle.tenure`).
- Others may take the lease only after that (`shoal.kinds.lease.state.table`).
- A claim that is given up leaves the queue.
- A lease that ended before its answer arrived was never held: while its `wait` lasts, the client goes on waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from math import inf
from types import TracebackType

from shoal.client.arguments import named
from shoal.client.connection import StoreConnection, delays, paused, waiting
from shoal.errors import InvalidInput, LeaseHeld, LeaseLost, ShoalError
from shoal.kinds.lease.handle.tenure import Held, Tenure, keeper_of
from shoal.names import check_name
from shoal.protocol.requests import AcquireLease, EndLease, LeaseGranted, LeaseState, ReadLease, ReleaseLease, Term

_TOKEN_BYTES = 16


@named
class Lease(Held):
    """A lease that this client holds, or held."""

    def __init__(self, tenure: Tenure, holder: str) -> None:
        super().__init__(tenure, holder)
        self.space: str = tenure.term.space
        self.name: str = tenure.term.lease

    def __repr__(self) -> str:
        return f"Lease({self.space!r}, {self.name!r}, fence={self.fence})"

    def check(self) -> None:
        """Return if you hold it: call it before an effect outside the store.

        Raises:
            LeaseLost: it has ended, because it was lost or released.
        """
        super().check()
        if self._tenure.is_leaving or self.ended.is_set():
            raise LeaseLost(
                f"your lease of {self.name!r} (fencing number {self.fence}) was released. Nothing was written. Acquire it "
                "again, and load the current state.",
                fence=self.fence,
                holder="",
            )

    async def renew(self) -> None:
        """Renew it now. It is renewed by itself, so this is rarely needed.

        Raises:
            LeaseLost: it has ended.
            ShoalError: it may not be renewed, because no node or no quorum could be reached.
        """
        self._tenure.check()
        await self._tenure.renew()
        self._tenure.check()

    async def release(self) -> bool:
        """Give it up: the first that waits gets it. Returns False if it had ended before."""
        return await self._tenure.give_up()

    async def handover(self, *, to: str) -> None:
        """Give it to the holder called `to`, which waits for it, before all others that wait.

        Raises:
            NotFound: no holder of this name waits. You still hold the lease.
            LeaseLost: it has ended.
        """
        self._tenure.check()
        if not await self._tenure.give_up(check_name("holder", to)):
            raise LeaseLost(
                f"your lease of {self.name!r} (fencing number {self.fence}) has ended: it was lost before, or an earlier "
                "attempt to hand it over succeeded. Nothing was written now. state() tells who holds it.",
                fence=self.fence,
                holder="",
            )


def tenure_of(lease: Lease) -> Tenure:
    """The term of a lease."""
    return lease._tenure


def go_on_as(lease: Lease, later: Lease) -> None:
    """Let a lease that was released stand for one that was acquired later by the same holder."""
    lease._tenure, lease.fence, lease.ended = later._tenure, later.fence, later.ended


@named
class Leasing:
    """A lease to acquire: `async with`, or `await acquire()`. It also tells who holds it."""

    def __init__(
        self,
        connection: StoreConnection,
        space: str,
        name: str,
        *,
        thread: bool,
        ttl: float,
        wait: float,
        holder: str | None,
    ) -> None:
        check_times(ttl, wait)
        self._connection = connection
        self._space = space
        self._name = check_name("thread" if thread else "lease", name)
        self._is_thread = thread
        self._ttl_s = float(ttl)
        self._wait_s = float(wait)
        self._holder = connection.holder if holder is None else holder
        self._tenures: list[Tenure] = []

    async def __aenter__(self) -> Lease:
        tenure = await self._acquired()
        tenure.task = asyncio.current_task()
        self._tenures.append(tenure)
        return Lease(tenure, self._holder)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tenure = self._tenures.pop()
        task, tenure.task = tenure.task, None
        try:
            with suppress(ShoalError):  # If it fails, the lease ends by itself.
                await tenure.give_up()
        finally:
            tenure.forget()
        tenure.leave(task, kind)
        if kind is None:
            tenure.check()

    async def acquire(self) -> Lease:
        """Acquire it without a block. It is renewed until it is released or lost.

        Raises:
            LeaseHeld: somebody else holds it, and `wait` is over.
            LeaseLost: it ended before its answer arrived, and `wait` is over.
            Overloaded: too many wait for it, or there is no room for another lease.
            NoQuorum: too few nodes can be reached.
        """
        return Lease(await self._acquired(), self._holder)

    async def state(self) -> LeaseState:
        """The holder now, the end of its term, and those who wait."""
        return await self._connection.session.call(ReadLease(self._space, self._name, self._is_thread))

    async def end(self, fence: int, *, to: str = "", by: str = "", reason: str = "") -> bool:
        """End the lease that somebody else holds, as an operator, by the fencing number that `state` shows.

        The holder can neither renew it nor write under it any more; the first that waits gets it, or the holder called `to`.
        Returns False if the lease has another number by now: then it is kept. An event of the journal says who did it and why.

        Raises:
            NotFound: no holder called `to` waits.
        """
        request = EndLease(self._space, self._name, fence, self._is_thread, to, by, reason)
        return (await self._connection.read(request)).released

    async def watch(self) -> AsyncGenerator[LeaseState, None]:
        """Yield who holds it now, and then each change of the holder or of those that wait. It does not end by itself.

        Close it to stop (`contextlib.aclosing`). Changes that follow each other quickly may be yielded as one.
        """
        known = ""
        while not self._connection.closed.is_set():
            async with waiting():
                state = await self._changed(known)
            if state is not None:
                known = state.mark
                yield state

    async def _changed(self, known: str) -> LeaseState | None:
        """The holder, once the lease has another mark; None if the store is closed before."""
        connection, pauses = self._connection, None
        wait_ms = int(connection.config.lease_poll_s * 1000) if known else 0
        while not connection.closed.is_set():
            try:
                state = await connection.session.call(ReadLease(self._space, self._name, self._is_thread, wait_ms, known))
            except ShoalError as error:
                pauses = pauses or delays(connection.config)
                if not error.retryable or not await paused(pauses, error):
                    raise
                continue
            pauses = None
            if state.mark != known:
                return state
        return None

    async def _acquired(self) -> Tenure:
        async with waiting():
            return await self._begun()

    async def _begun(self) -> Tenure:
        token = self._connection.entropy(_TOKEN_BYTES).hex()
        try:
            ends_s = self._connection.uptime() + self._wait_s
            while True:
                granted, sent_s = await self._granted(token, ends_s)
                term = Term(self._space, self._name, self._is_thread, granted.fence, granted.token)
                tenure = Tenure(self._connection, term, ttl_s=self._ttl_s, sent_s=sent_s)
                if await tenure.holds():
                    break
                if self._connection.uptime() >= ends_s:
                    tenure.check()
        except BaseException as error:
            if not isinstance(error, LeaseHeld):
                keeper_of(self._connection).later(self._withdraw(token))
            raise
        tenure.begin()
        return tenure

    async def _granted(self, token: str, ends_s: float) -> tuple[LeaseGranted, float]:
        connection = self._connection
        pauses = None
        while True:
            sent_s = connection.uptime()
            wait_s = max(0.0, min(ends_s - sent_s, connection.config.lease_poll_s))
            request = AcquireLease(
                self._space,
                self._name,
                round(self._ttl_s * 1000),
                self._holder,
                token,
                int(wait_s * 1000),
                self._is_thread,
            )
            try:
                granted = await connection.session.call(request)
            except ShoalError as error:
                pauses = pauses or delays(connection.config)
                if not error.retryable or not await paused(pauses, error):
                    raise
                continue
            pauses = None
            if granted.granted:
                return granted, sent_s

    async def _withdraw(self, token: str) -> None:
        request = ReleaseLease(self._space, self._name, 0, token, thread=self._is_thread)
        with suppress(ShoalError):
            await self._connection.session.call(request)


def check_times(*times: object) -> None:
    """Check numbers of seconds.

    Raises:
        InvalidInput: one is none.
    """
    for seconds in times:
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds < inf:
            raise InvalidInput(f"times are numbers of seconds, 0 or more; got {seconds!r}. Nothing was written.")
