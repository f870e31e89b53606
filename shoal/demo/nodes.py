"""The nodes of the demo: real `shoal serve` processes, each with a directory and a port of its own.

A node is started, killed and started again on the same directory and port. All
are tethered to this process; `release` lets them continue without it. When the
context of `cluster` ends, for any reason, all nodes that were not released end.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import NoReturn

from shoal.demo.tethered import KEEP, RELEASE

HOST = "127.0.0.1"
STOP_S_MAX = 10  # After this time it is killed.
_TETHERED = (sys.executable, "-m", "shoal.demo.tethered")
_LOG_LINES_SHOWN = 5
_POLL_S = 0.02
_WATCH_S = 0.2


class NodeFailed(Exception):
    """A node did not start, or ended by itself."""


def node_name(node: int) -> str:
    """The name of a node. Nodes are numbered from 0 in code and from 1 for people."""
    return f"node-{node + 1}"


class Node:
    """One node: await `start()`; it can be killed and started again."""

    def __init__(self, number: int, *, addresses: Sequence[str], cluster: str, root: Path, temporary: bool) -> None:
        self.number = number
        self.url = f"http://{addresses[number]}"
        self.data = root / node_name(number)
        self._log = root / f"{node_name(number)}.log"
        self._cluster = cluster
        self._command = (
            *(*_TETHERED, str(root) if temporary else KEEP, "serve", "--data", str(self.data)),
            *("--listen", addresses[number], "--join", ",".join(addresses), "--set", f"advertise={addresses[number]}"),
        )
        self._process: Popen[bytes] | None = None
        self._killed = self._released = False

    @property
    def pid(self) -> int:
        """The id of its process; it must have been started."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Return once it answers at its URL.

        Raises:
            NodeFailed: it ended instead; the error has the end of its log.
        """
        self._close_pipes()
        self._spawn()
        assert self._process is not None
        assert self._process.stdout is not None
        if not await asyncio.to_thread(self._process.stdout.readline):  # Its URL.
            await self._ended()
            raise self._failure("did not start")

    async def watch(self) -> NoReturn:
        """Watch the process and never return. While the node is killed, wait until it is started again.

        Raises:
            NodeFailed: it ended by itself.
        """
        while True:
            if not (self._killed or self.is_running):
                raise self._failure("ended by itself")
            await asyncio.sleep(_WATCH_S)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        assert self._process is not None
        self._killed = True
        self._process.kill()

    def release(self) -> None:
        """Let it continue after this process ends."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(RELEASE)
        self._process.stdin.flush()
        self._released = True

    async def end(self) -> None:
        """Stop it, or kill it if it does not stop in time. If it was released or does not run, do nothing."""
        if self._process is None or self._released:
            return
        self._process.terminate()
        try:
            await asyncio.wait_for(self._ended(), STOP_S_MAX)
        except TimeoutError:
            self._process.kill()
            await self._ended()
        self._close_pipes()

    def _spawn(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        with self._log.open("ab") as log:
            # Not asyncio's subprocess, which kills its process at the end of the loop. The session is its own, so
            # that Ctrl-C in the terminal reaches only the supervisor, which then stops the nodes.
            self._process = Popen(
                self._command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                start_new_session=True,
                env={**environment, "SHOAL_CLUSTER": self._cluster},
            )
        self._killed = False

    def _close_pipes(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            self._process.stdout.close()

    async def _ended(self) -> None:
        # Not in a waiting thread, which would wait for released nodes too.
        while True:
            if not self.is_running:
                return
            await asyncio.sleep(_POLL_S)

    def _failure(self, what: str) -> NodeFailed:
        lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
        return NodeFailed(f"{node_name(self.number)} {what}. It said last: {' / '.join(lines) or 'nothing'}")


@asynccontextmanager
async def cluster(root: Path, *, size: int, name: str, temporary: bool) -> AsyncIterator[list[Node]]:
    """Run `size` nodes of a cluster called `name`, on free ports, until the context ends.

    Raises:
        NodeFailed: one did not start.
    """
    addresses = [f"{HOST}:{port}" for port in _free_ports(size)]
    nodes = [Node(number, addresses=addresses, cluster=name, root=root, temporary=temporary) for number in range(size)]
    try:
        # Wait for all of them, so that none starts while they are ended.
        for outcome in await asyncio.gather(*(node.start() for node in nodes), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        yield nodes
    finally:
        await asyncio.gather(*(node.end() for node in nodes))


def _free_ports(count: int) -> list[int]:
    # Bound at the same time, so that they differ. Another program may take one
    # before the node does; the node then fails to start.
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [int(listening.getsockname()[1]) for listening in sockets]
