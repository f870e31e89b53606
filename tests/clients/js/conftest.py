"""Programs in JavaScript that use the client, under Node.js and in Chromium, and a node for them."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
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
    """One program under Node.js."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def __call__(self, code: str, given: Any = None) -> Any:
        """What the body of an asynchronous function returns, with `shoal`, `kept`, `given` and `parts` in its scope.

        Raises:
            Rejected: it threw a ShoalError.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([code, given]).encode() + b"\n")
        answer = await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_S)
        assert answer, "the program ended"
        said = json.loads(answer)
        if "error" in said:
            raise Rejected(said["error"])
        assert "threw" not in said, said["threw"]
        return said["is"]


@asynccontextmanager
async def program() -> AsyncIterator[Program]:
    assert NODE is not None
    process = await asyncio.create_subprocess_exec(NODE, str(PROGRAM), stdin=PIPE, stdout=PIPE, limit=1 << 24)
    try:
        yield Program(process)
    finally:
        process.kill()
        await process.wait()


@pytest.fixture
async def js() -> AsyncIterator[Program]:
    async with program() as running:
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
