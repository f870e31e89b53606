"""The nodes of the demo: real `shoal serve` processes, each with a directory and a port of its own, on a tether.

The tether is a node's standard input: when that ends, for any reason, the node stops, and removes the demo's directory if that
is temporary. After the line `release` the node continues without the supervisor. The node's side:

    python -m shoal.demo.nodes DIRECTORY serve --data …    # "-": nothing is removed
"""

from __future__ import annotations

import asyncio
import os
import runpy
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from threading import Thread
from typing import NoReturn

HOST = "127.0.0.1"
RELEASE = b"release\n"
KEEP = "-"
STOP_S_MAX = 10  # After this time it is killed.
_LOG_LINES_SHOWN = 5
_REMOVE = "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)"


class DemoFailed(Exception):
    """A process of the demo did not start, ended by itself, or did not do its work in time."""


def node_name(node: int) -> str:
    """The name of a node. Nodes are numbered from 0 in code and from 1 for people."""
    return f"node-{node + 1}"


class Node:
    """One node: await `start()`; it can be killed and started again."""

    process: Popen[bytes] | None = None

    def __init__(self, number: int, *, addresses: Sequence[str], cluster: str, root: Path, temporary: bool) -> None:
        self.number = number
        self.url = f"http://{addresses[number]}"
        self.data = root / node_name(number)
        self._log = root / f"{node_name(number)}.log"
        others = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        self._environment = {**others, "SHOAL_CLUSTER": cluster}
        self._command = (
            *(sys.executable, "-m", "shoal.demo.nodes", str(root) if temporary else KEEP, "serve", "--data", str(self.data)),
            *("--listen", addresses[number], "--join", ",".join(addresses), "--set", f"advertise={addresses[number]}"),
        )
        self._killed = self._released = False

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.poll() is None

    @property
    def is_killed(self) -> bool:
        """Whether it was killed, and not started again.

        Raises:
            DemoFailed: it ended by itself; the error has the end of its log.
        """
        if not (self._killed or self.is_running):
            raise self._failure("ended by itself")
        return self._killed

    async def start(self) -> None:
        """Return once it answers at its URL.

        Raises:
            DemoFailed: it ended instead; the error has the end of its log.
        """
        self._close_pipes()
        with self._log.open("ab") as log:
            # Not asyncio's subprocess, which kills its process at the end of the loop. The session is its own, so
            # that Ctrl-C in the terminal reaches only the supervisor, which then stops the nodes.
            process = self.process = Popen(  # noqa: ASYNC220 - it returns as soon as the process runs
                self._command, stdin=PIPE, stdout=PIPE, stderr=log, start_new_session=True, env=self._environment
            )
        assert process.stdout is not None
        if not await asyncio.to_thread(process.stdout.readline):  # Its URL.
            await asyncio.to_thread(process.wait)
            raise self._failure("did not start")
        self._killed = False

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        assert self.process is not None
        self._killed = True
        self.process.kill()

    def release(self) -> None:
        """Let it continue after this process ends."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(RELEASE)
        self.process.stdin.flush()
        self._released = True

    async def end(self) -> None:
        """Stop it, or kill it if it does not stop in time. If it was released or does not run, do nothing."""
        if self.process is None or self._released:
            return
        self.process.terminate()
        try:
            await asyncio.to_thread(self.process.wait, STOP_S_MAX)
        except TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in () if self.process is None else (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _failure(self, what: str) -> DemoFailed:
        lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
        return DemoFailed(f"{node_name(self.number)} {what}. It said last: {' / '.join(lines) or 'nothing'}")


@asynccontextmanager
async def cluster(root: Path, *, size: int, name: str, temporary: bool) -> AsyncIterator[list[Node]]:
    """Run `size` nodes of a cluster called `name`, on free ports; at the end of the context all that are not released end.

    Raises:
        DemoFailed: one did not start.
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
    # Bound at the same time, so that they differ. If another program takes one before the node does, the node does not start.
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [int(listening.getsockname()[1]) for listening in sockets]


def main() -> None:
    """The node's side: run `shoal` with the arguments after the first, until it ends or the tether is cut."""
    directory, *arguments = sys.argv[1:]
    Thread(target=_hold, args=(directory,), name="tether", daemon=True).start()
    sys.argv = ["shoal", *arguments]
    runpy.run_module("shoal", run_name="__main__")


def _hold(directory: str) -> None:
    # Unbuffered, because a buffered reader's lock, held by this thread, would block the interpreter at its end.
    if os.read(sys.stdin.fileno(), len(RELEASE)) == RELEASE:
        return
    if directory != KEEP:
        become_removal(directory)
    signal.alarm(STOP_S_MAX)
    os.kill(os.getpid(), signal.SIGTERM)


def become_removal(directory: str) -> NoReturn:
    """End this process as it stands and remove a directory: its threads have ended when the first file goes."""
    os.execv(sys.executable, (sys.executable, "-c", _REMOVE, directory))


if __name__ == "__main__":
    main()
