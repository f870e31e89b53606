"""The terms of leases that a client holds: when they end by its own clock, and their renewals.

Laws:
- Terms are renewed three times in each ttl, those of one store together.
- The client counts on a term for `ttl × (1 − lease_drift_max)` after it sent the last renewal that succeeded, by its own
  clock. Then the term is lost, for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from shoal.client.connection import StoreConnection
from shoal.errors import LeaseLost, ShoalError
from shoal.protocol.requests import ReleaseLease, RenewLeases, Request, Term
from shoal.workflows.connection import HeldLease

RENEWALS = 3  # In each ttl.
_PAUSE_S_MIN = 0.01  # Between two rounds of renewals.
_EXPIRY_S_MIN = 0.001  # The shortest sleep until a term ends: what is left may be too little for a timer to notice.
_PAUSE_PARTS = 20  # A renewal that failed is tried again after this part of the ttl.


class Held:
    """A lease, or a claim, that a client holds for a time."""

    def __init__(self, tenure: Tenure, holder: str) -> None:
        self.holder: str = holder
        self.fence: int = tenure.term.fence
        """The fencing number: greater than each that was given before for the same thing."""
        self.ended: asyncio.Event = tenure.ended
        """Set once it is lost, released or settled."""
        self._tenure = tenure

    @property
    def remaining_s(self) -> float:
        """How many seconds this client counts on it from now, if it is not renewed; 0 once it has ended."""
        return self._tenure.remaining_s

    def check(self) -> None:
        """Return if it was not lost: call it before an effect outside the store.

        Raises:
            LeaseLost: it was.
        """
        self._tenure.check()


class Tenure:
    """One term. Its task, if it has one, is cancelled when it is lost."""

    def __init__(self, connection: StoreConnection, term: Term, *, ttl_s: float, sent_s: float) -> None:
        self.term = term
        self.ttl_s = ttl_s
        self.ended = asyncio.Event()
        self.due_s = 0.0  # When it is to be renewed.
        self.is_renewing = False
        self.is_leaving = False  # A release is under way, or its outcome is unknown: somebody else may hold it by now.
        self.task: asyncio.Task[Any] | None = None
        self.interrupted = False  # Whether the task was cancelled.
        self._on_write: Callable[[Request[Any]], None] | None = None
        self._on_lost: Callable[[], None] | None = None
        self._connection = connection
        self._lost: LeaseLost | None = None
        self._until_s = 0.0
        self._held = HeldLease(term, self.check, self.lose, self._written)
        self._timer: asyncio.Task[None] | None = None
        self.renewed(sent_s)

    def report_to(self, *, lost: Callable[[], None], written: Callable[[Request[Any]], None]) -> None:
        """From now on `lost` is called once it is lost, and `written` with each write that was acknowledged under it."""
        self._on_lost, self._on_write = lost, written

    @property
    def is_lost(self) -> bool:
        """Whether it has ended against its holder's will."""
        return self._lost is not None

    @property
    def remaining_s(self) -> float:
        """How long the client counts on it, if it is not renewed."""
        return 0.0 if self.is_leaving or self.ended.is_set() else max(0.0, self._until_s - self._connection.uptime())

    async def holds(self) -> bool:
        """Whether it counts, now that it is known to be granted: an answer that was long on its way is not relied on.

        Its time counts from when it was asked for. If a part of it is over, it is renewed first.
        """
        if self._connection.uptime() >= self.due_s:
            with suppress(ShoalError):
                await self.renew()
        with suppress(LeaseLost):
            self.check()
        return not self.is_lost

    def begin(self) -> None:
        """From now on it is renewed, and writes carry it."""
        keeper_of(self._connection).keep(self)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().create_task(self._expire())
        if self.term.thread:
            self._connection.held.put(self._held)

    def check(self) -> None:
        """Return if it was not lost.

        Raises:
            LeaseLost: it was.
        """
        if self._lost is None and not self.ended.is_set() and self._connection.uptime() >= self._until_s:
            self.lose()
        if self._lost is not None:
            raise LeaseLost(self._lost.message, **self._lost.detail)

    def renewed(self, sent_s: float) -> None:
        """A renewal that was sent then has succeeded."""
        self._until_s = max(self._until_s, sent_s + self.ttl_s * (1 - self._connection.config.lease_drift_max))
        self.due_s = sent_s + self.ttl_s / RENEWALS

    def postponed(self, now: float) -> None:
        """A renewal has failed; try again soon."""
        self.due_s = now + max(_PAUSE_S_MIN, self.ttl_s / _PAUSE_PARTS)

    def lose(self) -> None:
        """It has ended, and not by its holder's will."""
        if self._lost is not None or self.ended.is_set():
            return
        self._lost = LeaseLost(
            f"{self._described()}. Nothing was written. Stop, or acquire it again and load the current state.",
            fence=self.term.fence,
            holder="",
        )
        self.ended.set()
        keeper_of(self._connection).drop(self)
        if self._on_lost is not None:
            self._on_lost()
        task = self.task
        if task is not None and not task.done() and task is not asyncio.current_task():
            self.interrupted = True
            task.cancel()

    def leave(self, task: asyncio.Task[Any] | None, error: type[BaseException] | None) -> None:
        """Its block has ended, in this task, with this error.

        Raises:
            LeaseLost: the block was cancelled because this was lost.
        """
        if not self.interrupted:
            return
        if task is not None:
            task.uncancel()
        if error is not None and issubclass(error, asyncio.CancelledError):
            raise self._interruption()

    def _interruption(self) -> LeaseLost:
        error = LeaseLost(
            f"{self._described()}, so its block was cancelled. A write that was on its way may be recorded. Stop, or acquire "
            "it again and load the current state.",
            fence=self.term.fence,
            holder="",
        )
        error.written = "unknown"
        return error

    def _described(self) -> str:
        term = self.term
        if term.item:
            queue = f"worklist {term.worklist!r}" if term.worklist else "the inbox"
            what = f"claim of an item of {queue} of thread {term.lease!r}"
        else:
            what = f"lease of thread {term.lease!r}" if term.thread else f"lease {term.lease!r}"
        return f"your {what} (fencing number {self.term.fence}) has ended, because it was not renewed in time"

    async def renew(self) -> None:
        """Renew it now.

        Raises:
            ShoalError: it may not be renewed.
        """
        await keeper_of(self._connection).renew([self])

    async def give_up(self, to: str = "") -> bool:
        """Release it, or hand it over. Returns False if it had ended before."""
        if self.ended.is_set():
            self.forget()
            return False
        term = self.term
        request = ReleaseLease(term.space, term.lease, term.fence, term.token, thread=term.thread, to=to)
        self.is_leaving = True
        try:
            reply = await self._connection.session.call(request)
        except ShoalError as error:
            self.is_leaving = error.written != "no"
            raise
        self.forget()
        return reply.released

    def forget(self) -> None:
        """It is renewed no more, and writes do not carry it any more."""
        self.ended.set()
        keeper_of(self._connection).drop(self)
        self._connection.held.drop(self._held)
        if self._timer is not None and self._timer is not asyncio.current_task():
            self._timer.cancel()

    def _written(self, request: Request[Any]) -> None:
        if self._on_write is not None:
            self._on_write(request)

    async def _expire(self) -> None:
        while (left_s := self._until_s - self._connection.uptime()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(max(left_s, _EXPIRY_S_MIN))
        self.lose()


class Keeper:
    """Renews the leases of one store."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection
        self._tenures: dict[Tenure, None] = {}
        self._stirred = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._others: set[asyncio.Task[None]] = set()

    @property
    def terms(self) -> list[Term]:
        """The terms that it renews."""
        return [tenure.term for tenure in self._tenures]

    def keep(self, tenure: Tenure) -> None:
        """Renew it from now on."""
        self._tenures[tenure] = None
        self._stirred.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    def drop(self, tenure: Tenure) -> None:
        """Do not renew it any more."""
        self._tenures.pop(tenure, None)
        self._stirred.set()

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that its caller does not wait for."""
        task = asyncio.get_running_loop().create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    async def renew(self, leases: list[Tenure]) -> None:
        """Renew these, in one request.

        Raises:
            ShoalError: that did not succeed for any.
        """
        sent_s = self._connection.uptime()
        reply = await self._connection.session.call(RenewLeases([tenure.term for tenure in leases]))
        lost, unknown = set(reply.lost), set(reply.unknown)
        for nth, tenure in enumerate(leases):
            if nth in lost:
                tenure.lose()
            elif nth in unknown:
                tenure.postponed(self._connection.uptime())
            else:
                tenure.renewed(sent_s)

    async def close(self) -> None:
        """Give up all leases: the store closes. One whose release no node answers ends with its term."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        await asyncio.gather(*[self._let_go(tenure) for tenure in self._tenures])
        await asyncio.gather(*([task] if task is not None else []), *self._others, return_exceptions=True)

    async def _let_go(self, tenure: Tenure) -> None:
        with suppress(ShoalError, TimeoutError):
            async with asyncio.timeout(tenure.remaining_s):
                await tenure.give_up()

    async def _work(self) -> None:
        while self._tenures:
            self._stirred.clear()
            now = self._connection.uptime()
            idle = [tenure for tenure in self._tenures if not tenure.is_renewing]
            next_s = min((tenure.due_s for tenure in idle), default=None)
            if next_s is None or next_s > now:
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if next_s is None else next_s - now):
                        await self._stirred.wait()
                continue
            # Those that are due soon are renewed with those that are due now.
            due = [tenure for tenure in idle if tenure.due_s - tenure.ttl_s / (2 * RENEWALS) <= now]
            for tenure in due:
                tenure.is_renewing = True
            self.later(self._round(due))

    async def _round(self, due: list[Tenure]) -> None:
        try:
            async with asyncio.timeout(max(tenure.ttl_s for tenure in due)):
                await self.renew(due)
        except (ShoalError, TimeoutError):
            for tenure in due:
                tenure.postponed(self._connection.uptime())
        finally:
            for tenure in due:
                tenure.is_renewing = False
            self._stirred.set()


_KEEPER = "leases"


def keeper_of(connection: StoreConnection) -> Keeper:
    """The keeper of a store's leases."""
    keeper = connection.keepers.get(_KEEPER)
    if keeper is None:
        keeper = connection.keepers[_KEEPER] = Keeper(connection)
        connection.closing[_KEEPER] = keeper.close
    assert isinstance(keeper, Keeper)
    return keeper
