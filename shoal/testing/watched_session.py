"""A session whose client can be killed at every request.

Laws:
- A request that was sent continues at the node when its client dies.
- A write passes three points: before it is sent, after it is carried out but not
  yet answered, and after the answer. A read changes nothing, so it passes
  the first and the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from shoal.protocol.requests import (
    Batch,
    Durability,
    Push,
    R,
    Request,
    Subscription,
    Write,
)
from shoal.protocol.session import Session, Wrapper
from shoal.testing.lives import Errands, Life
from shoal.testing.machines import TRIP_S


class WatchedSession(Wrapper):
    """A `Session` that belongs to a life; `errands` are its requests at the node, which outlive it."""

    def __init__(self, session: Session, life: Life, errands: Errands) -> None:
        super().__init__(session)
        self._life = life
        self._errands = errands

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """Answer `request` (`Session.call`); passes two points for a read and three for a write."""
        what = told_request(request)
        await self._life.reach(f"before {what} was sent")
        reply = await self._errands.run(self._carried_out(request, key, durability, stale=stale))
        if isinstance(request, Write):
            await self._life.reach(f"after {what} was carried out, before its answer came")
        await asyncio.sleep(TRIP_S)
        await self._life.reach(f"after the answer to {what}")
        return reply

    async def _carried_out(self, request: Request[R], key: str | None, durability: Durability, *, stale: bool) -> R:
        await asyncio.sleep(TRIP_S)
        return await self._session.call(request, key=key, durability=durability, stale=stale)

    @asynccontextmanager
    async def subscribe(self, subscription: Subscription, /) -> AsyncIterator[AsyncIterator[Push]]:
        """Deliver pushes until the context is left (`Session.subscribe`); passes no point, because it changes nothing and
        requests read the same.
        """
        await self._life.go_on()
        async with self._session.subscribe(subscription) as pushes:
            yield pushes

    async def close(self) -> None:
        """Do nothing: the session inside belongs to the node, and outlives the client."""
        await self._life.go_on()


def told_request(request: Request[Any]) -> str:
    """The kind of a request and its object, as in "save crew/planner"."""
    if isinstance(request, Batch):
        return f"batch of {', '.join(map(told_request, request.writes))}"
    tag = type(request).__struct_config__.tag
    fields = [str(getattr(request, field)) for field in type(request).__struct_fields__[:2]]
    return f"{tag} {'/'.join(fields)}".rstrip()
