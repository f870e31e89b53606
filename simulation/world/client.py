"""A client of a simulated cluster: a real session, that prefers one node, and knows who answers it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from shoal.config import Config
from shoal.errors import Disconnected, OutcomeUnknown
from shoal.node.node import Node
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import (
    AnyReply,
    AnyWrite,
    Batch,
    Durability,
    ObjectWrite,
    Push,
    R,
    Request,
    RestoreBeginning,
    Subscription,
    Write,
)
from shoal.protocol.session import RANDOM_BYTES, make_key
from shoal.transport.link import Link
from shoal.transport.session import RemoteSession, SessionContext
from simulation.world.environment import START_MS
from simulation.world.incarnation import Fenced

if TYPE_CHECKING:
    from simulation.world.cluster import SimulatedCluster

T = TypeVar("T")

LATE_S = 0.1
"""A call may take this much longer than its deadline."""


class TimelySession(RemoteSession):
    """A session that notes in `late` each call that is under way for longer than it may be, answered in the end or not."""

    def __init__(
        self, urls: str, *, late: list[str], who: str, config: Config, context: SessionContext, bookmark: Bookmark | None
    ) -> None:
        # In order, as its client prefers the nodes; and a fault may come before the first request.
        wait_s = config.request_timeout_s
        super().__init__(urls, config=config, context=context, bookmark=bookmark, in_order=True, wait_s=wait_s)
        self._late = late
        self._who = who

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """See `Session.call`."""
        within_s = self._config.request_timeout_s
        # The first contact has a time of its own.
        allowed_s = within_s if self._reached else within_s + max(within_s, self._wait_s)
        told = f"{self._who} has no answer to its {type(request).__name__} after {allowed_s:g} s"
        timer = asyncio.get_running_loop().call_later(allowed_s + LATE_S, self._late.append, told)
        try:
            return await super().call(request, key=key, durability=durability, stale=stale)
        finally:
            timer.cancel()


class Client:
    """`nodes` are those that it asks, in this order of preference; `at` is the one that it is linked to, or was last."""

    def __init__(
        self, cluster: SimulatedCluster, nodes: Sequence[str], *, name: str, random: Random, bookmark: Bookmark | None = None
    ) -> None:
        self.name = name
        self.at = ""
        self.dialled = 0  # Links so far.
        self.random = random
        self.config = cluster.config
        self.cluster = cluster
        self.nodes = list(nodes)
        self.session: RemoteSession = TimelySession(
            ",".join(cluster.urls[node] for node in nodes),
            late=cluster.late,
            who=name,
            config=self.config,
            context=SessionContext(now_ms, random.randbytes, dial=self._dial),
            bookmark=bookmark,
        )

    def another(self, name: str) -> Client:
        """A client that has seen the same, and prefers another node if there is one."""
        bookmark = Bookmark()
        bookmark.join(self.session.bookmark)
        first = 1 + self.random.randrange(max(1, len(self.nodes) - 1))
        nodes = self.nodes[first:] + self.nodes[:first]
        return Client(self.cluster, nodes, name=name, random=self.random, bookmark=bookmark)

    def new_key(self) -> str:
        """An idempotency key for a write."""
        return make_key(now_ms(), self.random.randbytes(RANDOM_BYTES))

    @property
    def has_link(self) -> bool:
        return self.session._link is not None and self.session._link.open

    async def leave(self) -> None:
        """Lose the connection: the next request is another node's, if there is another."""
        link = self.session._link
        if link is not None:
            await link.close()

    async def within(self, name: str, work: Callable[[Node], Coroutine[Any, Any, T]]) -> T:
        """Do something on a node, as a part of it would: for what has no public interface.

        Raises:
            Disconnected: no node runs there.
            OutcomeUnknown: it died meanwhile.
            ShoalError: as the work.
        """
        host = self.cluster.hosts[name]
        if not host.up or host.stopping:
            raise Disconnected(f"{name} is down. Nothing was sent. Try another node.")
        node = host.node
        task = host.life.begin(work(node))
        await asyncio.wait([task])
        if task.cancelled() or isinstance(task.exception(), Fenced):
            raise OutcomeUnknown(f"{name} died before it answered. Ask another node.")
        return task.result()

    async def _dial(
        self, url: str, *, config: Config, software: str, token: str | None, bookmark: Bookmark, others: bool
    ) -> Link:
        link = await self.cluster.dial(url, config=config, software=software, token=token, bookmark=bookmark, others=others)
        self.at = next(name for name, known in self.cluster.urls.items() if known == url)
        self.dialled += 1
        return link


def now_ms() -> int:
    """The time of all clients, which is the true one."""
    return START_MS + int(asyncio.get_running_loop().time() * 1000)


class Sent(NamedTuple):
    """A write as it left, so that it can be sent again."""

    request: AnyWrite
    key: str
    durability: Durability


class Watched:
    """The first write of some kinds since a moment. `sent` is None if there was none; `reply` is its answer, if one came."""

    def __init__(self, kinds: type[Write[Any]] | tuple[type[Write[Any]], ...]) -> None:
        self.kinds = kinds
        self.sent: asyncio.Future[Sent | None] = asyncio.get_running_loop().create_future()
        self.reply: AnyReply | None = None
        self.over = asyncio.Event()

    def end(self) -> None:
        self.over.set()
        if not self.sent.done():
            self.sent.set_result(None)


class Sender:
    """The `Session` of a client's handles: it makes every write's key, and so can tell what was sent."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._watched: Watched | None = None

    @property
    def bookmark(self) -> Bookmark:
        return self._client.session.bookmark

    @property
    def connections(self) -> int:
        return self._client.session.connections

    @contextmanager
    def watching(self, kinds: type[Write[Any]] | tuple[type[Write[Any]], ...]) -> Iterator[Watched]:
        """Watch for a write while the context is open."""
        watched = self._watched = Watched(kinds)
        try:
            yield watched
        finally:
            watched.end()
            self._watched = None

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """See `Session.call`."""
        watched = None
        if isinstance(request, ObjectWrite | Batch):
            key = key or self._client.new_key()
            watched = self._taken(request, key, durability)
        reply = await self._client.session.call(request, key=key, durability=durability, stale=stale)
        if watched is not None:
            answer: Any = reply
            watched.reply = answer
        return reply

    def _taken(self, request: AnyWrite, key: str, durability: Durability) -> Watched | None:
        watched = self._watched
        if isinstance(request, RestoreBeginning):  # A mirror sends it by itself, whatever its client does at the time.
            return None
        if watched is None or watched.sent.done() or not isinstance(request, watched.kinds):
            return None
        watched.sent.set_result(Sent(request, key, durability))
        return watched

    def subscribe(self, subscription: Subscription, /) -> AbstractAsyncContextManager[AsyncIterator[Push]]:
        return self._client.session.subscribe(subscription)

    async def close(self) -> None:
        """The client's session is its own to close."""
