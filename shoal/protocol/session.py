"""The narrow waist: whoever answers requests is a `Session`.

The node's service opens one per consumer (an embedded store, a WebSocket, a REST
request); the pipelined link to a node is another, and the public surface in
`shoal.client` stands on either.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from shoal.errors import ShoalError
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import AnyReply, AnyRequest, Durability, Push, R, Request, Subscription

Told = Callable[[AnyReply | ShoalError], None]
"""Takes the answer to a request, once."""


class Session(Protocol):
    @property
    def bookmark(self) -> Bookmark:
        """What this session has written and seen. It grows with every answer; whoever joins another to it is shown no less."""
        ...

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """Answer `request`.

        A write is applied once per `key`, whatever the number of calls; it is
        answered once it is as durable as `durability` says. A `stale` read is
        answered with what is here, even if that is older than what the bookmark
        names; the bookmark then lets go of the rest. A `stale` write is applied to
        what is here: of use for one that has with it what it builds on.

        Raises:
            SessionBehind: the node could not catch up with the bookmark in time.
            BookmarkLost: no node holds what the bookmark names.
            ShoalError: each says whether anything was written.
        """
        ...

    def subscribe(self, subscription: Subscription, /) -> AbstractAsyncContextManager[AsyncIterator[Push]]:
        """Pushes from now on, until the context is left. They wait in a buffer of bounded bytes.

        Raises:
            SlowConsumer: from the iterator, once the buffer overflowed.
        """
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Prompt(Session, Protocol):
    """A session that can carry out the half of a write that waits for nothing in the step in which it is asked to.

    So the many writes that wait for the disk alone need no task each.
    """

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
        """Begin `request`, and have its answer told, now or later; False: nothing was done, and it is to be called.

        Raises:
            ShoalError: as `call`, where that is known at once. Then nothing is told.
        """
        ...
