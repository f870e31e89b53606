"""`shoal mcp` in a process of its own, and the SDK's own client before it."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.conftest import PATIENCE_S, clean_environment, served

if TYPE_CHECKING:
    from mcp.client.client import Client

WHOLE_TEST_S = 120


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Of a node in a process of its own."""
    with served(tmp_path / "served") as (process, at):
        yield at
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


@pytest.fixture(params=["embedded", "served"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """The options of `shoal mcp` for a new store."""
    if request.param == "embedded":
        return ["--data", str(tmp_path / "state")]
    return ["--url", request.getfixturevalue("url")]


@asynccontextmanager
async def client(
    *arguments: str, pid: Path | None = None, environment: Mapping[str, str] | None = None, **more: Any
) -> AsyncIterator[Client]:
    """The SDK's client of a new `shoal mcp`, which writes its process id into a file if one is given."""
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters

    command = [sys.executable, "-m", "shoal", "mcp", *arguments]
    if pid is not None:
        command = ["/bin/sh", "-c", f'echo $$ > "{pid}"; exec "$@"', "sh", *command]
    server = StdioServerParameters(command=command[0], args=command[1:], env={**clean_environment(), **(environment or {})})
    async with Client(server, **more) as made:
        yield made


async def answer(made: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
    """What a tool answers; the call must succeed."""
    result = await made.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def refusal(made: Client, tool: str, /, **arguments: Any) -> str:
    """The text with which a tool refuses."""
    result = await made.call_tool(tool, arguments)
    assert result.is_error, result.structured_content
    (content,) = result.content
    assert content.type == "text"
    text: str = content.text
    return text
