"""A cluster of real nodes, as a trial sees it: what can be done to each node, and what the nodes say of themselves.

Laws:
- Nothing here knows what a node runs in: `chaos.processes` and `chaos.containers` do.
- A node that ends by itself is a failure, noticed at the next look: it is never
  started again as if it had been killed.
- The time in which a node that starts waits for a processor does not count against it, where the system tells it.
- Clients and looks are let in as the cluster asks for it: with its token, and by its CA.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import aiohttp
import msgspec
from msgspec.structs import replace

import shoal
from chaos.network import Network
from shoal.config import Config
from shoal.node.environment import Environment
from shoal.opening import Opening
from shoal.protocol.requests import Durability
from shoal.transport.session import RemoteSession, SessionContext

START_S_MAX = 30.0
STOP_S_MAX = 20.0
ADMITTED_S_MAX = 60.0
"""For a node that has learned to be a member again."""

_POLL_S = 0.02
_LOG_LINES = 20


class NodeFailed(Exception):
    """A node did not start, or ended by itself; the message holds the end of its log."""


def last_words(log: Path) -> str:
    """The end of a log."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-_LOG_LINES:]) or "(nothing)"


class Member(msgspec.Struct):
    vector: dict[str, int]


class Own(msgspec.Struct):
    garbage: int


class View(msgspec.Struct):
    """What is of interest in a node's `/v1/cluster`: itself is the first member."""

    digest: str
    learning: list[str]
    members: list[Member]
    node: Own

    @property
    def vector(self) -> dict[str, int]:
        """Origin → operations that the node holds durably."""
        return self.members[0].vector


class Node(ABC):
    """One node, alive or not, and what can be done to it."""

    def __init__(self, name: str, *, url: str, advertise: str) -> None:
        self.name = name
        self.url = url  # For clients.
        self.advertise = advertise  # For peers.
        self.id = ""  # As the node names itself, once it answered.

    @property
    @abstractmethod
    def is_up(self) -> bool:
        """True from `launch` until it was killed or stopped, if it did not end by itself."""

    @abstractmethod
    async def fell(self) -> bool:
        """True if it ended, and nobody had ended it."""

    def delayed_s(self) -> float:
        """How long it has waited for a processor since it was launched; 0 where the system does not tell."""
        return 0.0

    @abstractmethod
    async def last_words(self) -> str:
        """The end of what it said."""

    @abstractmethod
    async def launch(self) -> None:
        """Start it."""

    @abstractmethod
    async def kill(self) -> None:
        """End it without a word, and return once it has ended; nothing, if it is down."""

    @abstractmethod
    async def stop(self) -> None:
        """Ask it to end, and return once it has."""

    @abstractmethod
    async def pause(self) -> None:
        """Let it hold its sockets, and answer nobody."""

    @abstractmethod
    async def resume(self) -> None:
        """End a pause."""

    @abstractmethod
    async def wipe(self) -> None:
        """Take its disk away while it is down; it comes back with an empty one."""

    @abstractmethod
    async def fill(self) -> None:
        """Leave no room on its disk."""

    @abstractmethod
    async def drain(self) -> None:
        """Give the room back."""

    @abstractmethod
    def disk(self) -> AbstractAsyncContextManager[Path]:
        """Its directory while it is down, or a copy: to be opened, and looked at."""


