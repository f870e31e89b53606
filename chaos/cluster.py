"""Real `shoal serve` processes on this machine, each with its own directory and port.

Laws:
- Whatever ends the trial ends the nodes: on every way out of `running` each is
  killed and waited for.
- A node comes back on the port that it had, and on its directory, unless that was
  taken away or replaced while it was down.
- Nodes reach each other through the `Network` alone.
- A node that ends by itself is a failure, noticed at the next look: it is never
  started again as if it had been killed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import msgspec

from chaos.network import Network
from chaos.ports import free_ports

PROGRAM = (sys.executable, "-m", "shoal.cli")
"""What a node runs, before its arguments."""

START_S_MAX = 30.0
STOP_S_MAX = 20.0
ADMITTED_S_MAX = 60.0
"""For a node that has learned to be a member again."""

_POLL_S = 0.02
_LOG_LINES = 20


class NodeFailed(Exception):
    """A node did not start, or ended by itself; the message holds the end of its log."""


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


class Node:
    """One node, alive or not."""

    def __init__(self, name: str, *, directory: Path, address: str, advertise: str) -> None:
        self.name = name
        self.directory = directory
        self.address = address  # For clients.
        self.advertise = advertise  # For peers: the network's.
        self.url = f"http://{address}"
        self.log = directory.parent / f"{name}.log"
        self.id = ""  # As the node names itself, once it answered.
        self._process: Process | None = None

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def fell(self) -> bool:
        """True if it ended, and nobody had ended it."""
        return self._process is not None and self._process.returncode is not None

    async def launch(self, *, join: str, environment: Mapping[str, str], program: Sequence[str]) -> None:
        arguments = ["serve", "--data", str(self.directory), "--listen", self.address]
        arguments += ["--join", join, "--set", f"advertise={self.advertise}"]
        with self.log.open("ab") as log:
            # A session of its own: the terminal's Ctrl-C is for the harness, which then sees to its nodes.
            self._process = await asyncio.create_subprocess_exec(
                *(*program, *arguments),
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def gone(self) -> None:
        """Return once it has ended, by what was done to it."""
        process, self._process = self._process, None
        if process is not None:
            await process.wait()


def last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-_LOG_LINES:]) or "(nothing)"


class Cluster:
    """The nodes, and what can be done to them."""

    def __init__(
        self,
        nodes: list[Node],
        *,
        network: Network,
        http: aiohttp.ClientSession,
        name: str,
        program: Sequence[str],
        now_s: Callable[[], float],
    ) -> None:
        self.nodes = nodes
        self.network = network
        self.now_s = now_s
        self._http = http
        self.program = program
        self._copies = 0
        self._join = ",".join(node.advertise for node in nodes)
        self._environment = {key: value for key, value in os.environ.items() if not key.startswith("SHOAL_")}
        self._environment["SHOAL_CLUSTER"] = name

    @property
    def up(self) -> list[Node]:
        return [node for node in self.nodes if node.is_up]

    def urls(self, first: int) -> str:
        """All addresses, those from `first` on before the others."""
        at = first % len(self.nodes)
        return ",".join(node.url for node in self.nodes[at:] + self.nodes[:at])

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
        await node.launch(join=self._join, environment=self._environment, program=self.program)
        await self._wait(node, self._is_alive, START_S_MAX, "did not answer")

    async def admitted(self, node: Node) -> None:
        """Return once a node takes reads and writes and is no learner: until then its disk counts as lost.

        Raises:
            NodeFailed: it was not, in time.
        """
        await self._wait(node, self.is_member, ADMITTED_S_MAX, "was no member")

    async def _wait(self, node: Node, has_come: Callable[[Node], Awaitable[bool]], within_s: float, what: str) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not await has_come(node):
                    self.check()
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise NodeFailed(f"{node.name} {what} within {within_s:g} s. It said last:\n{last_words(node.log)}") from None

    async def kill(self, node: Node) -> None:
        node.signal(signal.SIGKILL)
        await node.gone()

    def wipe(self, node: Node) -> None:
        """Remove the directory of a node that is down."""
        shutil.rmtree(node.directory)

    def copy(self, node: Node) -> Path:
        """Copy the directory of a node that is down: other files, with other inodes."""
        self._copies += 1
        copy = node.directory.parent / f"{node.name}.copy-{self._copies}"
        shutil.copytree(node.directory, copy)
        return copy

    def put_back(self, node: Node, copy: Path) -> None:
        """Replace the directory of a node that is down by a copy, which is used up."""
        shutil.rmtree(node.directory)
        copy.rename(node.directory)

    @asynccontextmanager
    async def cloned(self, node: Node, copy: Path) -> AsyncIterator[Node]:
        """A further process, on a copy of a node's directory, that advertises what the node does."""
        [port] = free_ports(1)
        clone = Node(f"{node.name}-clone", directory=copy, address=f"127.0.0.1:{port}", advertise=node.advertise)
        try:
            await self.launch(clone)
            yield clone
        finally:
            clone.signal(signal.SIGKILL)
            await clone.gone()
            shutil.rmtree(copy)

    async def stop(self, node: Node) -> None:
        """Stop a node as an operator would.

        Raises:
            NodeFailed: it did not end in time, and was killed.
        """
        node.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S_MAX):
                await node.gone()
        except TimeoutError:
            raise NodeFailed(
                f"{node.name} did not stop within {STOP_S_MAX:g} s. It said last:\n{last_words(node.log)}"
            ) from None

    def check(self) -> None:
        """
        Raises:
            NodeFailed: a node has ended by itself.
        """
        for node in self.nodes:
            if node.fell:
                raise NodeFailed(f"{node.name} ended by itself. It said last:\n{last_words(node.log)}")

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
            self.check()
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


@asynccontextmanager
async def running(
    directory: Path, *, nodes: int, now_s: Callable[[], float], program: Sequence[str] = PROGRAM
) -> AsyncIterator[Cluster]:
    """`nodes` nodes below `directory`, ready, and members. None of them outlives the context.

    Raises:
        NodeFailed: one did not start.
    """
    names = [f"n{number}" for number in range(1, nodes + 1)]
    async with Network(names) as network, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0)) as http:
        ports = dict(zip(names, free_ports(nodes), strict=True))
        network.place(ports)
        placed = [
            Node(name, directory=directory / name, address=f"127.0.0.1:{port}", advertise=network.addresses[name])
            for name, port in ports.items()
        ]
        name = f"chaos-{directory.name}"
        cluster = Cluster(placed, network=network, http=http, name=name, program=program, now_s=now_s)
        try:
            await asyncio.gather(*(cluster.start(node) for node in placed))
            await asyncio.gather(*(cluster.admitted(node) for node in placed))
            yield cluster
        finally:
            for node in placed:
                node.signal(signal.SIGKILL)
                await node.gone()
