"""Programs in JavaScript that use the client, under Node.js and in Chromium, and a node for them."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import served
from tests.support.killable import Killable

NODE = shutil.which("node") or shutil.which("nodejs")
PROGRAM = Path(__file__).parent / "program.mjs"
OLDEST = 20
PATIENCE_S = 60


def _version() -> int:
    if NODE is None:
        return 0
    told = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"v(\d+)", told)
    return int(found[1]) if found else 0


needs_node = pytest.mark.skipif(
    _version() < OLDEST, reason=f"no Node.js {OLDEST} here: Debian's package `nodejs` has it since trixie"
)


class Rejected(Exception):
    """The program's call ended with a ShoalError, whose members these are."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(told)
        self.code: str = told["code"]
        self.status: int = told["status"]
        self.written: str = told["written"]
        self.retryable: bool = told["retryable"]
        self.detail: dict[str, Any] = told["detail"]
        self.key: str | None = told["key"]
        self.message: str = told["message"]


class Program:
    """One program under Node.js, and the streams to it."""

    def __init__(self, answers: asyncio.StreamReader, asking: asyncio.StreamWriter) -> None:
        self._answers, self._asking = answers, asking

    async def __call__(self, code: str, given: Any = None) -> Any:
        """What the body of an asynchronous function returns, with `shoal`, `kept`, `given` and `parts` in its scope.

        Raises:
            Rejected: it threw a ShoalError.
        """
        self._asking.write(json.dumps([code, given]).encode() + b"\n")
        answer = await asyncio.wait_for(self._answers.readline(), PATIENCE_S)
        assert answer, "the program ended"
        said = json.loads(answer)
        if "error" in said:
            raise Rejected(said["error"])
        assert "threw" not in said, said["threw"]
        return said["is"]


@contextmanager
def started() -> Iterator[socket.socket]:
    """A program, by its standard input and output."""
    assert NODE is not None
    ours, its = socket.socketpair()
    with ours, its, subprocess.Popen([NODE, str(PROGRAM)], stdin=its.fileno(), stdout=its.fileno()) as process:
        its.close()
        yield ours
        process.kill()


@asynccontextmanager
async def spoken_to(started: socket.socket) -> AsyncIterator[Program]:
    """A program that runs, from the loop of one test."""
    answers, asking = await asyncio.open_connection(sock=started.dup(), limit=1 << 24)
    yield Program(answers, asking)
    asking.close()
    await asking.wait_closed()


@pytest.fixture(scope="module")
def node_js() -> Iterator[socket.socket]:
    with started() as running:
        yield running


@pytest.fixture
async def js(node_js: socket.socket) -> AsyncIterator[Program]:
    """A program with nothing kept; all tests of a module talk to one, which takes as long to start as most of them."""
    async with spoken_to(node_js) as running:
        await running("for (const name in kept) delete kept[name]")
        yield running


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[Killable]:
    node = Killable(tmp_path / "state")
    node.start()
    yield node
    node.stop()


@pytest.fixture(scope="session")
def open_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node that asks for no token."""
    with served(tmp_path_factory.mktemp("js") / "state") as (_, url):
        yield url