class Cluster:
    """The nodes, and what can be done to them."""

    def __init__(
        self,
        nodes: Sequence[Node],
        *,
        network: Network,
        http: aiohttp.ClientSession,
        now_s: Callable[[], float],
        token: Path | None = None,
        tls_ca: Path | None = None,
    ) -> None:
        self.nodes: Sequence[Node] = list(nodes)
        self.network: Network = network
        self.now_s = now_s
        self._http = http
        self._token = token
        self._tls_ca = tls_ca

    @property
    def up(self) -> list[Node]:
        return [node for node in self.nodes if node.is_up]

    def urls(self, first: int) -> str:
        """All addresses, those from `first` on before the others."""
        at = first % len(self.nodes)
        return ",".join(node.url for node in (*self.nodes[at:], *self.nodes[:at]))

    def connect(
        self,
        urls: str,
        *,
        durability: Durability = "local",
        config: Config | None = None,
        in_order: bool = False,
        wait_s: float = 0.0,
    ) -> Opening:
        """A client of these addresses."""
        return shoal.connect(
            urls,
            token=self._token,
            tls_ca=self._tls_ca,
            durability=durability,
            config=config,
            in_order=in_order,
            wait=wait_s,
        )

    def session(self, url: str, environment: Environment) -> RemoteSession:
        """The session of a client that knows only this address."""
        config = Config() if self._tls_ca is None else replace(Config(), tls_ca=str(self._tls_ca))
        return RemoteSession(
            url, config=config, context=SessionContext(environment.now_ms, environment.entropy), token=self._token
        )

    async def start(self, node: Node) -> None:
        """Start a node, and return once it takes reads and writes.

        Raises:
            NodeFailed: it did not, in time.
        """
        await self.launch(node)
        await self._wait(node, self._is_ready, START_S_MAX, "was not ready")

    async def launch(self, node: Node) -> None:
        """Start a node, and return once its process answers; it may take nothing yet.

        Raises:
            NodeFailed: it did not, in time.
        """
        await node.launch()
        await self._wait(node, self._is_alive, START_S_MAX, "did not answer")

    async def admitted(self, node: Node) -> None:
        """Return once a node takes reads and writes and is no learner: until then its disk counts as lost.

        Raises:
            NodeFailed: it was not, in time.
        """
        await self._wait(node, self.is_member, ADMITTED_S_MAX, "was no member")

    async def _wait(self, node: Node, has_come: Callable[[Node], Awaitable[bool]], within_s: float, what: str) -> None:
        began_s, delayed_s = self.now_s(), node.delayed_s()
        while not await has_come(node):
            await self.check()
            # A machine that has other things to do is no fault of the node's.
            if self.now_s() - began_s - (node.delayed_s() - delayed_s) > within_s:
                words = await node.last_words()
                raise NodeFailed(f"{node.name} {what} within {within_s:g} s. It said last:\n{words}")
            await asyncio.sleep(_POLL_S)

    async def stop(self, node: Node) -> None:
        """Stop a node as an operator would.

        Raises:
            NodeFailed: it did not end in time.
        """
        try:
            async with asyncio.timeout(STOP_S_MAX):
                await node.stop()
        except TimeoutError:
            words = await node.last_words()
            raise NodeFailed(f"{node.name} did not stop within {STOP_S_MAX:g} s. It said last:\n{words}") from None

    async def check(self) -> None:
        """
        Raises:
            NodeFailed: a node has ended by itself.
        """
        for node in self.nodes:
            if await node.fell():
                raise NodeFailed(f"{node.name} ended by itself. It said last:\n{await node.last_words()}")

    async def views(self) -> dict[str, View]:
        """What every node says of itself, by its name; nodes that do not answer are left out."""
        views = await asyncio.gather(*(self._view(node) for node in self.nodes))
        return {node.name: view for node, view in zip(self.nodes, views, strict=True) if view is not None}

    async def vector(self, node: Node) -> dict[str, int] | None:
        """What a node holds, as its view says; None: it does not answer."""
        view = await self._view(node)
        return None if view is None else view.vector

    async def caught_up(self, within_s: float) -> float | None:
        """How long it took until every node held what any of them holds now, writes going on meanwhile; None: too long."""
        began_s, goal = self.now_s(), dict[str, int]()
        for view in (await self.views()).values():
            goal = {origin: max(goal.get(origin, 0), view.vector.get(origin, 0)) for origin in goal | view.vector}

        def reached(views: Mapping[str, View]) -> bool:
            return all(view.vector.get(origin, 0) >= n for view in views.values() for origin, n in goal.items())

        return await self._until(reached, began_s, within_s)

    async def equal(self, within_s: float) -> float | None:
        """How long it took until all nodes held the same operations; None: too long. Nobody should write meanwhile."""

        def reached(views: Mapping[str, View]) -> bool:
            return len({view.digest for view in views.values()}) == 1

        return await self._until(reached, self.now_s(), within_s)

    async def still(self, for_s: float, within_s: float) -> float | None:
        """How long it took until the nodes had been equal, and none had written anything, for so long; None: too long."""
        held, since_s = "", self.now_s()

        def reached(views: Mapping[str, View]) -> bool:
            nonlocal held, since_s
            digests = {view.digest for view in views.values()}
            if digests != {held}:
                held, since_s = digests.pop() if len(digests) == 1 else "", self.now_s()
            return bool(held) and self.now_s() - since_s >= for_s

        return await self._until(reached, since_s, within_s)

    async def swept(self, within_s: float) -> float | None:
        """How long it took until no node held anything that was erased; None: too long."""
        return await self._until(lambda views: all(view.node.garbage == 0 for view in views.values()), self.now_s(), within_s)

    async def _until(self, reached: Callable[[Mapping[str, View]], bool], began_s: float, within_s: float) -> float | None:
        while self.now_s() - began_s < within_s:
            await self.check()
            views = await self.views()
            if len(views) == len(self.nodes) and reached(views):
                return self.now_s() - began_s
            await asyncio.sleep(_POLL_S)
        return None

    async def _is_ready(self, node: Node) -> bool:
        answer = await self._get(node, "/readyz")
        if answer is None:
            return False
        node.id = msgspec.json.decode(answer)["node"]
        return True

    async def _is_alive(self, node: Node) -> bool:
        return await self._get(node, "/healthz") is not None

    async def is_member(self, node: Node) -> bool:
        view = await self._view(node)
        return view is not None and not view.learning and await self._is_ready(node)

    async def _view(self, node: Node) -> View | None:
        answer = await self._get(node, "/v1/cluster")
        return None if answer is None else msgspec.json.decode(answer, type=View)

    async def _get(self, node: Node, path: str) -> bytes | None:
        try:
            async with self._http.get(node.url + path) as answer:
                body = await answer.read()
                return body if answer.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None


async def started(cluster: Cluster) -> None:
    """Start all nodes, and return once each is a member.

    Raises:
        NodeFailed: one did not start.
    """
    await asyncio.gather(*(cluster.start(node) for node in cluster.nodes))
    await asyncio.gather(*(cluster.admitted(node) for node in cluster.nodes))
