"""Processes of `shoal` that start in a fifth of the time: they are forked from one that has imported it already.

Such a process has all that a process has: memory, descriptors, signals, threads and an end of its own. It differs from
`python -m shoal` only in that no interpreter starts and no module is imported, which `tests/cli` proves of real commands.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from threading import Lock, Thread
from types import TracebackType
from typing import IO, Any

NUMBER = struct.Struct("=i")

LANGGRAPH = "langgraph.graph shoal.integrations.langgraph"
"""What takes long to import, of programs on LangGraph."""

ROOT = Path(__file__).parent.parent.parent
_asking = Lock()


@cache
def _forking(imports: str) -> socket.socket:
    """The process that forks; it ends with this one. It has imported these modules, too."""
    ours, its = socket.socketpair()
    with its:
        if imports:
            with open(os.devnull, "w") as nothing:
                arguments = ["-m", "tests.support.forking", *imports.split()]
                _fork(arguments, None, (its.fileno(), nothing.fileno(), 2), directory=ROOT)
            atexit.register(ours.close)
            return ours
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forking"], stdin=its.fileno(), stdout=subprocess.DEVNULL, cwd=ROOT
        )
    atexit.register(_end, ours, process)
    return ours


def _end(asking: socket.socket, forking: subprocess.Popen[bytes]) -> None:
    asking.close()
    forking.wait()


def _fork(
    arguments: Sequence[str],
    environment: Mapping[str, str] | None,
    streams: Sequence[int],
    *,
    is_session: bool = False,
    directory: str | Path | None = None,
    imports: str = "",
) -> tuple[int, int]:
    """The id of a new process with these standard streams, and a pipe that brings what it ends with."""
    wanted = {
        "arguments": list(arguments),
        "environment": dict(os.environ if environment is None else environment),
        "directory": str(directory or os.getcwd()),
        "is_session": is_session,
    }
    forking = _forking(imports)
    (request, asked), (end, ends) = os.pipe(), os.pipe()
    with _asking:
        socket.send_fds(forking, [b"."], [request, *streams, ends])
        os.close(request)
        os.close(ends)
        with open(asked, "w") as writing:
            json.dump(wanted, writing)
        [pid] = NUMBER.unpack(forking.recv(NUMBER.size, socket.MSG_WAITALL))
    return pid, end


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    timeout: float,
    directory: Path | None = None,
    imports: str = "",
) -> subprocess.CompletedProcess[str]:
    """What a program says and ends with, by the arguments of an interpreter."""
    with Forked(arguments, environment, directory=directory, imports=imports) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.wait(), out, errors)


class Forked(subprocess.Popen[str]):
    """A program, by the arguments of an interpreter: `-m MODULE …`, `-c CODE …` or `-- FILE …`.

    It has pipes for its output, or a `terminal` and a session of its own. Large modules that it `imports` are imported
    once for all programs that name them here.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        terminal: int | None = None,
        directory: Path | None = None,
        imports: str = "",
    ) -> None:
        (out, says), (errors, complains), nothing = os.pipe(), os.pipe(), os.open(os.devnull, os.O_RDONLY)
        streams = (nothing, says, complains) if terminal is None else (terminal, terminal, terminal)
        self.pid, self._end = _fork(
            arguments, environment, streams, is_session=terminal is not None, directory=directory, imports=imports
        )
        for each in (nothing, says, complains):
            os.close(each)
        self.args = [sys.executable, *arguments]
        self.stdin = None
        self.stdout: IO[str] = open(out)  # noqa: SIM115
        self.stderr: IO[str] = open(errors)  # noqa: SIM115
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        ended = self._ended(timeout)
        if ended is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return ended

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._end], [], [], timeout)[0]:
            [self.returncode] = NUMBER.unpack(os.read(self._end, NUMBER.size))
            os.close(self._end)
        return self.returncode

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """All that it still prints, until it ends; it is given no input."""
        assert input is None
        said: dict[IO[str], str] = {}
        pipes = (self.stdout, self.stderr)
        listening = [Thread(target=lambda pipe=pipe: said.update({pipe: pipe.read()}), daemon=True) for pipe in pipes]
        for each in listening:
            each.start()
        until = None if timeout is None else time.monotonic() + timeout
        for each in listening:
            each.join(None if until is None else max(0, until - time.monotonic()))
            if each.is_alive():
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
        self.wait(None if until is None else max(0, until - time.monotonic()))
        return said[self.stdout], said[self.stderr]

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # It ended at this moment, and is not waited for as a child would be.
                os.kill(self.pid, sig)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.stdout.close()
        self.stderr.close()
        self.wait()


