"""Nodes as processes of this machine, `shoal serve` each, with a directory and a port of its own.

Laws:
- Whatever ends the trial ends the nodes: on every way out of `running` each is
  killed and waited for, and its disk, if it was given one, unmounted. If the trial is
  killed, the system ends them (on Linux), and the mounts of a program that called `mount_apart`.
- A node comes back on the port that it had, and on its directory, unless that was
  taken away or replaced while it was down.
- Nodes reach each other through `Relays` alone.
- A clock that jumps needs `SKEWED` as the program; the node itself knows of no such thing.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import signal
import struct
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from chaos.cluster import Cluster, Node, last_words, started
from chaos.engine import outliving_nobody
from chaos.network import Relays
from chaos.ports import free_ports
from chaos.skewed import CLOCK

PROGRAM = (sys.executable, "-m", "shoal")
"""What a node runs, before its arguments."""

SKEWED = (sys.executable, "-m", "chaos.skewed")
"""The same, with a wall clock that `set_clock` sets."""

DISK_BYTES = 512 * 1024 * 1024
"""Of a disk that can be filled; as long as it is full it takes this much memory."""

_CLONE_NEWNS = 0x20000
_MS_REC, _MS_PRIVATE, _MNT_DETACH = 0x4000, 1 << 18, 2


@dataclass(slots=True)
class Start:
    """How each node of a cluster is started. Another `program` counts from the next start on."""

    program: Sequence[str]
    join: str
    environment: Mapping[str, str]


class Disk:
    """A disk of its own, of memory, for the directory of a node. Only root can make one."""

    def __init__(self, mounted: Path) -> None:
        self._mounted = mounted
        self._ballast = mounted / "ballast"

    @property
    def directory(self) -> Path:
        """For a node."""
        return self._mounted / "data"

    def mount(self) -> None:
        """
        Raises:
            OSError: it could not be mounted.
        """
        self._mounted.mkdir(parents=True)
        of = f"size={DISK_BYTES},mode=700".encode()
        _system("mount", b"tmpfs", bytes(self._mounted), b"tmpfs", ctypes.c_ulong(0), of)

    def fill(self) -> None:
        """Leave no room at all."""
        piece = bytes(64 * 1024)
        with self._ballast.open("ab", buffering=0) as file, suppress(OSError):
            while file.write(piece):
                pass

    def drain(self) -> None:
        """Give the room back."""
        self._ballast.unlink(missing_ok=True)

    def unmount(self) -> None:
        """At once: there is no moment in which Ctrl-C could leave it mounted."""
        self.drain()
        _system("umount2", bytes(self._mounted), _MNT_DETACH)


def no_disks(directory: Path) -> str:
    """Why nodes can be given no disks of their own below a directory; empty: they can."""
    trial = Disk(directory / "disk")
    try:
        trial.mount()
    except OSError as error:
        shutil.rmtree(directory / "disk", ignore_errors=True)
        return f"no disk can be mounted here, which takes root ({error})"
    trial.unmount()
    (directory / "disk").rmdir()
    return ""


def mount_apart() -> None:
    """Disks that this program mounts from now on are seen by it and its nodes alone, and end with them. Before any thread.

    It does nothing where no disk can be mounted either.
    """
    with suppress(OSError):
        _system("unshare", _CLONE_NEWNS)
        _system("mount", None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None)


def _system(call: str, *arguments: object) -> None:
    """
    Raises:
        OSError: it failed, or this system is not Linux.
    """
    if sys.platform != "linux":
        raise OSError(f"{call}: on Linux only")
    if getattr(ctypes.CDLL(None, use_errno=True), call)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


class ProcessNode(Node):
    """One node, alive or not."""

    def __init__(
        self, name: str, *, directory: Path, log: Path, address: str, advertise: str, start: Start, disk: Disk | None = None
    ) -> None:
        super().__init__(name, url=f"http://{address}", advertise=advertise)  # For clients; for peers: the relay's.
        self.directory = directory
        self.log = log
        self._address = address
        self._start = start
        self._disk = disk
        self._clock = log.with_suffix(".clock")
        self._copies = 0
        self._process: Process | None = None
        self._is_ending = False  # By what is done to it.

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def fell(self) -> bool:
        return self._process is not None and self._process.returncode is not None and not self._is_ending

    def delayed_s(self) -> float:
        try:  # Linux: on a processor, waiting for one (both in ns), and how often.
            _, waited_ns, _ = Path(f"/proc/{0 if self._process is None else self._process.pid}/schedstat").read_text().split()
        except (OSError, ValueError):
            return 0.0
        return int(waited_ns) / 1e9

    async def last_words(self) -> str:
        return last_words(self.log)

    async def launch(self) -> None:
        if not self._clock.exists():
            await self.set_clock(0.0)
        arguments = ["serve", "--data", str(self.directory), "--listen", self._address]
        arguments += ["--join", self._start.join, "--set", f"advertise={self.advertise}"]
        with self.log.open("ab") as log:
            self._is_ending = False
            # A session of its own: the terminal's Ctrl-C is for the harness, which then sees to its nodes.
            self._process = await asyncio.create_subprocess_exec(
                *outliving_nobody((*self._start.program, *arguments)),
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                env={**self._start.environment, CLOCK: str(self._clock)},
                start_new_session=True,
            )

    async def kill(self) -> None:
        self._signal(signal.SIGKILL)
        await self._gone()

    async def stop(self) -> None:
        self._signal(signal.SIGTERM)
        await self._gone()

    async def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    async def resume(self) -> None:
        self._signal(signal.SIGCONT)

    async def wipe(self) -> None:
        shutil.rmtree(self.directory)

    async def fill(self) -> None:
        assert self._disk is not None, "the nodes were started without disks of their own"
        await asyncio.to_thread(self._disk.fill)

    async def drain(self) -> None:
        assert self._disk is not None
        self._disk.drain()

    async def set_clock(self, ahead_s: float) -> None:
        """Set its wall clock so much ahead of this machine's, at once and from then on."""
        set_to = struct.pack("=q", round(ahead_s * 1e9))
        with self._clock.open("r+b" if self._clock.exists() else "wb") as file:  # The node has it mapped.
            file.write(set_to)

    @asynccontextmanager
    async def disk(self) -> AsyncGenerator[Path]:
        yield self.directory

    def copy(self) -> Path:
        """Copy the directory of a node that is down: other files, with other inodes."""
        self._copies += 1
        copy = self.log.parent / f"{self.name}.copy-{self._copies}"
        shutil.copytree(self.directory, copy)
        return copy

    def put_back(self, copy: Path) -> None:
        """Replace the directory of a node that is down by a copy, which is used up."""
        shutil.rmtree(self.directory)
        shutil.move(copy, self.directory)

    def clone(self, copy: Path) -> ProcessNode:
        """A further node, on a copy of the directory, that advertises what this one does."""
        [port] = free_ports(1)
        name = f"{self.name}-clone"
        log = self.log.parent / f"{name}.log"
        return ProcessNode(
            name, directory=copy, log=log, address=f"127.0.0.1:{port}", advertise=self.advertise, start=self._start
        )

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _gone(self) -> None:
        """Return once it has ended, by what was done to it."""
        self._is_ending = True
        if self._process is not None:
            await self._process.wait()
            self._process = None


