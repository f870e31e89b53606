"""Whether an HTTP request has written anything, so that no error after its write denies it.

Law: once a write of a request is answered, no error of the request says that nothing was written.
"""

from __future__ import annotations

from shoal.errors import ShoalError
from shoal.outcomes import why
from shoal.protocol.requests import Durability, R, Read, Request
from shoal.protocol.session import Session, Wrapper


class Noting(Wrapper):
    """A `Session` that notes whether a write was answered."""

    __slots__ = ("wrote",)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.wrote = False

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """Answer `request` (`Session.call`)."""
        reply = await self._session.call(request, key=key, durability=durability, stale=stale)
        self.wrote = self.wrote or not isinstance(request, Read)
        return reply

    def checked(self, error: ShoalError) -> ShoalError:
        """The error of a request that made its calls here: one that denies a write says instead that the write is applied."""
        if not self.wrote or error.written != "no":
            return error
        told = type(error)(f"the write is applied, and it cannot be answered: {why(error)}.", **error.detail)
        told.written = "yes"
        return told
