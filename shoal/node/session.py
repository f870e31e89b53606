"""A consumer's session with the node in its own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from shoal.errors import BookmarkLost, ShoalError, ShuttingDown, StoreClosed
from shoal.kinds.redaction.serving.redactor import noted
from shoal.node.spaces.sharing import Lane
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.conformance import check_manner, conforming
from shoal.protocol.requests import AnyReply, AnyRequest, Durability, Push, R, Request, Subscription, space_of
from shoal.protocol.session import Told, note

if TYPE_CHECKING:
    from shoal.node.service import Service


class ServiceSession:
    """A `Prompt` session of this node: its service, and one consumer's bookmark. Closing it does not stop the node."""

    __slots__ = ("_ended", "_forget_after_s", "_service", "bookmark")

    def __init__(self, service: Service, bookmark: Bookmark, *, forget_after_s: float) -> None:
        self._service = service
        self._forget_after_s = forget_after_s
        self._ended = False
        self.bookmark = bookmark

    @property
    def connections(self) -> int:
        """The connections (`Session.connections`): the node is in this process, as long as the session lasts."""
        return 1

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """Answer `request` (`Session.call`)."""
        if self._ended:
            self._refuse_if_ended()
        check_manner(key, durability, stale)
        request = conforming(request)
        sharing = self._service.sharing
        lane = sharing.lane(space_of(request) or "")
        if self._service.redactor.concerns(request):
            redacted = self._redacted(request, key=key, durability=durability, stale=stale)
            return await self._unless_ended(sharing.taken(lane, redacted))
        is_prompt = durability != "memory" and type(request) in self._service.prompt
        if is_prompt and sharing.is_free(lane):
            # Fewer coroutines, each of which would be resumed for the answer.
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            begun: Any = request
            if self._begin(begun, lane, partial(_settle, answer), key=key, durability=durability, stale=stale):
                return await self._unless_ended(answer)
            is_prompt = False
        work = self._answered(request, is_prompt, key=key, durability=durability, stale=stale)
        return await self._unless_ended(sharing.taken(lane, work))

    async def _redacted(self, request: Request[R], /, *, key: str | None, durability: Durability, stale: bool) -> R:
        """Answer a write in a space with rules of redaction: what they replace goes no further than here."""
        made, seen = await self._service.redactor.redacted(request, key)
        if seen is None:
            return await self._answered(cast("Request[R]", made), False, key=key, durability=durability, stale=stale)
        with noted(seen):
            reply = await self._answered(cast("Request[R]", made), False, key=key, durability=durability, stale=stale)
        note(seen.replaced)
        return reply

    async def _answered(
        self, request: Request[R], is_prompt: bool, /, *, key: str | None, durability: Durability, stale: bool
    ) -> R:
        announce = self._service.of_sessions.get(type(request))
        wanted, reply = cast("Any", request), cast("Any", None)
        if announce is not None:
            reply = announce(self, wanted)
            return cast("R", reply)
        if is_prompt:
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            told = partial(_settle, answer)
            if self._service.begin(wanted, self.bookmark, told, key=key, durability=durability, stale=stale):
                reply = await answer
                return cast("R", reply)
        try:
            reply = await self._service.call(wanted, self.bookmark, key=key, durability=durability, stale=stale)
        except BookmarkLost as lost:
            if not self.bookmark.let_go(lost, self._forget_after_s):
                raise
            reply = await self._service.call(wanted, self.bookmark, key=key, durability=durability, stale=stale)
        return cast("R", reply)

    async def _unless_ended(self, answer: Awaitable[R]) -> R:
        try:
            return await answer
        except ShuttingDown:
            self._refuse_if_ended()  # The node stops because the store does: it will not come back.
            raise

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
        """Begin `request`, and call `told` with its answer, now or later (`Prompt.begin`)."""
        if durability == "memory" or type(request) not in self._service.prompt:
            return False
        self._refuse_if_ended()
        check_manner(key, durability, stale)
        wanted: Any = conforming(request)
        if self._service.redactor.concerns(wanted):
            return False  # It is looked through first.
        lane = self._service.sharing.lane(space_of(wanted) or "")
        if not self._service.sharing.is_free(lane):
            return False  # It waits for its turn, and its caller may give up meanwhile: it takes a task.
        return self._begin(wanted, lane, told, key=key, durability=durability, stale=stale)

    def _begin(self, request: Any, lane: Lane, told: Told, *, key: str | None, durability: Durability, stale: bool) -> bool:
        """Begin a write in a turn of its space that is free; see `Service.begin`."""
        sharing = self._service.sharing

        def answered(answer: AnyReply | ShoalError) -> None:
            sharing.left(lane)
            told(answer)

        has_begun, began = False, sharing.now()
        sharing.entered(lane)
        try:
            has_begun = self._service.begin(request, self.bookmark, answered, key=key, durability=durability, stale=stale)
        finally:
            sharing.charge(lane, began)
            if not has_begun:
                sharing.left(lane)
        return has_begun

    def subscribe(self, subscription: Subscription, /) -> AbstractAsyncContextManager[AsyncIterator[Push]]:
        """Deliver pushes until the context is left (`Session.subscribe`)."""
        self._refuse_if_ended()
        return self._service.subscribe(conforming(subscription), self.bookmark)

    def end(self) -> None:
        """Refuse everything from now on, because the store that uses this session is closed."""
        self._ended = True

    def _refuse_if_ended(self) -> None:
        if self._ended:
            raise StoreClosed("this store is closed. Nothing was written. Open it again, and make new handles.")

    async def close(self) -> None:
        """End the presences that this session announced."""
        self._service.presences.leave(self)


def _settle(answer: asyncio.Future[Any], told: AnyReply | ShoalError) -> None:
    if answer.done():
        return  # The caller gave up.
    if isinstance(told, ShoalError):
        answer.set_exception(told)
    else:
        answer.set_result(told)
