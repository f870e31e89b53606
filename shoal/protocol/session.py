"""The interface between all layers: a `Session` answers requests. Their keys, and what was replaced in their writes.

Idempotency keys that clients generate.

A key is `c`, 12 hex digits of milliseconds since 1970, `-`, and 20 hex digits of
randomness. Its time bounds how long a node must remember it. Keys that users
choose contain no time and may have any other form.

The replacements in writes, told to whoever makes them: beside the replies, whose forms are as they were.

Law: what is noted goes to the innermost `noting` around the call, in this task and those that it has begun; without one it is
dropped.

Twin trees, a local and a remote client or a blocking and an asynchronous one, drift apart. So a feature is one request, one
handler and one method of a handle, and `shoal.sync` is a proxy.

The node's service opens one per consumer (an embedded store, a WebSocket, a REST
request). The pipelined connection to a node is another implementation, and
`shoal.client` uses either.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from pathlib import PurePath
from typing import Protocol, runtime_checkable

from shoal.crdt.deletion import is_made
from shoal.errors import ShoalError
from shoal.kinds.redaction.requests import Replaced
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import AnyReply, AnyRequest, Durability, Push, R, Request, Subscription

RANDOM_BYTES = 10


def make_key(now_ms: int, random: bytes) -> str:
    """A new key; `random` is `RANDOM_BYTES` bytes."""
    return f"c{now_ms:012x}-{random.hex()}"


def first_key(now_ms: int) -> str:
    """A key that sorts before every key that a client generates from this time on, and after all that were generated before."""
    return f"c{max(0, now_ms):012x}"


def is_made_before(key: str, wall_ms: int) -> bool:
    """Whether a client generated `key` before `wall_ms`; false for a key that a user chose."""
    # Generated keys sort by their times: most are new, and this comparison settles them.
    return key < first_key(wall_ms) and is_made(key)


NOTED_MAX = 4096  # In one context; what comes beyond is dropped.

_noted: ContextVar[list[Replaced] | None] = ContextVar("replaced", default=None)


@contextmanager
def noting() -> Iterator[list[Replaced]]:
    """The replacements in the writes that are made in this context, in the order of their answers."""
    found: list[Replaced] = []
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)


def note(replaced: Sequence[Replaced]) -> None:
    """Tell that this was replaced in a write that is answered now."""
    found = _noted.get()
    if found is not None:
        found.extend(replaced[: NOTED_MAX - len(found)])


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
