"""Processes of `shoal` that start in a fifth of the time: they are forked from one that has imported it already.

Such a process has all that a process has: memory, descriptors, signals, threads and an end of its own. It differs from
`python -m shoal.cli` only in that no interpreter starts and no module is imported, which `tests/cli` proves of real commands.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock, Thread
from types import TracebackType
from typing import IO

NUMBER = struct.Struct("=i")

ROOT = Path(__file__).parent.parent.parent
_asking = Lock()


@cache
def _forking() -> socket.socket:
    """The process that forks; it ends with this one."""
    ours, its = socket.socketpair()
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forking"], stdin=its.fileno(), stdout=subprocess.DEVNULL, cwd=ROOT
        )
    atexit.register(_end, ours, process)
    return ours


def _end(asking: socket.socket, forking: subprocess.Popen[bytes]) -> None:
    asking.close()
    forking.wait()


def run(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None, *, timeout: float
) -> subprocess.CompletedProcess[str]:
    """What a program says and ends with, by the arguments of an interpreter."""
    with Forked(arguments, environment) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.wait(), out, errors)


class Forked(subprocess.Popen[str]):
    """A program, by the arguments of an interpreter: `-m MODULE …` or `-c CODE …`.

    It has pipes for its output, or a `terminal` and a session of its own.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, *, terminal: int | None = None
    ) -> None:
        wanted = {
            "arguments": list(arguments),
            "environment": dict(os.environ if environment is None else environment),
            "directory": os.getcwd(),
            "is_in_terminal": terminal is not None,
        }
        (request, asked), (out, says), (errors, complains), (self._end, ends) = (os.pipe() for _ in range(4))
        output = (says, complains) if terminal is None else (terminal, terminal)
        with _asking:
            socket.send_fds(_forking(), [b"."], [request, *output, ends])
            for each in (request, says, complains, ends):
                os.close(each)
            with open(asked, "w") as writing:
                json.dump(wanted, writing)
            [self.pid] = NUMBER.unpack(_forking().recv(NUMBER.size, socket.MSG_WAITALL))
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