class Processes(Cluster):
    """A cluster of them."""

    nodes: Sequence[ProcessNode]
    network: Relays

    def __init__(
        self,
        nodes: Sequence[ProcessNode],
        *,
        network: Relays,
        http: aiohttp.ClientSession,
        now_s: Callable[[], float],
        start: Start,
    ) -> None:
        super().__init__(nodes, network=network, http=http, now_s=now_s)
        self.start_as = start


@asynccontextmanager
async def running(
    directory: Path, *, nodes: int, now_s: Callable[[], float], program: Sequence[str] = PROGRAM, disks: bool = False
) -> AsyncIterator[Processes]:
    """`nodes` nodes below `directory`, ready, and members. None of them outlives the context.

    With `disks` each has one that can be filled, and what is on it is below `directory` afterwards.

    Raises:
        NodeFailed: one did not start.
        OSError: no disk can be mounted.
    """
    names = [f"n{number}" for number in range(1, nodes + 1)]
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(Relays(names))
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0)))
        ports = dict(zip(names, free_ports(nodes), strict=True))
        network.place(ports)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SHOAL_")}
        environment["SHOAL_CLUSTER"] = f"chaos-{directory.name}"
        start = Start(program, ",".join(network.addresses.values()), environment)
        placed = []
        for name, port in ports.items():
            disk = await stack.enter_async_context(_disk(directory, name)) if disks else None
            placed.append(
                ProcessNode(
                    name,
                    directory=directory / name if disk is None else disk.directory,
                    log=directory / f"{name}.log",
                    address=f"127.0.0.1:{port}",
                    advertise=network.addresses[name],
                    start=start,
                    disk=disk,
                )
            )
        cluster = Processes(placed, network=network, http=http, now_s=now_s, start=start)
        try:
            await started(cluster)
            yield cluster
        finally:
            for node in placed:
                await node.kill()


@asynccontextmanager
async def _disk(directory: Path, name: str) -> AsyncGenerator[Disk]:
    mounted = directory / f"{name}.disk"
    disk = Disk(mounted)
    disk.mount()
    try:
        yield disk
    finally:
        try:
            if disk.directory.exists():
                shutil.copytree(disk.directory, directory / name)
        finally:
            disk.unmount()
            mounted.rmdir()
