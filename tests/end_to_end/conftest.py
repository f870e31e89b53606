"""One `shoal serve` on a real directory, and its three doors: `shoal.connect`, REST, the command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app
from shoal.client.store import Space, Store
from tests.cli.conftest import PATIENCE_S, served
from tests.end_to_end.browser import chromium


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("served") / "state", config={"SHOAL_REQUEST_BYTES_MAX": "256KiB"}) as (process, at):
        yield at
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
        assert "unexpected error" not in errors, errors


@pytest.fixture(scope="session")
def chromium_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One browser for all tests, whose pages have profiles of their own."""
    with chromium(tmp_path_factory.mktemp("browser") / "profile") as address:
        yield address


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    async with shoal.connect(url) as connected:
        yield connected


class Rest:
    """The HTTP door of one space."""

    def __init__(self, http: aiohttp.ClientSession, space: str) -> None:
        self.http = http
        self.path = f"/v1/spaces/{space}"

    async def __call__(self, method: str, path: str, body: object = None, *, status: int | None = None) -> Any:
        async with self.http.request(method, self.path + path, json=body) as answer:
            found = await answer.json(content_type=None)
            assert answer.status < 300 if status is None else answer.status == status, found
            return found


class Cli:
    """The command line, over the URL of a node, in a thread: a command at a time, because each has the standard output."""

    def __init__(self, url: str, space: str) -> None:
        self._url = ("--url", url)
        self._space = ("--space", space)
        self._turn = asyncio.Lock()

    async def __call__(self, *arguments: str) -> list[Any]:
        """What the command prints with --json, one document a line."""
        return await self.bare(*arguments, *self._space)

    async def bare(self, *arguments: str) -> list[Any]:
        """The same of a command that takes no --space."""
        code, out, errors = await self._run(*arguments)
        assert code == 0, errors
        return [json.loads(line) for line in out.splitlines()]

    async def refused(self, *arguments: str) -> str:
        """The error of a command that fails."""
        code, _, errors = await self._run(*arguments, *self._space)
        assert code == 1
        return errors

    async def _run(self, *arguments: str) -> tuple[int, str, str]:
        command = ["--wait", f"{PATIENCE_S:g}", *arguments, *self._url, "--json"]
        environment = {name: None for name in os.environ if name.startswith("SHOAL_")}
        async with self._turn:
            ended = await asyncio.to_thread(CliRunner().invoke, app, command, env=environment, catch_exceptions=False)
        return ended.exit_code, ended.stdout, ended.stderr


@pytest.fixture
async def http(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(url) as client:
        yield client


@pytest.fixture
def space(store: Store, request: pytest.FixtureRequest) -> Space:
    return store.space(request.node.originalname)


@pytest.fixture
def rest(http: aiohttp.ClientSession, request: pytest.FixtureRequest) -> Rest:
    return Rest(http, request.node.originalname)


@pytest.fixture
def cli(url: str, request: pytest.FixtureRequest) -> Cli:
    return Cli(url, request.node.originalname)
