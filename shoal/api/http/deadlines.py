"""Deadlines of HTTP requests: after its deadline a caller may repeat a write elsewhere, so no write begins later.

Laws:
- A deadline is a time by the node's clock. A duration would start when the node reads the request, and a node that
  stalled reads it late.
- It is compared when each write begins, after the body has arrived. A write that has begun continues: if it is not
  answered in time, its outcome is unknown.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from aiohttp import web

from shoal.errors import InvalidInput, OutcomeUnknown, Unavailable
from shoal.protocol.requests import Durability, R, Read, Request
from shoal.protocol.session import Session, Wrapper

HEADER = "Shoal-Deadline"
NAMED = (
    "The time at which the caller gives up, in seconds since 1970 (UTC) by the node's clock, which the `Date` of its "
    "answers shows. A request that the node reaches later, because it stalled, writes nothing."
)


def named(request: web.Request) -> float | None:
    """The deadline of a request, in seconds since 1970; None if it has none.

    Raises:
        InvalidInput: it is not one time.
    """
    given = request.headers.getall(HEADER, ())
    if not given:
        return None
    try:
        [text] = given
        at_s = float(text)
    except ValueError:
        at_s = math.nan
    if not math.isfinite(at_s):
        raise InvalidInput(f"{HEADER} must be one time in seconds since 1970. Nothing was written.", field=HEADER)
    return at_s


class Limited(Wrapper):
    """A `Session` that begins no write after a time, in seconds since 1970; `now_s` is the node's clock.

    A subscription has no limit.
    """

    __slots__ = ("_deadline_s", "_now_s")

    def __init__(self, session: Session, deadline_s: float, *, now_s: Callable[[], float]) -> None:
        super().__init__(session)
        self._deadline_s = deadline_s
        self._now_s = now_s

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """Answer `request` (`Session.call`).

        Raises:
            Unavailable: the write did not begin in time.
            OutcomeUnknown: it began, and was not answered in time.
        """
        if isinstance(request, Read):
            return await self._session.call(request, stale=stale)
        # Not by the loop's clock, which stands still while a machine is suspended.
        left_s = self._deadline_s - self._now_s()
        if left_s <= 0:
            raise Unavailable(
                f"the request's deadline ({HEADER}) passed {-left_s:.3f} s ago by this node's clock. Nothing was written. "
                "Send it again with a later one."
            )
        scope = asyncio.timeout(left_s)
        try:
            async with scope:
                return await self._session.call(request, key=key, durability=durability, stale=stale)
        except TimeoutError:
            if not scope.expired():
                raise
            raise OutcomeUnknown(
                f"the request's deadline ({HEADER}) passed before the write was done. It may or may not be applied. "
                "Send it again with the same Idempotency-Key and a later deadline."
            ) from None
