"""A thread's status: running, paused, waiting for approval, done or failed.

Law: a status is a word, not a lock. Saves of a paused thread succeed; only its steps wait, and
callers of `ready()`. The journal records every change of the status, with its author and reason.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from datetime import datetime
from typing import get_args

from msgspec import Struct

from shoal.client.arguments import named
from shoal.client.connection import StoreConnection
from shoal.client.resuming import reread
from shoal.client.waiting import lasting
from shoal.errors import InvalidInput
from shoal.protocol import requests
from shoal.protocol.requests import Durability, ThreadStatus
from shoal.workflows.moments import moment

HELD: tuple[ThreadStatus, ...] = ("paused", "waiting")


class Standing(Struct, frozen=True):
    """A thread's status, with its author, reason and time."""

    status: ThreadStatus
    reason: str
    by: str
    time: datetime | None  # None if it was never set; the thread is then running.


@named
class ThreadControl:
    """The part of a thread's handle for its status."""

    def __init__(self, connection: StoreConnection, space: str, thread: str) -> None:
        self._connection = connection
        self._space, self._thread = space, thread

    async def status(self, *, stale: bool = False) -> Standing:
        """The status of the thread: "running" if it was never set. `stale`: see `Store`."""
        reply = await self._connection.read(requests.ReadStanding(self._space, self._thread), stale=stale)
        return standing_of(reply)

    async def pause(self, reason: str = "", *, by: str = "", durability: Durability | None = None) -> Standing:
        """Pause the thread: steps wait from now on."""
        return await self._set_status("paused", reason, by, durability)

    async def request_approval(self, reason: str = "", *, by: str = "", durability: Durability | None = None) -> Standing:
        """Wait for a human: steps wait until `approve`."""
        return await self._set_status("waiting", reason, by, durability)

    async def approve(self, *, by: str = "", reason: str = "", durability: Durability | None = None) -> Standing:
        """Set the status to running, so that steps continue."""
        return await self._set_status("running", reason, by, durability)

    async def finish(self, *, by: str = "", reason: str = "", durability: Durability | None = None) -> Standing:
        """Set the status to done."""
        return await self._set_status("done", reason, by, durability)

    async def fail(self, error: BaseException | str, *, by: str = "", durability: Durability | None = None) -> Standing:
        """Set the status to failed, with the error as the reason."""
        reason = error if isinstance(error, str) else f"{type(error).__qualname__}: {error}"
        return await self._set_status("failed", reason[:1000], by, durability)

    async def _set_status(self, status: ThreadStatus, reason: str, by: str, durability: Durability | None) -> Standing:
        request = requests.MoveThread(self._space, self._thread, status, reason, by)
        return standing_of(await self._connection.write(request, key=None, durability=durability))

    async def ready(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Return when the thread is neither paused nor waiting.

        Raises:
            TimeoutError: it still was after `timeout` seconds.
        """
        await self._until(lambda standing: standing.status not in HELD, timeout)

    async def wait_for(
        self,
        status: ThreadStatus | Iterable[ThreadStatus],
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Standing:
        """Return when the status is the given one, or one of those given.

        Raises:
            InvalidInput: there is no such status.
            TimeoutError: it was none of them within `timeout` seconds.
        """
        wanted: tuple[str, ...] = (status,) if isinstance(status, str) else tuple(status)
        if not wanted or not set(wanted) <= set(get_args(ThreadStatus)):
            raise InvalidInput(f"a status must be one of {', '.join(get_args(ThreadStatus))}; got {', '.join(wanted)!r}.")
        return await self._until(lambda standing: standing.status in wanted, timeout)

    async def _until(self, holds: Callable[[Standing], bool], timeout: float | None) -> Standing:  # noqa: ASYNC109
        current = "unknown"

        async def read() -> AsyncGenerator[Standing, None]:
            nonlocal current
            standing = await self.status()
            current = standing.status
            if holds(standing):
                yield standing
            else:
                lasting()

        async with aclosing(reread(self._connection, self._space, self._thread, "status", read, timeout=timeout)) as found:
            async for standing in found:
                return standing
        raise TimeoutError(f"thread {self._thread!r} is {current} after {timeout:g} s. Nothing was written. Wait again.")


def standing_of(reply: requests.Standing) -> Standing:
    """A status as handles show it."""
    return Standing(reply.status, reply.reason, reply.by, moment(reply.wall_ms) if reply.wall_ms else None)