class ForkedChild(asyncio.Protocol):
    """What `asyncio.create_subprocess_exec` returns, forked. It is told how it ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self.pipes: list[_Reading] = []
        self._has_ended = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self._telling = transport

    def data_received(self, data: bytes) -> None:
        [self.returncode] = NUMBER.unpack(data)
        self._telling.close()
        self._has_ended.set()

    async def wait(self) -> int:
        await self._has_ended.wait()
        for pipe in self.pipes:
            while pipe.is_reading:  # Its end may not have been read yet.
                await asyncio.sleep(0.001)
        if self.stdin is not None:
            self.stdin.close()
        assert self.returncode is not None
        return self.returncode

    async def communicate(self) -> tuple[bytes, bytes]:
        """All that it still prints, until it ends; it is given no input."""
        said = [b"" if pipe is None else await pipe.read() for pipe in (self.stdout, self.stderr)]
        await self.wait()
        return said[0], said[1]

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):  # It ended at this moment, and is not waited for as a child would be.
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


_create_subprocess_exec = asyncio.create_subprocess_exec


async def create_subprocess_exec(
    program: str,
    *arguments: str,
    limit: int = 1 << 16,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    start_new_session: bool = False,
    imports: str = "",
    **given: Any,
) -> Any:
    """What is put in the place of asyncio's own function: it forks if the program is this Python's interpreter."""
    if program == "setpriv" and arguments[:2] == ("--pdeathsig", "KILL"):  # It ends with its test, as all that is forked.
        program, *rest = arguments[2:]
        arguments = tuple(rest)
    if program != sys.executable or arguments[0] not in ("-m", "-c"):
        given |= {"limit": limit, "env": env, "cwd": cwd, "start_new_session": start_new_session}
        return await _create_subprocess_exec(program, *arguments, **given)
    loop = asyncio.get_running_loop()
    ours: list[int | None] = []
    with ExitStack() as stack:
        theirs: list[int] = []
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            wanted = given.pop(name, None)
            kept = None
            if wanted == PIPE:
                ends = os.pipe()
                kept, descriptor = ends[:: 1 if number else -1]
                stack.callback(os.close, descriptor)
            elif wanted == DEVNULL:
                descriptor = os.open(os.devnull, os.O_RDWR)
                stack.callback(os.close, descriptor)
            elif wanted == STDOUT:
                descriptor = theirs[1]
            else:
                descriptor = number if wanted is None else wanted if isinstance(wanted, int) else wanted.fileno()
            theirs.append(descriptor)
            ours.append(kept)
        pid, end = _fork(arguments, env, theirs, is_session=start_new_session, directory=cwd, imports=imports)
    child = ForkedChild(pid)
    await loop.connect_read_pipe(lambda: child, _pipe(end, "rb"))
    stdin, stdout, stderr = ours
    if stdin is not None:
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, _pipe(stdin, "wb"))
        child.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
    child.stdout, child.stderr = [await _reader(each, limit, child) for each in (stdout, stderr)]
    return child


def _pipe(descriptor: int, mode: str) -> IO[bytes]:
    """A pipe for the running loop, which closes it. uvloop closes the descriptor, and then the file.

    The file must not close the descriptor as well: another thread, of a store in this process, may have opened a file by
    then, and the number may be that one's.
    """
    closes_it_itself = type(asyncio.get_running_loop()).__module__.startswith("uvloop")
    return open(descriptor, mode, closefd=not closes_it_itself)


async def _reader(descriptor: int | None, limit: int, child: ForkedChild) -> asyncio.StreamReader | None:
    if descriptor is None:
        return None
    reader = asyncio.StreamReader(limit)
    reading = _Reading(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: reading, _pipe(descriptor, "rb"))
    child.pipes.append(reading)
    return reader


class _Reading(asyncio.StreamReaderProtocol):
    """It closes its pipe at the end, which uvloop's would not."""

    _pipe: asyncio.ReadTransport | None = None

    @property
    def is_reading(self) -> bool:
        """False at the end, and while nobody takes what was read."""
        return self._pipe is not None and self._pipe.is_reading()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._pipe = transport

    def eof_received(self) -> bool:
        super().eof_received()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._pipe = None
