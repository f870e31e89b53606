"""A thread's status, and the humans who set it.

Law: a status is a word, not a lock. Whoever saves while a thread is paused does save;
what waits are its steps, and whoever asks `ready()`. Every move is in the journal, with
who made it and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from typing import get_args

from msgspec import Struct

from shoal.client.connection import Connection
from shoal.client.moments import moment
from shoal.client.retrying import delays, is_transient, paused
from shoal.errors import InvalidInput, ShoalError, SlowConsumer
from shoal.protocol import requests
from shoal.protocol.requests import Durability, ThreadStatus

HELD: tuple[ThreadStatus, ...] = ("paused", "waiting")


class Standing(Struct, frozen=True):
    """A thread's status, and who set it, when and why."""

    status: ThreadStatus
    reason: str
    by: str
    time: datetime | None  # None: it was never set, and the thread is running.


class ThreadStanding:
    """What a `Thread` offers of its status."""

    space: str
    name: str
    _connection: Connection

    async def status(self, *, stale: bool = False) -> Standing:
        """A thread whose status was never set is running. `stale`: see `Store`."""
        reply = await self._connection.read(requests.ReadStanding(self.space, self.name), stale=stale)
        return standing_of(reply)

    async def pause(self, reason: str = "", *, by: str = "", durability: Durability | None = None) -> Standing:
        """Ask everybody to stop here: steps wait from now on."""
        return await self._set_status("paused", reason, by, durability)

    async def request_approval(self, reason: str = "", *, by: str = "", durability: Durability | None = None) -> Standing:
        """Wait for a human: steps wait until `approve`."""
        return await self._set_status("waiting", reason, by, durability)

    async def approve(self, *, by: str = "", reason: str = "", durability: Durability | None = None) -> Standing:
        """Let the thread go on, whatever held it."""
        return await self._set_status("running", reason, by, durability)

    async def finish(self, *, by: str = "", reason: str = "", durability: Durability | None = None) -> Standing:
        return await self._set_status("done", reason, by, durability)

    async def fail(self, error: BaseException | str, *, by: str = "", durability: Durability | None = None) -> Standing:
        reason = error if isinstance(error, str) else f"{type(error).__qualname__}: {error}"
        return await self._set_status("failed", reason[:1000], by, durability)

    async def _set_status(self, status: ThreadStatus, reason: str, by: str, durability: Durability | None) -> Standing:
        request = requests.MoveThread(self.space, self.name, status, reason, by)
        return standing_of(await self._connection.write(request, key=None, durability=durability))

    async def ready(self) -> None:
        """Return once the thread is neither paused nor waiting."""
        await self._until(lambda standing: standing.status not in HELD)

    async def wait_for(self, status: ThreadStatus | Iterable[ThreadStatus]) -> Standing:
        """Return once the status is this, or one of these.

        Raises:
            InvalidInput: there is no such status.
        """
        wanted: tuple[str, ...] = (status,) if isinstance(status, str) else tuple(status)
        if not wanted or not set(wanted) <= set(get_args(ThreadStatus)):
            raise InvalidInput(f"a status is one of {', '.join(get_args(ThreadStatus))}; got {', '.join(wanted)!r}.")
        return await self._until(lambda standing: standing.status in wanted)

    async def _until(self, holds: Callable[[Standing], bool]) -> Standing:
        pauses = delays(self._connection.config)
        while True:
            try:
                # Watch first, then read: what comes between is seen by both.
                async with self._connection.session.subscribe(requests.Watch(self.space, "thread", self.name)) as changes:
                    if holds(standing := await self.status()):
                        return standing
                    pauses = delays(self._connection.config)
                    with suppress(SlowConsumer):
                        async for change in changes:
                            if isinstance(change, requests.Change) and (change.name, change.what) == (self.name, "status"):
                                break
            except ShoalError as error:
                # A human may take days: a node that goes away meanwhile is waited for, within bounds.
                if not is_transient(error) or not await paused(pauses, error):
                    raise


def standing_of(reply: object) -> Standing:
    assert isinstance(reply, requests.Standing)
    return Standing(reply.status, reply.reason, reply.by, moment(reply.wall_ms) if reply.wall_ms else None)
