"""The lease of a graph's thread: `async with saver.lease("t"):` or `with saver.lease("t"):` around a run.

Laws:
- In the block, only this saver's store writes to the thread. What it reads holds all that earlier holders were acknowledged.
- If the lease is lost, the next write of the graph raises `LeaseLost`, and so does the block. On the store's own loop the
  block is cancelled at once.
- A lease whose acquirer was cancelled or interrupted is given up.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from types import TracebackType

from shoal.errors import InvalidInput, ShoalError, StoreClosed, Unavailable
from shoal.integrations.base import Bridge
from shoal.kinds.lease.handle.leases import Lease, Leasing

_Left = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]
_LEFT: _Left = None, None, None


class RunLease:
    """A lease to hold for one block, by any thread or loop. Made by `ShoalSaver.lease`."""

    def __init__(self, bridge: Bridge, leasing: Leasing) -> None:
        self._bridge = bridge
        self._leasing = leasing
        self._lease: Lease | None = None  # Set and cleared on the store's loop.
        self._abandoned: Future[None] | None = None  # Keeps the release of a lease that nobody waited for alive.

    async def __aenter__(self) -> RunLease:
        with self._given_up():
            await self._bridge.awaited(self._enter)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(*_closed_in(error)):
            await self._bridge.awaited(lambda: self._leave((kind, error, trace)))

    def __enter__(self) -> RunLease:
        with self._given_up():
            self._bridge.blocking(self._enter)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(*_closed_in(error)):
            self._bridge.blocking(lambda: self._leave((kind, error, trace)))

    @property
    def fence(self) -> int:
        """The fencing number: greater than each that was given for this thread before.

        Raises:
            InvalidInput: it is not held, because its block was not entered or is left.
        """
        return self._held().fence

    async def acheck(self) -> None:
        """Return if it was not lost: call it before an effect outside the store.

        Raises:
            LeaseLost: it was. Stop.
            InvalidInput: its block was not entered, or is left.
        """
        await self._bridge.awaited(self._check)

    def check(self) -> None:
        """`acheck`, blocking."""
        self._bridge.blocking(self._check)

    async def _check(self) -> None:
        self._held().check()

    def _held(self) -> Lease:
        if self._lease is None:
            raise InvalidInput("this lease is not held: it is for the time of its `with` block. Nothing was written.")
        return self._lease

    async def _enter(self) -> None:
        self._lease = await self._leasing.__aenter__()

    async def _leave(self, left: _Left) -> None:
        if self._lease is not None:
            self._lease = None
            await self._leasing.__aexit__(*left)

    @contextmanager
    def _given_up(self) -> Iterator[None]:
        try:
            yield
        except ShoalError:
            raise
        except BaseException:
            # It may have been acquired at this moment, on another loop.
            with suppress(StoreClosed):
                self._abandoned = self._bridge.handed(lambda: self._leave(_LEFT))
            raise


def _closed_in(error: BaseException | None) -> tuple[type[ShoalError], ...]:
    """The context in which `LeaseLost` does not replace the block's own error: a closed store has given up its leases by
    itself.
    """
    return () if error is None else (StoreClosed, Unavailable)
