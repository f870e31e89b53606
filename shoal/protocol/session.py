"""The interface between all layers: a `Session` answers requests.

Twin trees, a local and a remote client or a blocking and an asynchronous one, drift apart. So a feature is one request, one
handler and one method of a handle, and `shoal.sync` is a proxy.

The node's service opens one per consumer (an embedded store, a WebSocket, a REST
request). The pipelined connection to a node is another implementation, and
`shoal.client` uses either.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import PurePath
from typing import Protocol, runtime_checkable

from shoal.errors import ShoalError
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import AnyReply, AnyRequest, Durability, Push, R, Request, Subscription

Credential = str | PurePath | Callable[[], str | Awaitable[str]]
"""A token for nodes that ask for one: itself; the path of a file that holds it; or a function that returns it, now or when
its result is awaited.
"""

Told = Callable[[AnyReply | ShoalError], None]
"""Takes the answer to a request, once."""


class Session(Protocol):
    """One client's view of the store."""

    @property
    def bookmark(self) -> Bookmark:
        """The operations that this session has written and seen. Join another bookmark to it to be shown no older state."""
        ...

    @property
    def connections(self) -> int:
        """How many connections to nodes this session has had: while it stays the same, all answers come over one of them."""
        ...

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """Answer `request`.

        A write is applied once per `key`, even if it is called again, and is
        answered once it is as durable as `durability` says. A `stale` read is
        answered with this node's state, even if it is older than the bookmark,
        which then goes back to that state. A `stale` write is applied to this
        node's state, which suits a write that carries what it builds on.

        Raises:
            SessionBehind: the node did not catch up with the bookmark in time.
            BookmarkLost: no node holds the operations of the bookmark.
            ShoalError: each says whether anything was written.
        """
        ...

    def subscribe(self, subscription: Subscription, /) -> AbstractAsyncContextManager[AsyncIterator[Push]]:
        """Deliver pushes until the context is left. They wait in a buffer with a bound in bytes.

        Raises:
            SlowConsumer: raised by the iterator after the buffer overflowed.
        """
        ...

    async def close(self) -> None:
        """Release what the session holds, such as its connection and its presence entries. Calling it twice is allowed."""


class Wrapper:
    """A base for sessions around another one: all but `call` is that of the session inside.

    Each says for itself what a `call` does, and whether it is a `Prompt`.
    """

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def bookmark(self) -> Bookmark:
        """The bookmark of the session inside."""
        return self._session.bookmark

    @property
    def connections(self) -> int:
        """The connections of the session inside."""
        return self._session.connections

    def subscribe(self, subscription: Subscription, /) -> AbstractAsyncContextManager[AsyncIterator[Push]]:
        """Deliver pushes until the context is left (`Session.subscribe`)."""
        return self._session.subscribe(subscription)

    async def close(self) -> None:
        """Close the session inside."""
        await self._session.close()


@runtime_checkable
class Prompt(Session, Protocol):
    """A session that can apply a write synchronously and answer it later, once it is durable.

    So writes that wait only for the disk do not need a task each.
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
        """Begin `request`, and call `told` with its answer, now or later. If False, nothing was done: use `call`.

        Raises:
            ShoalError: as `call`, if the error is known at once; `told` is not called then.
        """
        ...
