"""The session of a bearer: the one place through which every request of a client goes, and where it is decided.

Laws:
- A request that is not granted never reaches the session inside, and says that nothing was written.
- A push is delivered only while the token counts.
- A read in a space whose reads are logged is noted before it is answered.
- Secret parts of a state are hidden from a bearer that may not reveal them (`shoal.access.revealing`).
- A list of spaces shows those in which anything is granted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from msgspec import structs

from shoal.access.bearer import Bearer
from shoal.access.reading import ReadLog
from shoal.access.revealing import shown
from shoal.protocol.requests import AnyRequest, Durability, ListSpaces, Names, Push, R, Request, Subscription
from shoal.protocol.session import Prompt, Session, Told, Wrapper


class Guarded(Wrapper):
    """A `Session` whose requests a bearer may make."""

    __slots__ = ("_bearer", "_prompt", "_reads")

    def __init__(self, session: Session, bearer: Bearer, reads: ReadLog | None = None) -> None:
        """`reads` logs what is read; None: nobody does."""
        super().__init__(session)
        self._reads = reads
        self._prompt = session if isinstance(session, Prompt) else None
        self._bearer = bearer

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """Answer `request` (`Session.call`).

        Raises:
            Unauthenticated, Forbidden: it may not be made. Nothing was written.
        """
        granted = self._bearer.check(request)
        if type(granted) is ListSpaces:
            return cast("R", await self._spaces(granted))
        if self._reads is not None:
            await self._reads.note(self._bearer, granted)
        reply: R = await self._session.call(granted, key=key, durability=durability, stale=stale)
        return cast("R", shown(granted, reply, self._bearer.reveals))

    def begin(
        self,
        request: AnyRequest,
        told: Told,
        /,
        *,
        key: str | None = None,
        durability: Durability = "local",
        stale: bool = False,
    ) -> bool:
        """Begin `request`, and call `told` with its answer, now or later (`Prompt.begin`); False if the session inside is not a
        `Prompt`.

        Raises:
            Unauthenticated, Forbidden: it may not be made. Nothing was written.
        """
        if self._prompt is None:
            return False
        granted = self._bearer.check(request)
        if self._reads is not None and self._reads.covers(granted):
            return False  # It is noted before, which takes a turn of its own: `call` does.
        return self._prompt.begin(granted, told, key=key, durability=durability, stale=stale)

    @asynccontextmanager
    async def subscribe(self, subscription: Subscription, /) -> AsyncIterator[AsyncIterator[Push]]:
        """Deliver pushes until the context is left (`Session.subscribe`); the pushes end with an error when the token does.

        Raises:
            Unauthenticated, Forbidden: it may not be made.
        """
        granted: Any = self._bearer.check(subscription)
        if self._reads is not None:
            await self._reads.note(self._bearer, granted)
        async with self._session.subscribe(granted) as pushes:
            yield self._valid(pushes)

    async def _valid(self, pushes: AsyncIterator[Push]) -> AsyncIterator[Push]:
        async for push in pushes:
            self._bearer.check_valid()
            yield push

    async def _spaces(self, request: ListSpaces) -> Names:
        """A page of the spaces that the bearer may see; it is empty only if there are no more."""
        while True:
            page = await self._session.call(request)
            names = [name for name in page.names if self._bearer.see(name)]
            if names or not page.more:
                return Names(names, page.more)
            request = structs.replace(request, after=page.names[-1])
