"""Whether an HTTP request has written anything, so that no error after its write denies it.

Law: once a write of a request is answered, no error of the request says that nothing was written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from shoal.errors import ShoalError
from shoal.outcomes import why
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import Durability, Push, R, Read, Request, Subscription
from shoal.protocol.session import Session


class Noting:
    """A `Session` that notes whether a write was answered."""

    __slots__ = ("_session", "wrote")

    def __init__(self, session: Session) -> None:
        self._session = session
        self.wrote = False

    @property
    def bookmark(self) -> Bookmark:
        """The bookmark of the session inside."""
        return self._session.bookmark

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """See `Session.call`."""
        reply = await self._session.call(request, key=key, durability=durability, stale=stale)
        self.wrote = self.wrote or not isinstance(request, Read)
        return reply

    def subscribe(self, subscription: Subscription, /) -> AbstractAsyncContextManager[AsyncIterator[Push]]:
        """See `Session.subscribe`."""
        return self._session.subscribe(subscription)

    async def close(self) -> None:
        """Close the session inside."""
        await self._session.close()

    def checked(self, error: ShoalError) -> ShoalError:
        """The error of a request that made its calls here: one that denies a write says instead that the write is applied."""
        if not self.wrote or error.written != "no":
            return error
        told = type(error)(f"the write is applied, and it cannot be answered: {why(error)}.", **error.detail)
        told.written = "yes"
        return told
